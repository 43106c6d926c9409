"""Modules whose `split` attribute names how their weight may be divided over tensor ranks.

`parallel` reads `split` and replaces the module by megatron-core's. On one device they are ordinary modules.

    columns      output features are divided (a head, or a slice of the feed-forward, is complete on one rank)
    rows         input features are divided; outputs are summed over ranks
    shared       replicated, but each rank uses the output differently: gradients are summed
    vocabulary   rows of the token table are divided
    heads        the last axis, which counts heads, is divided
    none         replicated, with equal outputs and gradients on every rank
"""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megaptm.layers.accumulate import EmbeddingLookup, linear
from megaptm.layers.costs import LinearShape


class Linear(nn.Linear):
    """Linear layer, [..., in] -> [..., out]; `split` is `columns`, `rows`, `shared` or `none`."""

    matrices, interleave = 1, 1
    sequence_parallel = False
    """Whether sequence parallelism divides the input or output of the linear layer."""
    adds_products = True
    """Whether only `layers.accumulate.linear` uses the weight of the linear layer, so that an engine may bypass
    autograd."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, split: str = "none") -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.split = split

    @classmethod
    def from_shape(cls, shape: LinearShape) -> Linear:
        """Build a linear layer of this shape."""
        linear = cls(shape.inputs, shape.outputs, bias=shape.bias, split=shape.split)
        linear.matrices, linear.interleave = shape.matrices, shape.interleave
        return linear

    def reset_parameters(self) -> None:
        """Do nothing: `models.initial` computes initial values from the seed and the parameter's name."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def identity(x: Tensor) -> Tensor:
    """Return x: default of hooks that move tensors between tensor ranks."""
    return x


class SequenceHooks:
    """Mixin of modules that need complete sequences, if tensor ranks may hold parts of them."""

    scatter_sequence: Callable[[Tensor], Tensor] = staticmethod(identity)
    """Hook that returns this tensor rank's part of a tensor along the sequence."""
    gather_sequence: Callable[[Tensor], Tensor] = staticmethod(identity)
    """Hook that returns the full sequence of a tensor from this tensor rank's part."""


@dataclass(frozen=True)
class TensorRanks:
    """Tensor ranks that divide heads or the vocabulary. The default is a single rank."""

    rank: int = 0
    sum: Callable[[Tensor], None] | None = None
    """Hook that sums over tensor ranks, in place. None: a single rank."""
    largest: Callable[[Tensor], None] | None = None
    """Hook that takes the maximum over tensor ranks, in place."""
    begin_sum: Callable[[Tensor], Callable[[], None]] | None = None
    """Hook that begins to sum over tensor ranks, in place, and returns a function that waits for the end."""
    reduce: Callable[[Tensor], Tensor] = identity
    """Hook that sums over tensor ranks, with a gradient."""
    sum_and_gradient: Callable[[Tensor], Tensor] = identity
    """Hook that sums over tensor ranks, as well as the gradient, since each rank uses the sum differently."""


class UsesTensorRanks:
    """Mixin of modules that combine results of tensor ranks themselves."""

    ranks = TensorRanks()


class Embedding(nn.Module):
    """Embedding table [rows, D]; `split` is `vocabulary` or `none`."""

    def __init__(self, rows: int, width: int, *, split: str = "none") -> None:
        super().__init__()
        self.rows, self.width, self.split = rows, width, split
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        looked_up: Tensor = EmbeddingLookup.apply(ids, self.weight)
        return looked_up


class HeadTable(nn.Module):
    """Learned position bias by distance bucket and head, [buckets, heads]; always split over heads."""

    split = "heads"

    def __init__(self, buckets: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))

    def forward(self, ids: Tensor) -> Tensor:
        looked_up: Tensor = EmbeddingLookup.apply(ids, self.weight)
        return looked_up


class VocabularyBias(nn.Module):
    """Learned bias of logits, one per row of the token table; split as the table."""

    split = "vocabulary"

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(rows))


class HeadBias(nn.Module):
    """Learned bias of head features, separate from its projection; always split over heads."""

    split = "columns"

    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(features))


class Dropout(nn.Module):
    """Dropout that samples in the context of `rng`, which selects a random generator.

    `masks` is `heads` (attention weights, or inside the feed-forward: tensor ranks hold different heads or features,
    so masks differ), `residual` (residual stream: equal masks on all tensor ranks, unless the sequence is split) or
    `replicated` (equal masks on all tensor ranks).
    """

    def __init__(self, rate: float, *, masks: str = "residual") -> None:
        super().__init__()
        self.rate, self.masks = rate, masks
        self.rng: Callable[[], AbstractContextManager[None]] = nullcontext

    @property
    def is_active(self) -> bool:
        return self.training and self.rate > 0.0

    def use_rng(self) -> AbstractContextManager[None]:
        """Return a context in which dropout samples from the generator of `rng`, which does not advance if dropout is
        off."""
        return self.rng() if self.is_active else nullcontext()

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_active:
            return x
        with self.use_rng():
            return F.dropout(x, self.rate, training=True)
