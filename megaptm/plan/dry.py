"""What a dry run found beside what the formulas say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from megaptm.errors import UserError
from megaptm.plan.stages import parameters, stages
from megaptm.plan.workload import Workload


class BuiltRank(Protocol):
    """A rank as it was built (parallel/dry.py)."""

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
    """Built ranks, and the formula's count of parameters for each."""

    found: Sequence[BuiltRank]
    planned: list[int]
    counted_flops: int | None
    """Of a step on all devices, from one rank of every stage; None when some stage was not built."""
    flops: int
    """The same by formula."""

    @property
    def agrees(self) -> bool:
        """Parameters to the last one; operations but for rows that pad the vocabulary and what small heads repeat."""
        same = all(one.parameters == planned for one, planned in zip(self.found, self.planned, strict=True))
        return same and (self.counted_flops is None or 0 <= self.counted_flops / self.flops - 1 < 5e-3)

    def numbers(self) -> dict[str, Any]:
        """As JSON."""
        ranks = [
            {"rank": one.rank, "stage": one.stage, "parameters": one.parameters, "planned": planned, "flops": one.flops}
            for one, planned in zip(self.found, self.planned, strict=True)
        ]
        return {
            "agrees": self.agrees,
            "ranks": ranks,
            "step_flops": self.counted_flops,
            "planned_step_flops": self.flops,
        }


def chosen_ranks(work: Workload, ranks: str | None) -> list[int]:
    """The ranks in `0,8,511`, or the first of every stage."""
    layout, world = work.layout, work.layout.processes
    if ranks is None:
        return list(range(0, world, layout.tensor * layout.data))
    try:
        chosen = [int(word) for word in ranks.split(",")]
    except ValueError:
        raise UserError(f"--ranks {ranks}: write numbers with commas between, for instance --ranks 0,8.") from None
    if wrong := [rank for rank in chosen if not 0 <= rank < world]:
        raise UserError(
            f"--ranks {ranks}: rank {wrong[0]} is not one of the {world:,} of this layout (0 to {world - 1})."
        )
    return chosen


def compare(work: Workload, found: Sequence[BuiltRank]) -> DryRunReport:
    """The formulas beside what was built."""
    chunks = stages(work)
    counted = [parameters(work, chunks[one.stage]) for one in found]
    by_stage = {one.stage: one.flops for one in found}
    whole = None
    if len(by_stage) == work.layout.pipeline:
        whole = sum(by_stage.values()) * work.layout.tensor * work.layout.data * work.microbatches
    return DryRunReport(found, [one.trained + one.frozen for one in counted], whole, work.flops)
