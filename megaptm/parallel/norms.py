"""Norms of gradients, weights and updates by group of layers (`train.norms_every`)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.models.weight_groups import group_weights
from megaptm.parallel.collectives import all_gather_object, copy_to_host
from megaptm.parallel.groups import rank_device
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.model import ParallelModel
from megaptm.parallel.optimizers import Optimizer
from megaptm.parallel.optimizers.part import TensorPart

KINDS = ("gradient_norm", "weight_norm", "update_norm")
"""Metrics by group: gradient before clipping, float32 weights before the update, and change of the weights."""


class NormsHook(EngineHook):
    """Hook that measures norms at intervals of `every` steps, with a copy of the float32 weights and one collective."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._group_of: dict[str, int] = {}
        self._groups: list[str] = []
        self._parts: list[TensorPart] = []
        self._squares: list[Tensor] = []
        self._before: list[Tensor] | None = None
        self._metrics: dict[str, float] = {}

    def attach(self, model: ParallelModel) -> None:
        self._ranks = model.ranks

    @torch.no_grad()
    def before_update(self, optimizer: Optimizer, *, step: int, scale: float) -> None:
        if (step + 1) % self.every:
            return
        if not self._groups:
            self._find_groups(optimizer.parts)
        masters = [part.master for part in self._parts if part.master is not None]
        gradients = [torch.zeros_like(master) if master.grad is None else master.grad for master in masters]
        self._squares = [_sum_squares(gradients) / scale**2, _sum_squares(masters)]
        self._before = [master.clone() for master in masters]

    @torch.no_grad()
    def after_step(self) -> None:
        self._metrics = {}
        if self._before is None:
            return
        masters = [part.master for part in self._parts if part.master is not None]
        updates = [before.sub_(master) for before, master in zip(self._before, masters, strict=True)]
        self._squares.append(_sum_squares(updates))
        self._before = None
        indices = [self._group_of[part.placement.name] for part in self._parts if part.master is not None]
        sums = torch.zeros(len(KINDS), len(self._groups), dtype=torch.float64, device=self._squares[0].device)
        sums.index_add_(1, torch.tensor(indices, dtype=torch.long, device=sums.device), torch.stack(self._squares))
        dist.all_reduce(sums)
        for kind, squares in zip(KINDS, copy_to_host(sums), strict=True):
            self._metrics |= {f"{kind}/{group}": value**0.5 for group, value in zip(self._groups, squares, strict=True)}

    def metrics(self) -> dict[str, float]:
        return self._metrics

    def _find_groups(self, parts: Iterable[TensorPart]) -> None:
        """Find the groups of all weights of the model, and the parts of this rank that count: each element once."""
        parts = list(parts)
        all_names = [name for names in all_gather_object([part.placement.name for part in parts]) for name in names]
        group_of = group_weights(all_names)
        self._groups = list(dict.fromkeys(group_of.values()))
        self._group_of = {name: self._groups.index(group) for name, group in group_of.items()}
        self._parts = [part for part in parts if part.is_first_copy(self._ranks)]


def _sum_squares(tensors: list[Tensor]) -> Tensor:
    """Return the sum of squares of each tensor, float64."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64, device=rank_device())
    return torch.stack(torch._foreach_norm(tensors)).double().square()
