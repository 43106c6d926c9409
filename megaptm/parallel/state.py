"""What an engine has to remember - weights, moments - as named pieces of whole tensors, and back from them.

Names: `weight/<parameter>` (fp32: the master copy where the model runs in bf16), `exp_avg/<parameter>`,
`exp_avg_sq/<parameter>`. The same names and shapes for every layout, so that any layout reads what any other wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer
from torch import Tensor, nn

from megaptm.checkpoint.boxes import span_boxes
from megaptm.checkpoint.tensors import Piece, Reader
from megaptm.parallel.engine import Engine
from megaptm.parallel.split import Placement

MOMENTS = ("exp_avg", "exp_avg_sq")


def pieces(engine: Engine) -> Iterator[Piece]:
    """The pieces this process has to write: each element of each tensor comes from exactly one process."""
    for place, parameter in _parameters(engine):
        if getattr(parameter, "shared", False) or (place.axis is None and engine.ranks.tensor > 0):
            continue
        memory = _Memory(engine.optimizer, parameter)
        if memory.span is None and engine.ranks.data > 0:
            continue
        for kind, data in memory.tensors().items():
            yield Piece(
                name=f"{kind}/{place.name}",
                shape=place.shape,
                offset=place.offset,
                block=tuple(parameter.shape),
                data=data.detach().float().reshape(-1) if memory.span else data.detach().float(),
                span=memory.span,
            )


def restore(engine: Engine, reader: Reader, *, step: int) -> None:
    """Set weights and moments from a checkpoint of any layout; `step` updates have been made to them."""
    with torch.no_grad():
        for place, parameter in _parameters(engine):
            shape = tuple(parameter.shape)
            weight = reader.read(f"weight/{place.name}", place.offset, shape)
            memory = _Memory(engine.optimizer, parameter)
            moments = {}
            if memory.master is not None and step > 0:  # an imported model, at step 0, has no moments
                moments = {kind: memory.read(reader, f"{kind}/{place.name}", place.offset) for kind in MOMENTS}
            parameter.copy_(weight)
            memory.set(weight, moments, step)


def _parameters(engine: Engine) -> Iterator[tuple[Placement, nn.Parameter]]:
    for stage in engine.stages:
        yield from stage.placed_parameters()


class _Memory:
    """What the optimizer holds for one model parameter on this process, whichever optimizer it is."""

    def __init__(self, optimizer: Any, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.span: tuple[int, int] | None = None
        self.master: Tensor | None = None
        if not parameter.requires_grad:
            return
        inner = optimizer.chained_optimizers[0] if isinstance(optimizer, ChainedOptimizer) else optimizer
        self.torch_optimizer = inner.optimizer
        if isinstance(inner, DistributedOptimizer):
            self._find_span(inner)
        else:
            self.master = getattr(parameter, "main_param", parameter)

    def _find_span(self, optimizer: DistributedOptimizer) -> None:
        place = optimizer.model_param_group_index_map.get(self.parameter)
        self.span = (0, 0)
        if place is not None:
            group, order = place
            self.master = optimizer.optimizer.param_groups[group]["params"][order]
            owned = optimizer._get_model_param_range_map(self.parameter)["param"]
            self.span = (owned.start, owned.end)

    def tensors(self) -> dict[str, Tensor]:
        """Name -> values held here; nothing when another data rank holds them."""
        if self.master is None:
            return {} if self.span else {"weight": self.parameter}
        moments = self.torch_optimizer.state.get(self.master, {})  # nothing before the first step: zeros
        return {
            "weight": self.master,
            **{kind: moments.get(kind, torch.zeros_like(self.master)) for kind in MOMENTS},
        }

    def set(self, weight: Tensor, moments: dict[str, Tensor], step: int) -> None:
        if self.master is None:
            return
        self.master.copy_(self._held(weight))
        if not moments:
            return
        state: dict[str, Any] = {kind: value.to(self.master, copy=True) for kind, value in moments.items()}
        groups = self.torch_optimizer.param_groups
        if "fused" in groups[0]:
            # A count of its own for each parameter: torch advances it once per parameter it finds it on.
            state["step"] = torch.tensor(float(step), device=self.master.device)
        else:
            for group in groups:  # apex counts once per group
                group["step"] = step
        self.torch_optimizer.state[self.master] = state

    def read(self, reader: Reader, name: str, offset: tuple[int, ...]) -> Tensor:
        """As much of a tensor as is held here: with many data ranks a small part of the block at `offset`."""
        shape = tuple(self.parameter.shape)
        if self.span is None:
            return reader.read(name, offset, shape)
        boxes = [box.moved(offset) for box in span_boxes(shape, *self.span)]
        parts = [reader.read(name, box.offset, box.shape).reshape(-1) for box in boxes]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def _held(self, whole: Tensor) -> Tensor:
        return whole if self.span is None else whole.reshape(-1)[self.span[0] : self.span[1]]
