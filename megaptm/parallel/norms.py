"""Norms of gradients, weights and updates by group of layers (`train.norms_every`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.parallel.collectives import all_gather_object, copy_to_host
from megaptm.parallel.groups import device
from megaptm.parallel.hooks import EngineHook
from megaptm.parallel.model import ParallelModel
from megaptm.parallel.optimizers import Optimizer
from megaptm.parallel.optimizers.part import TensorPart

GROUPS_PER_STACK = 4
"""Maximum number of groups of consecutive layers of a stack."""
KINDS = ("gradient_norm", "weight_norm", "update_norm")
"""Metrics by group: gradient before clipping, float32 weights before the update, and change of the weights."""


class NormsHook(EngineHook):
    """Hook that measures norms every so many steps, with a copy of the float32 weights and one collective."""

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


def group_weights(names: Iterable[str]) -> dict[str, str]:
    """Return the group of each weight, in order: `embed`, `decoder.0-2` for layers 0 to 2, `decoder` for the rest of a
    stack, `heads`."""
    names = sorted(set(names), key=_sort_key)
    num_layers: dict[str, int] = defaultdict(int)
    for name in names:
        stack, layer, *_ = [*name.split("."), ""]
        if layer.isdecimal():
            num_layers[stack] = max(num_layers[stack], int(layer) + 1)
    groups = {}
    for name in names:
        stack, layer, *_ = [*name.split("."), ""]
        groups[name] = stack
        if layer.isdecimal():
            size = -(-num_layers[stack] // GROUPS_PER_STACK)
            first = int(layer) // size * size
            last = min(first + size, num_layers[stack]) - 1
            groups[name] = f"{stack}.{first}" if first == last else f"{stack}.{first}-{last}"
    return groups


def _sort_key(name: str) -> tuple[str, int, str]:
    stack, layer, *_ = [*name.split("."), ""]
    return stack, int(layer) if layer.isdecimal() else -1, name


def _sum_squares(tensors: list[Tensor]) -> Tensor:
    """Return the sum of squares of each tensor, float64."""
    if not tensors:
        return torch.zeros(0, dtype=torch.float64, device=device())
    return torch.stack(torch._foreach_norm(tensors)).double().square()
