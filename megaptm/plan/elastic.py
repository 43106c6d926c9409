"""Choice of a smaller layout after devices are lost: the nearest layout that still fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from megaptm.config import Config, Layout, resolve_model
from megaptm.config.check import refuse_invalid_config
from megaptm.errors import UserError
from megaptm.plan.machine import Machine
from megaptm.plan.memory import estimate_memory, fullest_stage
from megaptm.plan.search import divisors
from megaptm.plan.workload import make_workload


def elastic_layout(config: Config, room: Callable[[int], int], machine: Machine | None = None) -> Layout | None:
    """Return the largest layout of the config that fits the remaining devices, or None if all are too large.

    `room(t)`: number of ranks that get a device in groups of t. Layouts that differ in the data ranks alone come
    first, because their ranks hold the same weights as before. If `machine` is given, the memory of the fullest rank
    must suffice.
    """
    return next(
        (
            candidate
            for candidate in _candidate_layouts(config, room)
            if _is_legal(config, candidate) and _fits_memory(config, candidate, machine)
        ),
        None,
    )


def _candidate_layouts(config: Config, room: Callable[[int], int]) -> Iterator[Layout]:
    """Yield layouts of the config for which there are enough devices, nearest first."""
    layout, spec = config.layout, resolve_model(config)
    for data in range(min(layout.data, room(layout.tensor) // layout.model_ranks), 0, -1):
        yield layout.model_copy(
            update={"data": data, "full_sharding": layout.full_sharding and data * layout.context > 1}
        )
    other_layouts = [
        _with_sizes(layout, tensor=tensor, context=context, pipeline=pipeline, data=data)
        for tensor in divisors(spec.size.heads, limit=room(1))
        for context in divisors(layout.context)
        for pipeline in sorted({*divisors(spec.layers), layout.pipeline})
        if tensor * context * pipeline <= room(tensor)
        for data in divisors(config.train.batch, limit=room(tensor) // (tensor * context * pipeline))
    ]
    yield from sorted(other_layouts, key=lambda candidate: (-candidate.processes, _layout_distance(candidate, layout)))


def _with_sizes(layout: Layout, *, tensor: int, context: int, pipeline: int, data: int) -> Layout:
    same_pipeline = pipeline == layout.pipeline
    return layout.model_copy(
        update={
            "tensor": tensor,
            "context": context,
            "pipeline": pipeline,
            "data": data,
            "virtual": layout.virtual if same_pipeline else 1,
            "layers_per_stage": layout.layers_per_stage if same_pipeline else None,
            "sequence_parallel": layout.sequence_parallel and tensor > 1,
            "full_sharding": layout.full_sharding and data * context > 1,
        }
    )


def _layout_distance(candidate: Layout, layout: Layout) -> tuple[int, ...]:
    return tuple(abs(getattr(candidate, axis) - getattr(layout, axis)) for axis in ("tensor", "context", "pipeline"))


def _is_legal(config: Config, layout: Layout) -> bool:
    try:
        refuse_invalid_config(config.model_copy(update={"layout": layout}))
    except UserError:
        return False
    return True


def _fits_memory(config: Config, layout: Layout, machine: Machine | None) -> bool:
    if machine is None:
        return True
    needed = estimate_memory(make_workload(config.model_copy(update={"layout": layout})))
    return needed[fullest_stage(needed)].total <= machine.usable_bytes
