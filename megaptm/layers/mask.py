"""Who may look at whom: document numbers and the block's visibility, turned into what attention takes."""

# B batch, Q query positions, K key positions, H heads, A places asked about, M places remembered

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.layers.past import Past
from megaptm.spec import Block


@dataclass(frozen=True)
class Mask:
    """Visibility between the queries and the keys of one attention, built once per forward."""

    length: tuple[int, int]
    """(Q, K)"""
    device: torch.device
    documents: tuple[Tensor, Tensor] | None = None
    """Numbers [B, Q] and [B, K], 0 for padding: a position sees its own document and nothing else. None: every row is
    one document without padding."""
    causal: bool = False
    """Whether a position sees none after it."""
    order: Tensor | None = None
    """[B, Q]: a position sees those whose number is not above its own. A prefix is zeros before 1, 2 ...; a permutation
    is the permutation."""
    band: int | None = None
    """A position sees those less than so many places away."""
    asked: Tensor | None = None
    """[B, A]: where queries stand that run beside the text; they see what is before them in the order, not themselves.
    They are queries behind the Q."""
    past: Past | None = None
    """What is remembered of the rows before, which every position sees; keys before the K."""
    segments: Tensor | None = None
    """[B, Q]: the text that a position is of, for attention that tells; what is remembered is of text 0."""
    backward: Tensor | None = None
    """[B]: 1 of a row that is read from its end, for attention that knows distances."""

    def within(self, band: int) -> Mask:
        """The same, with a band; itself, where every place is within."""
        return self if band >= max(self.length) else replace(self, band=band)

    @cached_property
    def dense(self) -> Tensor:
        """Booleans, True where the key is seen: [B, 1, Q, K], or [1, 1, Q, K] where all rows are alike."""
        if self.documents is None:
            seen = torch.ones(1, 1, *self.length, dtype=torch.bool, device=self.device)
        else:
            query, key = self.documents[0][:, None, :, None], self.documents[1][:, None, None, :]
            # A query that is padding sees everything: no row of scores is empty, so no softmax gives NaN. Nobody
            # reads what it gathers, because padding is no one's document, so no gradient comes back through it.
            seen = (query == key) | (query == 0)
        beside = self._beside(seen) if self.asked is not None else None
        if self.order is not None:
            seen = seen & (self.order[:, None, None, :] <= self.order[:, None, :, None])
        if self.band is not None:
            seen = seen.tril(self.band - 1).triu(1 - self.band)
        if self.causal:
            seen = seen.tril()
        if beside is not None:
            seen = torch.cat([seen.expand(len(beside), -1, -1, -1), beside], 2)
        return seen if self.past is None else self._with_past(seen, self.past)

    def _beside(self, alike: Tensor) -> Tensor:
        """[B, 1, A, K]: what queries beside the text see; `alike` says which keys are of each position's document."""
        assert self.asked is not None
        if self.order is None:
            raise UserError(
                "queries beside the text see by an order, and the batch has none: take an objective of one."
            )
        rows = self.asked[:, None, :, None].expand(-1, -1, -1, self.length[1])
        of_document = alike.expand(len(self.asked), -1, -1, -1).gather(2, rows)
        return of_document & (self.order[:, None, None, :] < self.order.gather(1, self.asked)[:, None, :, None])

    def _with_past(self, seen: Tensor, past: Past) -> Tensor:
        """[B, 1, Q, M + K]: of what is remembered only the last places may be there."""
        if self.documents is not None:
            raise UserError(
                "rows with several documents cannot be told from what is remembered of rows before: set "
                "data.document_mask=false, or model.memory=0."
            )
        there = torch.arange(past.length, device=self.device) >= past.length - past.filled[:, None]
        there = there[:, None, None, :].expand(-1, 1, seen.shape[2], -1)
        if past.same_length:
            # A place sees as many as are remembered, itself among them.
            ages = torch.arange(self.length[0], device=self.device)[:, None] + past.length
            there = there & (ages - torch.arange(past.length, device=self.device) < past.length)
            seen = seen.tril().triu(1 - past.length)
        return torch.cat([there, seen.expand(len(there), -1, -1, -1)], 3)

    @cached_property
    def apart(self) -> Tensor | None:
        """[B, Q, K] of attention that tells segments: which keys, what is remembered among them, are of another."""
        if self.segments is None:
            return None
        queries = self.segments
        if self.asked is not None:
            queries = torch.cat([queries, queries.gather(1, self.asked)], 1)
        keys = self.segments
        if self.past is not None:
            keys = torch.cat([keys.new_zeros(len(keys), self.past.length), keys], 1)
        return queries[:, :, None] != keys[:, None, :]

    def scores(self, bias: Tensor | None) -> Tensor | None:
        """What is added to (or, as booleans, filters) the scores.

        `bias` is [1, H, Q, K]. None means that the layer's own direction, causal or not, says it all, which lets
        attention take its fast path.
        """
        special = self.documents is not None or self.order is not None or self.band is not None
        if bias is None:
            return self.dense if special else None
        if not special and not self.causal:
            return bias
        return bias.masked_fill(~self.dense, float("-inf"))


def self_mask(batch: dict[str, Tensor], prefix: str, block: Block, past: Past | None = None) -> Mask:
    """The mask within one stream of a batch, named by the prefix of its `tokens`, `document_ids` and `order`."""
    tokens, documents, order = (batch.get(prefix + name) for name in ("tokens", "document_ids", "order"))
    assert tokens is not None
    visibility = block.visibility
    if visibility == "ordered" and order is None:
        raise UserError(f"The batch has no {prefix}order, by which this model sees: take an objective that gives it.")
    return Mask(
        (tokens.shape[1], tokens.shape[1]),
        tokens.device,
        (documents, documents) if documents is not None else None,
        causal=visibility == "causal",
        order=order if visibility == "ordered" else None,
        asked=batch.get(f"{prefix}masked_positions") if block.query_stream else None,
        past=past,
        segments=batch.get(f"{prefix}segments") if block.relative_segments else None,
        backward=batch.get(f"{prefix}backward"),
    )


def cross_mask(batch: dict[str, Tensor], queries: str, keys: str) -> Mask:
    """The mask between two streams of a batch: a position sees all of the same document's."""
    query, key = batch[queries + "tokens"], batch[keys + "tokens"]
    numbers = batch.get(queries + "document_ids"), batch.get(keys + "document_ids")
    if (numbers[0] is None) != (numbers[1] is None):
        raise UserError(
            f"The batch has document numbers for one of {queries}tokens and {keys}tokens; give both or neither."
        )
    both = (numbers[0], numbers[1]) if numbers[0] is not None and numbers[1] is not None else None
    return Mask((query.shape[1], key.shape[1]), query.device, both)
