"""ModelSpec: family, size and vocabulary of a model."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.spec.family import Family, HeadInput
from megaptm.spec.size import Size

# Tables are padded to a multiple of this on every layout, so that a checkpoint has the same shapes on any number of
# ranks. Rows above the vocabulary are zero, are never labels, and are left out of parameter counts and exports.
VOCABULARY_MULTIPLE = 128


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Everything needed to build one model or to count its parameters."""

    family: Family
    size: Size
    vocabulary: int
    context: int
    dropout: float
    mup_base_width: int | None = None
    """Width whose initial values and learning rates fit this width, too: `models.mup`. None: the family's initial
    values and rates are used."""

    @property
    def padded_vocabulary(self) -> int:
        """Return the number of rows of the model's token table; see `VOCABULARY_MULTIPLE`."""
        return -(-self.vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def name(self) -> str:
        return self.family.name

    def size_of(self, stack: str) -> Size:
        return self.size.stacks.get(stack, self.size)

    @property
    def has_recurrence_cache(self) -> bool:
        """Whether layers of the model have a recurrence cache, so that sequences must continue from step to step."""
        return any(self.size_of(stack).cached_positions for stack in self.family.stacks)

    def head_inputs(self, head: str) -> tuple[HeadInput, ...]:
        """Return the outputs of the model that a head reads."""
        read = self.family.reads.get(head, next(reversed(self.family.stacks)))
        return tuple(map(HeadInput.parse, (read,) if isinstance(read, str) else read))

    @property
    def layers(self) -> int:
        """Return the number of layers of all stacks of the model."""
        return sum(self.size_of(stack).layers for stack in self.family.stacks)

    @property
    def width(self) -> int:
        """Return the width of the model's tensor between pipeline stages: the widest stack's; others are padded to
        it."""
        return max(self.size_of(stack).width for stack in self.family.stacks)

    @property
    def positions(self) -> int:
        """Return the number of rows of the first stack's position table."""
        return self.positions_of(next(iter(self.family.stacks)))

    def context_of(self, stack: str) -> int:
        """Return the maximum sequence length of a stack with learned positions."""
        own = self.size.stacks[stack].context if stack in self.size.stacks else None
        return self.context if own is None else own

    def positions_of(self, stack: str) -> int:
        """Return the number of rows of a stack's position table."""
        return self.context_of(stack) + self.family.embedding.first_position

    def table_width(self, stack: str) -> int:
        """Return the width of a stack's embedding tables in the model. Stacks share it, unless they read different
        inputs, or separate tables."""
        is_own = len(self.family.token_inputs) > 1 or self.family.separate_tables
        return (self.size_of(stack) if is_own else self.size).table_width

    @property
    def token_width(self) -> int:
        """Return the width of the model's token table."""
        return self.table_width(self._token_stack)

    @property
    def _token_stack(self) -> str:
        """Return the first stack of the model that reads the common token table, or the first stack."""
        reading = filter(self.family.reads_tokens, self.family.stacks)
        common = (stack for stack in reading if stack not in self.family.separate_tables)
        return next(common, next(iter(self.family.stacks)))

    def output_width(self, stack: str) -> int:
        """Return the width of a stack's output in the model."""
        return self.size_of(stack).width * self.family.stacks[stack].residual.streams

    @property
    def max_text_length(self) -> int | None:
        """Return the maximum length in tokens of a text that the model can read. None if unlimited: positions are
        not learned."""
        blocks = self.family.stacks.values()
        tables = any(block.position == "learned" or block != block.for_encoding for block in blocks)
        bounded = tables or any(record.reads_positions for record in self.family.inputs)
        return self.context_of(self._token_stack) if bounded else None


def published_spec(family: Family, size: str) -> ModelSpec:
    """Return the spec of a model exactly as published."""
    return ModelSpec(
        family=family.for_size(family.sizes[size]),
        size=family.sizes[size],
        vocabulary=family.tokenizer.vocabulary,
        context=family.sizes[size].context or family.context,
        dropout=family.dropout,
    )
