"""Modules that say how their weight may be split over ranks, and know nothing of ranks.

`parallel` reads `split` and puts megatron-core's module in the place of ours; on one device these are what they look
like.

    columns      output features are divided (a head, or a slice of the feed-forward, is whole on one rank)
    rows         input features are divided; the outputs are summed over ranks
    shared       all is the same on every rank, and each uses what it gives in a way of its own
    vocabulary   rows of the token table are divided
    heads        the last axis counts heads
    none         all is the same on every rank, and so is what is made of it
"""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.bricks import Map
from megaptm.layers.accumulate import Lookup
from megaptm.layers.product import linear


class Linear(nn.Linear):
    """A linear map [..., in] -> [..., out]; `split` is `columns`, `rows`, `shared` or `none`."""

    matrices, turn = 1, 1

    def __init__(self, inputs: int, outputs: int, *, bias: bool, split: str = "none") -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.split = split

    @classmethod
    def of(cls, map_: Map) -> Linear:
        """The map of a brick."""
        linear = cls(map_.inputs, map_.outputs, bias=map_.bias, split=map_.split)
        linear.matrices, linear.turn = map_.matrices, map_.turn
        return linear

    def reset_parameters(self) -> None:
        """Nothing: values come from `models.initial`, a function of the seed and the parameter's name."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """A table [rows, D] looked up by id; `split` is `vocabulary` or `none`."""

    def __init__(self, rows: int, width: int, *, split: str = "none") -> None:
        super().__init__()
        self.rows, self.width, self.split = rows, width, split
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        looked_up: Tensor = Lookup.apply(ids, self.weight)
        return looked_up


class HeadTable(nn.Module):
    """A learned number per bucket and head, [buckets, heads]; always split over heads."""

    split = "heads"

    def __init__(self, buckets: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))

    def forward(self, ids: Tensor) -> Tensor:
        looked_up: Tensor = Lookup.apply(ids, self.weight)
        return looked_up


class VocabularyBias(nn.Module):
    """A learned number per row of the token table, added to its logit; split as the table is."""

    split = "vocabulary"

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(rows))


class HeadBias(nn.Module):
    """A learned number per feature of each head, apart from the map that it is added to; always split over heads."""

    split = "columns"

    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(features))


class Dropout(nn.Module):
    """Dropout that draws from `stream`.

    `region` says where it stands: `heads` (on attention weights, or inside the feed-forward: ranks hold different heads
    or features and must draw differently), `residual` (on the residual stream: the same numbers on every tensor rank,
    or different ones where the sequence is split) or `replicated` (always the same on every tensor rank).
    """

    def __init__(self, rate: float, *, region: str = "residual") -> None:
        super().__init__()
        self.rate, self.region = rate, region
        self.stream: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def draws(self) -> bool:
        return self.training and self.rate > 0.0

    def drawing(self) -> AbstractContextManager[None]:
        """Within it random numbers are those of the stream; where none are drawn it is left alone."""
        return self.stream() if self.draws else nullcontext()

    def forward(self, x: Tensor) -> Tensor:
        if not self.draws:
            return x
        with self.drawing():
            return F.dropout(x, self.rate, training=True)
