"""Search of all legal layouts of a config: the fastest layout that fits, and reasons for rejecting others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from megaptm.config import Config, Layout
from megaptm.config.check import check_layout
from megaptm.config.stage_division import has_equal_stages, layout_with_stages
from megaptm.errors import UserError
from megaptm.plan.machine import Machine
from megaptm.plan.memory import estimate_memory, fullest_stage
from megaptm.plan.stages import CountedStage, count_stages
from megaptm.plan.step import StepTime, estimate_step
from megaptm.plan.workload import Workload, make_workload

MIN_CONTEXT_POSITIONS = 4096
"""Minimum number of positions of a sequence that a context rank gets in a search: fewer are better divided by other
axes."""
MAX_MEMORY_SHARE = 0.95
"""Share of a device's memory that a searched layout may fill; the formulas of activations have errors of a few
percent."""


@dataclass(frozen=True)
class Candidate:
    """Legal layout of a search, with its step time and the memory of its fullest rank."""

    layout: Layout
    step: StepTime
    bytes: float
    stage: int
    """Pipeline stage with the most memory in this layout."""


@dataclass(frozen=True)
class LayoutSearch:
    """Result of a search of layouts."""

    fitting: list[Candidate]
    """Layouts that fit in memory, fastest first."""
    too_large: list[Candidate]
    """Legal layouts that need more memory than a rank has, smallest first."""
    refused: Counter[str]
    """Number of layouts rejected, by reason."""


def search_layouts(config: Config, machine: Machine, devices: int) -> LayoutSearch:
    """Return all layouts of `config`, which is valid, on exactly `devices` devices."""
    fitting: list[Candidate] = []
    too_large: list[Candidate] = []
    refused = Counter[str]()
    base = make_workload(config)
    known: dict[
        tuple[int, int, int, tuple[int, ...] | None], list[CountedStage]
    ] = {}  # independent of micro-batch and recomputation
    for layout in _list_layouts(config, machine, devices):
        try:
            check_layout(config.model_copy(update={"layout": layout}))
        except UserError as error:
            refused[_short_reason(str(error))] += 1
            continue
        work = replace(base, layout=layout, recompute=layout.recompute)
        split = (layout.tensor, layout.pipeline, layout.virtual, layout.layers_by_chunk)
        if split not in known:
            known[split] = count_stages(work)
        candidate = _make_candidate(machine, work, known[split])
        (fitting if candidate.bytes <= MAX_MEMORY_SHARE * machine.usable_bytes else too_large).append(candidate)
    fitting.sort(key=lambda entry: entry.step.seconds)
    too_large.sort(key=lambda entry: entry.bytes)
    return LayoutSearch(fitting, too_large, refused)


def fastest_layout(result: LayoutSearch, config: Config, machine: Machine, devices: int) -> Candidate:
    """Return the fastest layout of a search that fits. If no layout fits, raise UserError with the one that needs the
    least memory."""
    if result.fitting:
        return result.fitting[0]
    where = f"{config.model.family}/{config.model.size} on {devices:,} x {machine.name}"
    if not result.too_large:
        reasons = "; ".join(f"{reason} ({number})" for reason, number in result.refused.most_common(2))
        raise UserError(
            f"{where}: no layout is possible: {reasons}; use another number of devices, or change train.batch."
        )
    smallest, room = result.too_large[0].bytes / 2**30, MAX_MEMORY_SHARE * machine.usable_bytes / 2**30
    raise UserError(
        f"{where}: no layout fits: the smallest needs {smallest:.1f} GiB of a device's {room:.1f}; use more "
        "devices, or larger ones."
    )


def _make_candidate(machine: Machine, work: Workload, stages: list[CountedStage]) -> Candidate:
    needed = estimate_memory(work, stages)
    stage = fullest_stage(needed)
    return Candidate(work.layout, estimate_step(machine, work, stages), needed[stage].total, stage)


def _list_layouts(config: Config, machine: Machine, devices: int) -> Iterator[Layout]:
    """Yield sensible layouts: tensor ranks within a node, context ranks for long sequences, a distributed optimizer if
    several ranks hold the same weights; of a config with full sharding, only layouts with it."""
    work = make_workload(config)
    layers, full_sharding = work.spec.layers, config.layout.full_sharding

    @cache
    def cuts(pipeline: int, virtual: int, recompute: str) -> list[tuple[int, ...] | None]:
        """Return two divisions of the layers into stages: equal numbers of layers, if possible, and equal FLOPs."""
        even = [None] if has_equal_stages(work.spec, pipeline * virtual) else []
        layout = Layout(pipeline=pipeline, virtual=virtual, layers_per_stage="auto", recompute=recompute)  # type: ignore[arg-type]
        try:
            by_cost = layout_with_stages(layout, work.spec, replace(work, layout=layout).part_costs).layers_by_chunk
        except UserError:  # heads read layers that must stay together
            return [*even]
        return [*even, *([] if by_cost is None else [by_cost])]

    for tensor, context in product(divisors(min(machine.devices, devices)), _context_sizes(work, devices)):
        for pipeline in divisors(devices // tensor, limit=1 if full_sharding else layers):
            if devices % (tensor * context * pipeline):
                continue
            data = devices // (tensor * context * pipeline)
            samples = config.train.batch // data  # the data ranks divide the batch of a valid config
            microbatches = [divisor for divisor in divisors(samples) if divisor <= 64] or [1]
            for virtual, recompute in product(_virtual_stage_counts(layers, pipeline), ("none", "attention", "full")):
                for cut, microbatch in product(cuts(pipeline, virtual, recompute), microbatches):
                    yield Layout(
                        data=data,
                        tensor=tensor,
                        context=context,
                        pipeline=pipeline,
                        virtual=virtual,
                        layers_per_stage=cut,
                        microbatch=microbatch,
                        recompute=recompute,  # type: ignore[arg-type]
                        sequence_parallel=_can_split_sequences(work, tensor, context),
                        distributed_optimizer=data * context > 1 and not full_sharding,
                        full_sharding=data * context > 1 and full_sharding,
                    )


def _virtual_stage_counts(layers: int, pipeline: int) -> list[int]:
    """Return the numbers of virtual stages to try. If the pipeline divides the layers, they are the divisors of a
    stage's layers. Otherwise, for each size of the largest chunk, the smallest number that gives it."""
    if pipeline == 1:
        return [1]
    share = layers // pipeline
    if layers % pipeline == 0:
        return divisors(share)
    sizes = range(1, share + 2)
    return sorted({number for size in sizes if (number := -(-layers // (pipeline * size))) <= share})


def _context_sizes(work: Workload, devices: int) -> list[int]:
    """Return the numbers of context ranks to try: powers of two."""
    limit = max(1, max(work.lengths.values()) // MIN_CONTEXT_POSITIONS)
    return [number for number in divisors(devices, limit=limit) if number.bit_count() == 1]


def _can_split_sequences(work: Workload, tensor: int, context: int) -> bool:
    return tensor > 1 and not any(length // context % tensor for length in work.lengths.values())


def divisors(number: int, *, limit: int | None = None) -> list[int]:
    """Return the divisors of a number, up to `limit`, in ascending order."""
    return [
        divisor for divisor in range(1, min(number, number if limit is None else limit) + 1) if number % divisor == 0
    ]


def _short_reason(sentence: str) -> str:
    """Return the reason why a layout is rejected without its numbers, so that equal reasons are counted together."""
    for words, kind in (
        ("attention heads", "tensor ranks do not divide the attention heads"),
        ("feed-forward", "tensor ranks do not divide the feed-forward units"),
        ("padded vocabulary", "tensor ranks do not divide the vocabulary"),
        ("train.ramp", "a batch of the ramp is not a multiple of data ranks x micro-batch"),
        ("train.batch", "the batch is not a multiple of data ranks x micro-batch"),
        ("micro-batches of a step", "stages do not divide the micro-batches, as interleaving needs"),
    ):
        if words in sentence:
            return kind
    return sentence
