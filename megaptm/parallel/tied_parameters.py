"""Sum of gradients of parameters that several pipeline stages hold (a tied token table, T5's bias table).

All copies have the same initial value (a function of the name) and get the same gradient, so they stay equal. One copy
counts in the gradient norm and is written to the checkpoint.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import nn

from megaptm.config import Layout
from megaptm.parallel.groups import Ranks
from megaptm.parallel.stage import Stage


class TiedParameters:
    """Copies of tied parameters on several pipeline stages, and the process groups that sum their gradients."""

    def __init__(self, stages: list[Stage], layout: Layout, ranks: Ranks, *, timeout_minutes: float = 30.0) -> None:
        self._timeout = timedelta(minutes=timeout_minutes)
        self._copies: dict[str, list[nn.Parameter]] = {}
        self._groups: dict[str, dist.ProcessGroup] = {}
        if layout.pipeline == 1:
            return
        own_names = [
            (chunk, placement.name) for chunk, stage in enumerate(stages) for placement, _ in stage.placed_parameters()
        ]
        names_by_stage: list[list[tuple[int, str]]] = [[] for _ in range(layout.pipeline)]
        dist.all_gather_object(names_by_stage, own_names, group=parallel_state.get_pipeline_model_parallel_group())
        holders: dict[str, list[tuple[int, int]]] = defaultdict(list)  # name -> (chunk, stage), in pipeline order
        for stage_rank, names in enumerate(names_by_stage):
            for chunk, name in names:
                holders[name].append((chunk, stage_rank))
        shared = {name: sorted(copies) for name, copies in holders.items() if len(copies) > 1}
        stage_sets = {name: tuple(sorted({stage for _, stage in copies})) for name, copies in shared.items()}
        groups = self._open_groups({*stage_sets.values()}, ranks)
        for name, (first_copy, *_) in shared.items():
            copies = [
                (chunk, parameter)
                for chunk, stage in enumerate(stages)
                for placement, parameter in stage.placed_parameters()
                if placement.name == name
            ]
            for chunk, parameter in copies:
                # In a bucket of its own, so that the distributed optimizer divides it equally on every stage that holds
                # it.
                parameter.shared_embedding = True  # type: ignore[attr-defined]
                parameter.shared = (chunk, ranks.pipeline) != first_copy  # type: ignore[attr-defined]
            if copies:
                self._copies[name] = [parameter for _, parameter in copies]
                if (group := groups[stage_sets[name]]) is not None:
                    self._groups[name] = group

    def _open_groups(
        self, stage_sets: set[tuple[int, ...]], ranks: Ranks
    ) -> dict[tuple[int, ...], dist.ProcessGroup | None]:
        """Create a process group per set of stages for this rank's replica and tensor rank. Every process creates all
        groups in the same order."""
        grid = torch.arange(dist.get_world_size()).view(ranks.pipeline_size, ranks.replicas, ranks.tensor_size)
        groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for stages in sorted(stage_sets):
            groups[stages] = None
            if len(stages) == 1:
                continue
            for replica in range(ranks.replicas):
                for tensor in range(ranks.tensor_size):
                    group = dist.new_group(grid[list(stages), replica, tensor].tolist(), timeout=self._timeout)
                    if (replica, tensor) == (ranks.replica, ranks.tensor) and ranks.pipeline in stages:
                        groups[stages] = group
        return groups

    def sum_gradients(self) -> None:
        """Set the gradient of every copy of a tied parameter to the sum over all copies."""
        for name in sorted(self._copies):
            gradients = [_main_grad(parameter) for parameter in self._copies[name]]
            for other in gradients[1:]:
                gradients[0].add_(other)
            if name in self._groups:
                dist.all_reduce(gradients[0], group=self._groups[name])
            for other in gradients[1:]:
                other.copy_(gradients[0])


def _main_grad(parameter: nn.Parameter) -> torch.Tensor:
    return parameter.main_grad  # type: ignore[attr-defined]
