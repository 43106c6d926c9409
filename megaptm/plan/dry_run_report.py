"""Comparison of a dry run with the plan's formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from megaptm.errors import UserError
from megaptm.plan.stages import count_rank_parameters, stage_chunks
from megaptm.plan.workload import Workload


class BuiltRank(Protocol):
    """Parameters and FLOPs of one rank, counted in a dry run (parallel/dry_run.py)."""

    @property
    def rank(self) -> int: ...
    @property
    def stage(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    @property
    def flops(self) -> int: ...


@dataclass(frozen=True)
class DryRunReport:
    """Report of a dry run: counts of the built ranks, and the planned number of parameters of each."""

    ranks: Sequence[BuiltRank]
    planned: list[int]
    counted_flops: int | None
    """FLOPs of a step on all devices as the dry run counted them, from one rank per stage; None if a stage was not
    built."""
    flops: int
    """FLOPs of a step on all devices as the plan estimates them."""

    @property
    def agrees_with_plan(self) -> bool:
        """Whether the counts of the dry run agree with the plan: parameters exactly, FLOPs except vocabulary padding
        and the repeated work of small heads."""
        same = all(rank.parameters == planned for rank, planned in zip(self.ranks, self.planned, strict=True))
        return same and (self.counted_flops is None or 0 <= self.counted_flops / self.flops - 1 < 5e-3)

    def to_json(self) -> dict[str, Any]:
        """Return the report of the dry run as JSON values."""
        ranks = [
            {
                "rank": rank.rank,
                "stage": rank.stage,
                "parameters": rank.parameters,
                "planned": planned,
                "flops": rank.flops,
            }
            for rank, planned in zip(self.ranks, self.planned, strict=True)
        ]
        return {
            "agrees": self.agrees_with_plan,
            "ranks": ranks,
            "step_flops": self.counted_flops,
            "planned_step_flops": self.flops,
        }


def chosen_ranks(work: Workload, ranks: str | None) -> list[int]:
    """Return the ranks that a dry run builds: those in `0,8,511`, or the first rank of each stage."""
    layout, world = work.layout, work.layout.processes
    if ranks is None:
        return list(range(0, world, layout.tensor * layout.replicas))
    try:
        chosen = [int(word) for word in ranks.split(",")]
    except ValueError:
        raise UserError(f"--ranks {ranks}: write numbers separated by commas, for instance --ranks 0,8.") from None
    if invalid_ranks := [rank for rank in chosen if not 0 <= rank < world]:
        raise UserError(
            f"--ranks {ranks}: rank {invalid_ranks[0]} is not one of the {world:,} of this layout (0 to {world - 1})."
        )
    return chosen


def compare_with_plan(work: Workload, ranks: Sequence[BuiltRank]) -> DryRunReport:
    """Compare the ranks that a dry run built with the formulas of the plan."""
    chunks = stage_chunks(work)
    counted = [count_rank_parameters(work, chunks[rank.stage]) for rank in ranks]
    by_stage = {rank.stage: rank.flops for rank in ranks}
    counted_flops = None
    if len(by_stage) == work.layout.pipeline:
        counted_flops = sum(by_stage.values()) * work.layout.tensor * work.layout.replicas * work.microbatches
    planned = work.flops - _skipped_flops(work)
    return DryRunReport(ranks, [rank.trained + rank.frozen for rank in counted], counted_flops, planned)


def _skipped_flops(work: Workload) -> int:
    """Return the FLOPs of the pairs that causal attention of context ranks does not compute: keys after the chunk of a
    query. The plan counts the full square."""
    context, pairs = work.layout.context, 0
    if context == 1:
        return 0
    for name, length in work.lengths.items():
        if work.spec.family.stacks[name].causal:
            size = work.spec.size_of(name)
            pairs += length * length * (2 * context - 1) // (4 * context) * size.layers * size.heads * size.key_width
    # Scores and weighted values, forward and backward: six products.
    return 2 * 6 * work.batch * pairs
