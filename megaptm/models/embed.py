"""Input embedding: the sum of embedding tables."""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.costs import LinearShape
from megaptm.layers.norm import Norm
from megaptm.layers.positions import sinusoid
from megaptm.layers.split import Dropout, Embedding, Linear
from megaptm.models.embed_costs import input_costs, token_costs, widening_projections
from megaptm.plugins import load_class
from megaptm.spec import InputSpec, ModelSpec

SEQUENCE_FIELDS = ("tokens", "segments", "positions")
"""Batch fields with an entry for each position that the input embedding reads."""


class Embed(nn.Module):
    """Input embedding: sum of the embeddings of the family's inputs (`Family.inputs`) and of positions. A norm (BERT),
    dropout, and a projection if tables are narrower than the stack (ALBERT) follow.

    An input with a module of its own is called with its batch fields, then with `tokens` [S, B], or the positions if it
    `reads_positions`, and returns [S, B, D]. An input that is appended gets only its own R positions, and also their
    segment embeddings [R, B, D], or None.

    In a pipeline chunk that embeds no stack, this module holds only the token table of a tied output projection, under
    the same name, and the projections of `tied_inputs`.
    """

    token: nn.Module
    segment: Embedding | None

    def __init__(self, spec: ModelSpec, stacks: Collection[str], *, tied_inputs: Collection[str] = ()) -> None:
        """Build the embedding. `stacks`: stacks that this chunk embeds. `tied_inputs`: inputs to which heads of the
        chunk are tied."""
        super().__init__()
        family, width = spec.family, spec.size.table_width
        _check_inputs(spec)
        scales = {"none": False, "sqrt-width": True}
        if family.embedding.scale not in scales:
            known = ", ".join(scales)
            raise UserError(f"{family.name}: embedding.scale is {family.embedding.scale!r}; use one of {known}.")
        self.is_scaled = scales[family.embedding.scale]
        tokens = token_costs(spec)
        self.has_own_table = tokens is not None and tokens.module != ""
        """Whether the token table is of another kind than `Embedding`."""
        if tokens is not None and tokens.module:
            self.token = load_class(tokens, "module")(spec, embeds=bool(stacks))
        elif tokens is not None:
            self.token = Embedding(spec.padded_vocabulary, spec.token_width, split="vocabulary")
        self.segment = None
        if not stacks:
            for name in tied_inputs:
                self.add_module(name, TiedProjection(input_costs(spec)[name].tied_linear))
            return
        for record in family.inputs:
            if record.module and record.stack in ("", *stacks):
                module = load_class(record, "module")
                self.add_module(record.name, module(spec, record))
        self.token_inputs = {name: family.token_input(name) for name in family.stacks}
        modules = [record for record in family.inputs if record.module and not record.replaces_tokens]
        self.added = [record for record in modules if not record.stack]
        self.own_tables = {record.stack: record for record in modules if record.stack}
        self.first_position = family.embedding.first_position
        self.waves = {name: family.stacks[name].position == "sinusoid" for name in stacks}
        if width % 2 and any(self.waves.values()):
            raise UserError(f"{family.name}: sinusoid positions need an even width, not {width}: change it.")
        for prefix, name in {family.tables[name]: name for name in stacks}.items():
            if family.stacks[name].position == "learned":
                self.add_module(f"{prefix}position", Embedding(spec.positions_of(name), spec.table_width(name)))
            if family.embedding.has_norm(name):
                block = family.stacks[name]
                self.add_module(f"{prefix}norm", Norm(spec.table_width(name), block.norm))
        if family.segments:
            self.segment = Embedding(family.segments, width)
        self.dropout = Dropout(spec.dropout, masks="residual")
        self.prefixes, self.tables = family.prefixes, family.tables
        self.widenings = {
            name: f"{name}_widen" if name in family.sampled else f"{family.prefixes[name]}widen" for name in stacks
        }
        for name, linear in widening_projections(spec).items():
            if name in stacks:
                self.add_module(self.widenings[name], Linear.from_shape(linear))

    def forward(self, batch: dict[str, Tensor], stack: str, scatter_sequence: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the embedding [S, B, D] of a stack's input; appended positions and queries follow the text.

        It reads the stack's `tokens`, `positions` (None: 0, 1, 2 ...) and `segments` [B, S], and the fields of other
        inputs.
        """
        prefix, own = self.prefixes[stack], self.tables[stack]
        segments = None if self.segment is None else self.segment(batch[prefix + "segments"].t())
        batch, appended = self._split_appended(batch)
        ids_SB = batch[prefix + "tokens"].t()
        record, own_table = self.token_inputs[stack], self.own_tables.get(stack)
        if own_table is None or own_table.adds_tokens:
            x = self._input_module(record.name)(*(batch[prefix + name] for name in record.fields), ids_SB)
        if own_table is not None:
            rows = self._input_module(own_table.name)(ids_SB)
            x = x.detach() + rows if own_table.adds_tokens else rows
        if self.is_scaled:
            x = x * x.shape[-1] ** 0.5
        if self.waves[stack]:
            x = x + sinusoid(self._positions_or_range(batch.get(f"{prefix}positions"), ids_SB), width=x.shape[-1]).to(
                x.dtype
            )
        if (table := self._modules.get(f"{own}position")) is not None:
            x = x + table(self._position_rows(batch.get(f"{prefix}positions"), ids_SB, table))
        if segments is not None:
            x = x + segments[: len(x)]
        for record in self.added:
            if not record.is_appended and not record.adds_queries:
                fields = [batch[prefix + name] for name in record.fields]
                sample_fields = (batch.get(name) for name in record.sample_fields)
                ids = ids_SB
                if record.reads_positions:
                    ids = self._positions_or_range(batch.get(f"{prefix}positions"), ids_SB)
                x = x + self._input_module(record.name)(*fields, *sample_fields, ids)
        if (norm := self._modules.get(f"{own}norm")) is not None:
            x = norm(x)
        for record, appended_batch in appended:
            fields = [appended_batch[name] for name in record.fields]
            rest_segments = None if segments is None else segments[len(x) :]
            x = torch.cat([x, self._input_module(record.name)(*fields, appended_batch["tokens"].t(), rest_segments)])
        for record in self.added:
            if record.adds_queries and (target_positions_BA := batch.get(f"{prefix}masked_positions")) is not None:
                x = torch.cat([x, self._input_module(record.name)(target_positions_BA)])
        x = self.dropout(scatter_sequence(x))
        widen = self._modules.get(self.widenings[stack])
        return x if widen is None else widen(x)

    def _input_module(self, name: str) -> Callable[..., Tensor]:
        return cast(Callable[..., Tensor], getattr(self, name))

    def _split_appended(
        self, batch: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], list[tuple[InputSpec, dict[str, Tensor]]]]:
        """Return the batch with only the positions of the text, and the appended input with the fields of its
        positions, if the batch has it."""
        for record in self.added:
            if record.is_appended and record.fields[0] in batch:
                count = batch[record.fields[0]].shape[1]
                sequence = {name: batch[name] for name in SEQUENCE_FIELDS if name in batch}
                text = {name: field[:, : field.shape[1] - count] for name, field in sequence.items()}
                appended = {name: field[:, field.shape[1] - count :] for name, field in sequence.items()}
                return batch | text, [(record, batch | appended)]
        return batch, []

    def _position_rows(self, positions_BS: Tensor | None, ids_SB: Tensor, table: nn.Module) -> Tensor:
        """Return row indices of the position table, [S, B]; [S, 1] if the batch has no positions."""
        rows = cast(Embedding, table).rows - self.first_position
        if positions_BS is None and len(ids_SB) > rows:
            raise UserError(f"A sequence of {len(ids_SB)} has no learned positions; the model has {rows}.")
        return self._positions_or_range(positions_BS, ids_SB) + self.first_position

    def _positions_or_range(self, positions_BS: Tensor | None, ids_SB: Tensor) -> Tensor:
        """Return the position of each token, [S, B]; [S, 1] if the batch has no positions."""
        return torch.arange(len(ids_SB), device=ids_SB.device)[:, None] if positions_BS is None else positions_BS.t()


def own_token_table(spec: ModelSpec, record: InputSpec) -> Embedding:
    """Return the token table that only one stack reads (`InputSpec.stack`)."""
    return Embedding(spec.padded_vocabulary, spec.table_width(record.stack), split="vocabulary")


class TiedProjection(nn.Module):
    """Weight of an input's projection, for a pipeline chunk whose head uses its transpose."""

    def __init__(self, linear: LinearShape) -> None:
        super().__init__()
        self.project = Linear(linear.inputs, linear.outputs, bias=False)


def _check_inputs(spec: ModelSpec) -> None:
    """Raise `UserError` for inputs that do not fit together, or that do not fit the family."""
    family = spec.family
    names = [record.name for record in family.inputs]
    replaced = [record.name for record in family.inputs if record.replaces_tokens]
    if len({*names}) < len(names) or sum(record.is_appended for record in family.inputs) > 1:
        raise UserError(f"{spec.name}: inputs has two of one kind ({', '.join(names)}): remove one.")
    errors = {
        "other token tables (inputs)": len(family.token_inputs)
        > (1 if len(family.stacks) == 1 or family.output.tied else 2),
        "a projection on the token table (tied)": family.output.tied,
        "a token table of another kind": (tokens := token_costs(spec)) is not None and bool(tokens.module),
        "a stack that reads sampled tokens": bool(family.sampled),
        "queries beside the text": family.has_queries,
    }
    if replaced and (named := [word for word, is_so in errors.items() if is_so]):
        raise UserError(
            f"{spec.name}: the input {replaced[0]} replaces tokens, which cannot be combined with "
            f"{named[0]}: change either."
        )
