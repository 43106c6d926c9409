"""Layers of each pipeline stage: rules, and the cut by FLOPs where a config has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import inf

from megaptm.config.model import resolve_spec
from megaptm.config.objective_fit import sequence_lengths
from megaptm.config.schema import Config, Layout
from megaptm.errors import UserError
from megaptm.models.chunk import allows_heads_alone, model_chunks, sampling_heads
from megaptm.models.model_costs import PartCosts, count_part_costs
from megaptm.spec import LayerlessSpec, ModelSpec


def stage_division_errors(layout: Layout, spec: ModelSpec, title: str) -> Iterator[str]:
    """Yield errors of the division of a model into stages. `title`: its name in messages."""
    cut, number = layout.layers_by_chunk, layout.pipeline * layout.virtual
    name = "layout.pipeline" if layout.virtual == 1 else "layout.pipeline x layout.virtual"
    if layout.virtual > 1 and layout.pipeline == 1:
        yield f"layout.virtual ({layout.virtual}) needs layout.pipeline of at least 2."
    elif cut is None:
        if number > spec.layers:
            yield f"{name} ({number}) must be at most the {spec.layers} layers of {title}."
    elif layout.pipeline == 1:
        yield "layout.layers_per_stage needs layout.pipeline of at least 2; remove it."
    elif len(cut) != number:
        yield f"layout.layers_per_stage must have {number} entries ({name}), not {len(cut)}; auto cuts by FLOPs."
    elif sum(cut) != spec.layers:
        yield f"layout.layers_per_stage must have the {spec.layers} layers of {title} in all, not {sum(cut)}."
    elif 0 in cut[:-1]:
        yield "layout.layers_per_stage: only the last stage, which has the heads, may have 0 layers."
    else:
        if not cut[-1] and not allows_heads_alone(spec):
            yield f"layout.layers_per_stage: the last stage of {title} needs a layer; its heads cannot be alone."
        try:
            model_chunks(spec, number, cut)
        except UserError as error:
            yield str(error)


def with_stage_division(config: Config) -> Config:
    """Return the config with numbers in `layout.layers_per_stage`; absent if they are equal. Raises `UserError` if
    there are too few layers."""
    spec, layout = resolve_spec(config), config.layout
    if isinstance(spec, LayerlessSpec):
        return config
    batch = config.batch_spec

    def count() -> PartCosts:
        return count_part_costs(
            spec,
            sequence_lengths(batch, spec.family),
            num_predicted=batch.num_predicted,
            appended=batch.num_appended,
            heads=config.built_objective.losses,
            recompute=layout.recompute,
            recompute_every=layout.recompute_every,
        )

    return config.model_copy(update={"layout": layout_with_stages(layout, spec, count)})


def layout_with_stages(layout: Layout, spec: ModelSpec, count: Callable[[], PartCosts]) -> Layout:
    """Return the layout with numbers in `layers_per_stage`; None if they are equal. `count`: costs for a cut by
    cost."""
    number = layout.pipeline * layout.virtual
    if layout.layers_by_chunk is not None or (layout.layers_per_stage is None and has_equal_stages(spec, number)):
        return layout
    if number == 1:
        return layout.model_copy(update={"layers_per_stage": None})
    cut = layers_by_cost(spec, count(), pipeline=layout.pipeline, virtual=layout.virtual)
    return layout.model_copy(update={"layers_per_stage": None if len({*cut}) == 1 else cut})


def has_equal_stages(spec: ModelSpec, number: int) -> bool:
    """Whether a model can be cut into chunks of equally many layers."""
    if spec.layers % number:
        return False
    try:
        model_chunks(spec, number)
    except UserError:  # a head reads layers of several chunks
        return False
    return True


def layers_by_cost(spec: ModelSpec, costs: PartCosts, *, pipeline: int, virtual: int = 1) -> tuple[int, ...]:
    """Return the layers of each pipeline chunk, in the order of the model, for which the slowest stage is fastest.

    Exact for one chunk per stage. With several, the slowest chunk is made as fast as possible; then layers are moved
    between chunks while this makes the slowest stage faster. The last chunk may have only heads. Raises `UserError` if
    there are too few layers.
    """
    parts = _smallest_parts(spec, costs)
    if pipeline * virtual > len(parts):
        raise UserError(
            f"{spec.name}: its {spec.layers} layers make at most {len(parts)} pipeline chunks, not {pipeline} x "
            f"{virtual}: lower layout.pipeline or layout.virtual."
        )
    part_costs = [cost for _, cost in parts]
    sizes = balanced_group_sizes(part_costs, pipeline * virtual)
    if virtual > 1:
        sizes = _with_faster_stages(part_costs, sizes, pipeline)
    bounds = [*accumulate(sizes, initial=0)]
    return tuple(sum(layers for layers, _ in parts[start:stop]) for start, stop in pairwise(bounds))


def _smallest_parts(spec: ModelSpec, costs: PartCosts) -> list[tuple[int, float]]:
    """Return layers and cost of the smallest parts of a model that may be in different chunks. The last one has the
    heads that read full stacks, and no layer if these may be alone."""
    starts, last, total = {}, {}, 0
    for name in spec.family.stacks:
        starts[name], last[name] = total, total + spec.size_of(name).layers - 1
        total += spec.size_of(name).layers
    part_costs = [*costs.layers, 0.0]
    for name, cost in costs.inputs.items():
        part_costs[last[spec.family.sampling_stack(name)] if name in spec.family.sampled else 0] += cost
    joined: set[int] = set()
    """Layers that must be in the same chunk as the layer before."""
    for head in spec.family.heads:
        inputs = spec.head_inputs(head)
        if head in sampling_heads(spec):
            read = [last[inputs[0].stack]]
        else:
            read = [total if layer is None else starts[stack] + layer for stack, layer in inputs]
        joined.update(range(min(read) + 1, max(read) + 1))
        part_costs[max(read)] += costs.heads.get(head, 0.0)
    if not allows_heads_alone(spec):
        joined.add(total)
    parts: list[tuple[int, float]] = []
    for index, cost in enumerate(part_costs):
        part = (int(index < total), cost)
        if index in joined:
            before = parts.pop()
            part = (before[0] + part[0], before[1] + part[1])
        parts.append(part)
    return parts


def balanced_group_sizes(costs: Sequence[float], number: int) -> list[int]:
    """Return the sizes of `number` consecutive groups of layers, none empty, whose largest cost is smallest.

    Among these it minimizes the sum of squares; early groups are smaller, because their stages hold more micro-batches.
    """
    sums = [*accumulate(costs, initial=0.0)]
    limit = _smallest_limit(sums, number)
    total = len(costs)
    # best[i]: smallest sum of squares of the costs from i on, divided into the number of groups so far, and the end of
    # the first of them.
    best: list[float] = [inf] * total + [0.0]
    ends: list[list[int]] = []
    for groups in range(1, number + 1):
        following, best, end = best, [inf] * (total + 1), [0] * (total + 1)
        for start in range(total - groups + 1):
            for stop in range(start + 1, total + 1):
                if (cost := sums[stop] - sums[start]) > limit:
                    break
                if (squares := cost * cost + following[stop]) < best[start]:
                    best[start], end[start] = squares, stop
        ends.append(end)
    sizes, start = [], 0
    for end in reversed(ends):
        sizes.append(end[start] - start)
        start = end[start]
    return sizes


def _smallest_limit(sums: Sequence[float], number: int) -> float:
    """Return the smallest possible maximum of the costs of `number` consecutive groups of layers. `sums`: cumulative
    costs."""
    total = len(sums) - 1
    limits = sorted({sums[stop] - sums[start] for start in range(total) for stop in range(start + 1, total + 1)})
    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if _num_groups(sums, limits[middle]) <= number:
            high = middle
        else:
            low = middle + 1
    return limits[low]


def _num_groups(sums: Sequence[float], limit: float) -> float:
    """Return the smallest number of consecutive groups of layers of at most this cost; infinity if a layer has more."""
    groups, start = 1, 0
    for stop in range(1, len(sums)):
        if sums[stop] - sums[stop - 1] > limit:
            return inf
        if sums[stop] - sums[start] > limit:
            groups, start = groups + 1, stop - 1
    return groups


def _with_faster_stages(costs: Sequence[float], sizes: list[int], pipeline: int) -> list[int]:
    """Move single layers from the slowest pipeline stage to others while this makes the slowest stage faster."""
    sums = [*accumulate(costs, initial=0.0)]

    def stage_costs(sizes: Sequence[int]) -> list[float]:
        groups = [sums[stop] - sums[start] for start, stop in pairwise(accumulate(sizes, initial=0))]
        return [sum(groups[stage::pipeline]) for stage in range(pipeline)]

    def move_layer(sizes: Sequence[int], source: int, target: int) -> list[int]:
        changed = [*sizes]
        changed[source], changed[target] = changed[source] - 1, changed[target] + 1
        return changed

    stages = stage_costs(sizes)
    while True:
        slowest = stages.index(max(stages))
        candidates = [
            move_layer(sizes, source, target)
            for source in range(slowest, len(sizes), pipeline)
            for target in range(len(sizes))
            if sizes[source] > 1 and target % pipeline != slowest
        ]
        rated = [
            (max(own := stage_costs(changed)), sum(cost * cost for cost in own), changed) for changed in candidates
        ]
        if not rated or min(rated)[0] >= max(stages):
            return sizes
        sizes = min(rated)[2]
        stages = stage_costs(sizes)
