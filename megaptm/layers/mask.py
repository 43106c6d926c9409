"""Who may look at whom: document numbers and the block's visibility, turned into what attention takes."""

# B batch, Q query positions, K key positions, H heads

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from megaptm.errors import UserError


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

    def within(self, band: int) -> Mask:
        """The same, with a band; itself, where every place is within."""
        return self if band >= max(self.length) else replace(self, band=band)

    @functools.cached_property
    def dense(self) -> Tensor:
        """Booleans, True where the key is seen: [B, 1, Q, K], or [1, 1, Q, K] where all rows are alike."""
        if self.documents is None:
            seen = torch.ones(1, 1, *self.length, dtype=torch.bool, device=self.device)
        else:
            query, key = self.documents[0][:, None, :, None], self.documents[1][:, None, None, :]
            # A query that is padding sees everything: no row of scores is empty, so no softmax gives NaN. Nobody
            # reads what it gathers, because padding is no one's document, so no gradient comes back through it.
            seen = (query == key) | (query == 0)
        if self.order is not None:
            seen = seen & (self.order[:, None, None, :] <= self.order[:, None, :, None])
        if self.band is not None:
            seen = seen.tril(self.band - 1).triu(1 - self.band)
        return seen.tril() if self.causal else seen

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


def self_mask(batch: dict[str, Tensor], prefix: str, visibility: str) -> Mask:
    """The mask within one stream of a batch, named by the prefix of its `tokens`, `document_ids` and `order`."""
    tokens, documents, order = (batch.get(prefix + name) for name in ("tokens", "document_ids", "order"))
    assert tokens is not None
    if visibility == "ordered" and order is None:
        raise UserError(f"The batch has no {prefix}order, by which this model sees: take an objective that gives it.")
    return Mask(
        (tokens.shape[1], tokens.shape[1]),
        tokens.device,
        (documents, documents) if documents is not None else None,
        causal=visibility == "causal",
        order=order if visibility == "ordered" else None,
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
