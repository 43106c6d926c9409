"""Steps of this engine on a GPU compared with the planner: a table of docs/planner.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from megaptm.config.schema import Count, Layout, Section
from megaptm.families import FAMILIES
from megaptm.plan.machine import Machine, load_machine
from megaptm.plan.memory import estimate_memory
from megaptm.plan.software import MEGAPTM
from megaptm.plan.step import estimate_step
from megaptm.plan.workload import Workload
from megaptm.spec import Family, ModelSpec

FILE = Path(__file__).with_suffix(".yaml")
MACHINE = "h200-141g"
THEN = replace(MEGAPTM, compiled=False, fused_gradient_sum=False, gathered_scores=True, launches=57)
"""The engine of 2026-11-26."""


class Row(Section):
    """One shape on one GPU."""

    name: str
    family: str
    size: str
    rows: Count
    lengths: list[int]
    predicted: Count | None = None
    """Number of target positions of a sequence, for masked-token heads."""
    milliseconds: float
    launches: Count | None = None
    gib: float | None = None

    def work(self) -> Workload:
        """Return the workload of the shape: all heads, no dropout, one micro-batch."""
        family = FAMILIES[self.family]
        assert isinstance(family, Family)
        spec = ModelSpec(
            family=family,
            size=family.sizes[self.size],
            vocabulary=family.tokenizer.vocabulary,
            context=max(self.lengths),
            dropout=0.0,
        )
        return Workload(
            spec=spec,
            lengths=dict(zip(family.stacks, self.lengths, strict=True)),
            layout=Layout(microbatch=self.rows),
            batch=self.rows,
            num_predicted=self.predicted,
            software=THEN,
        )

    def planned_milliseconds(self, machine: Machine) -> float:
        """Return the planned time of a step, with the kernels that were counted, if they were."""
        step = estimate_step(machine, self.work())
        if self.launches is None:
            return 1e3 * step.seconds
        computed = step.seconds - step.host
        return 1e3 * max(computed, self.launches * machine.efficiency.launch_microseconds * 1e-6)

    def planned_gib(self) -> float:
        """Return the planned memory of the GPU."""
        return estimate_memory(self.work())[0].total / 2**30


def rows(path: Path = FILE) -> list[Row]:
    """Return the shapes in `engine.yaml`."""
    return [Row.model_validate(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8"))]


def markdown() -> str:
    """Return the comparison as a table."""
    machine = load_machine(MACHINE)
    lines = ["| shape | measured | planned | | GiB | planned |", "|---|---:|---:|---:|---:|---:|"]
    for row in rows():
        planned = row.planned_milliseconds(machine)
        memory = "" if row.gib is None else f"{row.gib:.1f}"
        lines.append(
            f"| {row.name} | {row.milliseconds:.1f} ms | {planned:.1f} ms | {planned / row.milliseconds - 1:+.0%} "
            f"| {memory} | {row.planned_gib():.1f} |"
        )
    return "\n".join(lines)
