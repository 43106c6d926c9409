"""The plan of a run: what it holds, how long a step and the whole take, what failures cost."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

from megaptm.config import Config
from megaptm.plan.count import count
from megaptm.plan.machine import Machine
from megaptm.plan.memory import Memory, fullest, memory
from megaptm.plan.step import Step, step
from megaptm.plan.work import Work, work_of

CHECKPOINT_BYTES = 12
"""Of a parameter in a checkpoint: float32 weight and two moments (parallel/state.py)."""
DAY = 86400.0


@dataclass(frozen=True)
class Failures:
    """What saving and failing cost, to first order in interval / time between failures (Young, 1974)."""

    checkpoint_bytes: float
    checkpoint_seconds: float
    restart_seconds: float
    """Of a job that goes on, before its first step: what the machine needs, and reading the checkpoint."""
    mtbf_hours: float
    """Between two failures of the job: that of a node over the number of nodes."""
    expected: float
    """Failures in the whole run."""
    best_interval_steps: int
    """Steps between two checkpoints that lose least: sqrt(2 x time to save x time between failures)."""
    goodput: float
    """Share of time that makes steps, at the config's `checkpoint.every`."""
    best_goodput: float


@dataclass(frozen=True)
class Plan:
    """Everything that `megaptm plan` says."""

    title: str
    machine: Machine
    work: Work
    nodes: int
    parameters: int
    memory: list[Memory]
    """Of a rank of each stage."""
    step: Step
    steps: int
    """Of this phase of the run."""
    every: int
    failures: Failures

    @property
    def fullest(self) -> int:
        """The stage that holds most."""
        return fullest(self.memory)

    @property
    def fits(self) -> bool:
        """Whether the fullest rank leaves what the machine needs for itself."""
        return self.memory[self.fullest].total <= self.machine.usable_bytes

    @property
    def days(self) -> float:
        """Of steps alone, nothing lost."""
        return self.steps * self.step.seconds / DAY

    @property
    def days_with_failures(self) -> float:
        return self.days / self.failures.goodput

    @property
    def device_hours(self) -> float:
        return self.days_with_failures * 24 * self.work.layout.processes

    def numbers(self) -> dict[str, Any]:
        """The plan as JSON: plain numbers, seconds and bytes."""
        work, layout, failures = self.work, self.work.layout, self.failures
        return {
            "model": self.title,
            "machine": self.machine.name,
            "nodes": self.nodes,
            "devices": layout.processes,
            "layout": layout.model_dump(),
            "parameters": self.parameters,
            "tokens_per_step": work.tokens,
            "tokens": work.tokens * self.steps,
            "flops_per_token": work.flops / work.tokens,
            "flops_per_step": work.flops,
            "flops": work.flops * self.steps,
            "fits": self.fits,
            "memory": {
                "usable_bytes": self.machine.usable_bytes,
                "fullest_stage": self.fullest,
                "stages": [{**one.parts(), "total": one.total} for one in self.memory],
            },
            "step": {
                "seconds": self.step.seconds,
                **self.step.parts(),
                "mfu": self.step.mfu,
                "hfu": self.step.hfu,
                "tokens_per_second": work.tokens / self.step.seconds,
            },
            "run": {
                "steps": self.steps,
                "days": self.days,
                "days_with_failures": self.days_with_failures,
                "device_hours": self.device_hours,
            },
            "checkpoint": {
                "bytes": failures.checkpoint_bytes,
                "seconds": failures.checkpoint_seconds,
                "every": self.every,
                "best_every": failures.best_interval_steps,
            },
            "failures": {
                "mtbf_hours": failures.mtbf_hours,
                "expected": failures.expected,
                "restart_seconds": failures.restart_seconds,
                "goodput": failures.goodput,
                "best_goodput": failures.best_goodput,
            },
        }


def plan(config: Config, machine: Machine) -> Plan:
    """The plan of a checked config on as many of these machines as its layout needs."""
    work = work_of(config)
    timed = step(machine, work)
    nodes = ceil(work.layout.processes / machine.devices)
    parameters = count(work.spec, with_heads=True)
    steps = config.train.steps - config.train.after
    return Plan(
        title=f"{config.model.family}/{config.model.size}",
        machine=machine,
        work=work,
        nodes=nodes,
        parameters=parameters,
        memory=memory(work),
        step=timed,
        steps=steps,
        every=config.checkpoint.every,
        failures=failures(
            machine,
            nodes=nodes,
            parameters=parameters,
            step_seconds=timed.seconds,
            steps=steps,
            every=config.checkpoint.every,
        ),
    )


def failures(machine: Machine, *, nodes: int, parameters: int, step_seconds: float, steps: int, every: int) -> Failures:
    """What a run of `steps` pays for checkpoints, and for the work that a failed node takes with it."""
    size = float(CHECKPOINT_BYTES * parameters)
    saving = size / (nodes * machine.disk_gigabytes_per_second * 1e9)
    between = machine.node_mtbf_days * DAY / nodes
    restart = machine.restart_minutes * 60 + saving  # reading takes what writing took

    def goodput(interval: float) -> float:
        saved = saving / (interval + saving)
        lost = (interval / 2 + restart) / between
        return max(0.0, (1 - saved) * (1 - min(1.0, lost)))

    best = min(max(sqrt(2 * saving * between), step_seconds), steps * step_seconds)
    at_config = max(goodput(min(every, steps) * step_seconds), 1e-9)
    return Failures(
        checkpoint_bytes=size,
        checkpoint_seconds=saving,
        restart_seconds=restart,
        mtbf_hours=between / 3600,
        expected=steps * step_seconds / at_config / between,
        best_interval_steps=max(1, round(best / step_seconds)),
        goodput=at_config,
        best_goodput=goodput(best),
    )
