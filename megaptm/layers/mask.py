"""Who may look at whom: document numbers and the direction of time, turned into what attention takes."""

# B batch, Q query positions, K key positions, H heads

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from megaptm.errors import UserError


@dataclass(frozen=True)
class Mask:
    """Visibility between the queries and the keys of one attention, built once per forward.

    `queries` [B, Q] and `keys` [B, K] are document numbers, 0 for padding: a position sees its own document and nothing
    else. Without them every row is one document without padding.
    """

    causal: bool
    length: tuple[int, int]
    """(Q, K)"""
    device: torch.device
    queries: Tensor | None = None
    keys: Tensor | None = None

    @functools.cached_property
    def dense(self) -> Tensor:
        """Booleans, True where the key is seen: [B, 1, Q, K], or [1, 1, Q, K] where all rows are alike."""
        if self.queries is None or self.keys is None:
            seen = torch.ones(1, 1, *self.length, dtype=torch.bool, device=self.device)
        else:
            query, key = self.queries[:, None, :, None], self.keys[:, None, None, :]
            # A query that is padding sees everything: no row of scores is empty, so no softmax gives NaN. Nobody
            # reads what it gathers, because padding is no one's document, so no gradient comes back through it.
            seen = (query == key) | (query == 0)
        return seen.tril() if self.causal else seen

    def scores(self, bias: Tensor | None) -> Tensor | None:
        """What is added to (or, as booleans, filters) the scores.

        `bias` is [1, H, Q, K]. None means that the layer's own direction, causal or not, says it all, which lets
        attention take its fast path.
        """
        documents = self.queries is not None
        if bias is None:
            return self.dense if documents else None
        if not documents and not self.causal:
            return bias
        return bias.masked_fill(~self.dense, float("-inf"))


def build_mask(batch: dict[str, Tensor], queries: str, keys: str, *, causal: bool) -> Mask:
    """The mask between two streams of a batch; each is named by the prefix of its `tokens` and `documents` [B, S]."""
    query, key = batch[queries + "tokens"], batch[keys + "tokens"]
    numbers = [batch.get(prefix + "documents") for prefix in (queries, keys)]
    if (numbers[0] is None) != (numbers[1] is None):
        raise UserError(
            f"The batch has document numbers for one of {queries}tokens and {keys}tokens; give both or neither."
        )
    return Mask(causal, (query.shape[1], key.shape[1]), query.device, *numbers)
