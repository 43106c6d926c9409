"""FLOPs of each layer of a model, and division of its layers into pipeline stages of equal cost. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf

from megaptm.errors import UserError
from megaptm.layers.layer_costs import memory_width, passes_by_kind, sublayers
from megaptm.models.chunk import allows_heads_alone, sampling_heads
from megaptm.models.embed_costs import inputs_read, widening_projections
from megaptm.models.head_costs import head_costs
from megaptm.spec import Block, ModelSpec


@dataclass(frozen=True)
class MultiplyAdds:
    """Multiply-adds of a sequence in a forward pass, grouped by the gradients that the backward pass computes."""

    with_gradients: int = 0
    """Multiply-adds of products with gradients of input and weight."""
    weight_only: int = 0
    no_gradients: int = 0

    def __add__(self, other: MultiplyAdds) -> MultiplyAdds:
        return MultiplyAdds(
            self.with_gradients + other.with_gradients,
            self.weight_only + other.weight_only,
            self.no_gradients + other.no_gradients,
        )

    def __mul__(self, times: int) -> MultiplyAdds:
        return MultiplyAdds(self.with_gradients * times, self.weight_only * times, self.no_gradients * times)

    @property
    def forward(self) -> int:
        return self.with_gradients + self.weight_only + self.no_gradients

    @property
    def step(self) -> int:
        """Multiply-adds of a sequence in forward and backward pass."""
        return 3 * self.with_gradients + 2 * self.weight_only + self.no_gradients


def layer_multiply_adds(
    spec: ModelSpec, stack: str, kind: Block, lengths: Mapping[str, int], *, attention_only: bool = False
) -> MultiplyAdds:
    """Return the multiply-adds of a layer per sequence. `kind`: its block. `lengths`: stack -> sequence length.

    Attention counts all query-key pairs. Projections of a distance table, once per pass, are not counted.
    `attention_only`: without the feed-forward.
    """
    memory, total = lengths[kind.cross] if kind.cross else 0, MultiplyAdds()
    for sub in sublayers(kind, spec.size_of(stack), memory_width(spec, stack)):
        if attention_only and not sub.is_attention:
            continue
        own, keys = lengths[stack], memory if sub.name == "cross" else lengths[stack]
        linears = [
            linear for linear in sub.costs.linears.values() if not (linear.reads_distances or linear.global_only)
        ]
        products = sum((keys if linear.reads_memory else own) * linear.weights for linear in linears)
        # Keys and values of the recurrence cache have weight gradients but no input gradients. Hashes have no
        # gradients.
        total += MultiplyAdds(
            products + 2 * sub.costs.pairs(own, keys) * sub.costs.features,
            sub.costs.cache_multiply_adds,
            sub.costs.hash_multiply_adds(own),
        )
    return total


def input_multiply_adds(spec: ModelSpec, lengths: Mapping[str, int], appended: int) -> MultiplyAdds:
    """Return the multiply-adds of the embedding of some stacks. `appended`: positions after the text of a sequence."""
    widened = widening_projections(spec)
    total = MultiplyAdds(sum(lengths[name] * linear.weights for name, linear in widened.items() if name in lengths))
    for costs, positions in inputs_read(spec, lengths, appended):
        total += MultiplyAdds(*costs.multiply_adds(positions))
    return total


@dataclass(frozen=True)
class ChainCosts:
    """Costs of the layers, embeddings and heads of a model, in any unit, for its division into pipeline stages."""

    layers: Sequence[float]
    """Cost of each layer of the model (all stacks, end to end)."""
    inputs: Mapping[str, float]
    """Cost of the embedding of each stack."""
    heads: Mapping[str, float]


def count_chain(
    spec: ModelSpec,
    lengths: Mapping[str, int],
    *,
    num_predicted: int | None = None,
    appended: int = 0,
    heads: Collection[str],
    recompute: str = "none",
    recompute_every: int = 1,
) -> ChainCosts:
    """Return the multiply-adds of a training step on one sequence, by part of the model. `heads`: heads with a loss.
    `recompute`: recomputation of every n-th layer, `layout.recompute`."""
    layers = []
    for name, block in spec.family.stacks.items():
        size = spec.size_of(name)
        for number in range(size.layers):
            kind = block.at(number)
            repeats = passes_by_kind(block, size, (number,))[kind]
            own = layer_multiply_adds(spec, name, kind, lengths)
            again = MultiplyAdds()
            if recompute != "none" and number % recompute_every == 0:
                again = layer_multiply_adds(spec, name, kind, lengths, attention_only=recompute == "attention")
            layers.append(repeats * (own.step + again.forward))
    costs = head_costs(spec)
    return ChainCosts(
        layers,
        {
            name: input_multiply_adds(spec, {name: length}, appended if not index else 0).step
            for index, (name, length) in enumerate(lengths.items())
        },
        {
            name: 3 * costs[name].multiply_adds(costs[name].positions_read(lengths[costs[name].stack], num_predicted))
            for name in heads
        },
    )


def layers_by_cost(spec: ModelSpec, costs: ChainCosts, *, pipeline: int, virtual: int = 1) -> tuple[int, ...]:
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
    sizes = partition(part_costs, pipeline * virtual)
    if virtual > 1:
        sizes = _with_faster_stages(part_costs, sizes, pipeline)
    bounds = [*accumulate(sizes, initial=0)]
    return tuple(sum(layers for layers, _ in parts[start:stop]) for start, stop in pairwise(bounds))


def _smallest_parts(spec: ModelSpec, costs: ChainCosts) -> list[tuple[int, float]]:
    """Return layers and cost of the smallest parts of a model that may be in different chunks. The last one has the
    heads that read full stacks, and no layer if these may be alone."""
    starts, last, total = {}, {}, 0
    for name in spec.family.stacks:
        starts[name], last[name] = total, total + spec.size_of(name).layers - 1
        total += spec.size_of(name).layers
    part_costs = [*costs.layers, 0.0]
    for name, cost in costs.inputs.items():
        part_costs[last[spec.family.source(name)] if name in spec.family.sampled else 0] += cost
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


def partition(costs: Sequence[float], number: int) -> list[int]:
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
