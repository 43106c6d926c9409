"""Attention masks from document ids, causality and pattern."""

# B batch, Q query positions, K key positions, H heads, S positions of one stream

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from megaptm.errors import UserError
from megaptm.layers.context import ALONE, ContextRanks
from megaptm.layers.pattern import Pattern
from megaptm.layers.varlen import CROSS_OFFSETS, OFFSETS
from megaptm.spec import find_visibility

GLOBAL_POSITIONS = "global_positions"
"""Batch field with global positions, added by the engine: counting them in a layer would synchronize with the GPU."""


@dataclass(frozen=True)
class Mask:
    """Attention mask between the queries and keys of one attention, built once per forward pass."""

    length: tuple[int, int]
    """Numbers of queries and keys of the mask, (Q, K)."""
    device: torch.device
    documents: tuple[Tensor, Tensor] | None = None
    """Document ids [B, Q] and [B, K], 0 for padding. A position attends to its own document only. None: each sequence
    is one document without padding."""
    causal: bool = False
    """Whether no position attends to a later one."""
    order: Tensor | None = None
    """Attention order [B, Q]: a position attends to those whose order is at most its own. Prefix LM: zeros, then 1, 2
    ... Permutation LM: the permutation."""
    pattern: Pattern | None = None
    """Attention pattern that the mask applies. None: all pairs."""
    marks: Tensor | None = None
    """Marks of global tokens [B, S], not 0 at global positions, which attend and are attended to outside the
    pattern."""
    queries: Tensor | None = None
    """Positions of this context rank's queries, int64 [Q]; document ids and order then cover complete sequences. None:
    all positions."""
    global_positions: Tensor | None = None
    """Indices of global positions, [B, G] (`layers.sparse.global_positions`). None: not computed yet."""
    offsets: Tensor | None = None
    """Offsets of the documents (`layers.varlen`), equivalent to `documents`. None: not known."""
    by_offsets: bool = False
    """Whether the attention kernel takes document offsets, so that `for_kernel` returns these."""
    blocks: Tensor | None = None
    """FlexAttention blocks of the mask (`layers.kernels.pack_blocks`). None: not computed yet."""
    table: Tensor | None = field(init=False, default=None, compare=False, repr=False)
    """Lookup table of the attention pattern. Not a cached property: compiled code cannot read one."""

    def __post_init__(self) -> None:
        if self.pattern is not None:
            # Tensors of a dry run have no values, so they are cached apart.
            table = _table_of(self.pattern, max(self.length), self.device, detect_fake_mode())
            object.__setattr__(self, "table", table)

    def with_pattern(self, pattern: Pattern | None) -> Mask:
        """Return the attention mask with a pattern; this mask if the pattern hides nothing."""
        return self if pattern is None or pattern.attends_to_all(max(self.length)) else replace(self, pattern=pattern)

    def attends(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether queries attend to keys, for broadcastable batch, head, query and key indices."""
        return self.attends_by_position(batch, head, query, key) & self.attends_by_content(batch, query, key)

    def attends_by_content(self, batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return the part of the attention mask that depends on the batch: documents and order."""
        attended = torch.ones((), dtype=torch.bool, device=self.device)
        if self.documents is not None:
            query_documents, key_documents = self.documents[0][batch, query], self.documents[1][batch, key]
            # A padding query attends to everything, so that no softmax is over an empty set and gives NaN. Its output
            # is never read, because padding belongs to no document, so no gradient flows through it.
            attended = (query_documents == key_documents) | (query_documents == 0)
        if self.order is not None:
            attended = attended & (self.order[batch, key] <= self.order[batch, query])
        return attended

    def attends_by_position(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return the part of the attention mask that depends on positions: pattern, global tokens and causality."""
        attended = key <= query if self.causal else torch.ones((), dtype=torch.bool, device=self.device)
        if self.pattern is None:
            return attended
        near = self.pattern.attends(head, query, key, self.table)
        if self.marks is not None:
            near = near | (self.marks[batch, query] != 0) | (self.marks[batch, key] != 0)
        return attended & near

    @functools.cached_property
    def without_global_tokens(self) -> Mask:
        """Return the attention mask without global tokens."""
        return replace(self, marks=None)

    @functools.cached_property
    def dense(self) -> Tensor:
        """Return the dense attention mask, boolean [B, H, Q, K], True where the query attends to the key. B or H is 1
        if all are equal."""
        return self.dense_rows(slice(None))

    def dense_rows(self, chosen: slice) -> Tensor:
        """Return the dense attention mask of a range of the queries."""
        rows = next((len(field) for field in (self.order, self.marks) if field is not None), 1)
        rows = rows if self.documents is None else len(self.documents[0])
        heads = 1 if self.pattern is None or self.table is None else len(self.table)
        queries, keys = self.length
        indices: list[Tensor] = [torch.arange(number, device=self.device) for number in (rows, heads, queries, keys)]
        indices[2] = (indices[2] if self.queries is None else self.queries)[chosen]
        batch, head, query, key = (
            index.view([-1 if axis == dimension else 1 for axis in range(4)]) for dimension, index in enumerate(indices)
        )
        return self.attends(batch, head, query, key).expand(rows, heads, query.shape[2], keys)

    def for_kernel(self, bias: Tensor | None) -> Tensor | None:
        """Return the attention mask as kernels take it: boolean, a bias on the scores, or offsets of documents.

        `bias` is [1, H, Q, K]. Returns None if causality is the only restriction, so that attention can use its fast
        path.
        """
        if self.by_offsets:
            assert bias is None, "kernels that take offsets add nothing to the scores"
            return self.offsets
        special = self.documents is not None or self.order is not None or self.pattern is not None
        # Kernels with causality of their own expect complete sequences.
        special = special or (self.causal and self.queries is not None)
        if bias is None:
            return self.dense if special else None
        if not special and not self.causal:
            return bias
        return bias.masked_fill(~self.dense, float("-inf"))

    @property
    def stacked_fields(self) -> Tensor | None:
        """Return document ids, order and marks of global tokens, if present, as one tensor: [1 to 3, B, S].

        Attention with its own pattern needs only these from a batch. Recomputation saves this tensor.
        """
        if self.documents is None and self.order is None and self.marks is None:
            return None
        fields = [field for field in (self.order, self.marks) if field is not None]
        documents = torch.ones_like(fields[0]) if self.documents is None else self.documents[0]
        return torch.stack([documents, *(field.to(documents.dtype) for field in fields)])

    @classmethod
    def from_stacked_fields(
        cls,
        fields: Tensor | None,
        length: int,
        device: torch.device,
        *,
        visibility: str,
        pattern: Pattern | None,
        blocks: Tensor | None = None,
    ) -> Mask:
        """Build an attention mask from the tensor `fields`, causality and pattern of a stack, and `blocks` if
        computed."""
        causal, ordered = find_visibility(visibility)
        mask = cls((length, length), device, causal=causal, blocks=blocks).with_pattern(pattern)
        if fields is None:
            return mask
        marks = fields[1 + ordered] if len(fields) > 1 + ordered else None
        documents = (fields[0], fields[0])
        return replace(mask, documents=documents, order=fields[1] if ordered else None, marks=marks)


@functools.lru_cache(maxsize=256)
def _table_of(pattern: Pattern, length: int, device: torch.device, mode: object) -> Tensor | None:
    """Return the table of an attention pattern on the device; cached."""
    table = pattern.table(length)
    return None if table is None else torch.from_numpy(table).to(device)


def self_mask(batch: dict[str, Tensor], prefix: str, visibility: str, context: ContextRanks = ALONE) -> Mask:
    """Return the self-attention mask of a stack whose batch fields have this prefix: `tokens`, `document_ids`, `order`,
    `global_tokens`. `context`: ranks that divide the tokens."""
    names = ("tokens", "document_ids", "order", "global_tokens")
    tokens, documents, order, marks = (batch.get(prefix + name) for name in names)
    assert tokens is not None
    causal, ordered = find_visibility(visibility)
    if ordered and order is None:
        raise UserError(
            f"The batch has no {prefix}order, the attention mask of this model: use an objective that provides it."
        )
    length, queries = _divide(tokens, context)
    return Mask(
        (tokens.shape[1], length),
        tokens.device,
        (documents, documents) if documents is not None else None,
        causal=causal,
        order=order if ordered else None,
        marks=marks,
        queries=queries,
        global_positions=batch.get(prefix + GLOBAL_POSITIONS),
        offsets=batch.get(prefix + OFFSETS),
    )


def cross_mask(batch: dict[str, Tensor], queries: str, keys: str, context: ContextRanks = ALONE) -> Mask:
    """Return the cross-attention mask between two stacks: a position attends to its own document."""
    query, key = batch[queries + "tokens"], batch[keys + "tokens"]
    numbers = batch.get(queries + "document_ids"), batch.get(keys + "document_ids")
    if (numbers[0] is None) != (numbers[1] is None):
        raise UserError(
            f"The batch has document_ids for only one of {queries}tokens and {keys}tokens; provide both or neither."
        )
    both = (numbers[0], numbers[1]) if numbers[0] is not None and numbers[1] is not None else None
    positions, offsets = _divide(query, context)[1], batch.get(queries + CROSS_OFFSETS)
    length = query.shape[1], key.shape[1] * context.size
    return Mask(length, query.device, both, queries=positions, offsets=offsets)


def _divide(tokens_BL: Tensor, context: ContextRanks) -> tuple[int, Tensor | None]:
    """Return the length of complete sequences, and the positions in them of the tokens of this context rank."""
    length = tokens_BL.shape[1] * context.size
    return length, None if context.size == 1 else context.positions(length, tokens_BL.device)
