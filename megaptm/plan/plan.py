"""Plan of a run: memory, time of a step and of the run, and costs of failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from megaptm.config import Config
from megaptm.config.phases import phase_end, steps_title
from megaptm.config.read import phase_configs
from megaptm.plan.checkpoint_cost import CheckpointCost, estimate_checkpoint_cost
from megaptm.plan.count import count_parameters
from megaptm.plan.failures import DAY, FailureCosts, estimate_failures
from megaptm.plan.machine import Machine
from megaptm.plan.memory import Memory, estimate_memory, fullest_stage
from megaptm.plan.step import StepTime, estimate_step
from megaptm.plan.workload import Workload, make_workload


@dataclass(frozen=True)
class Plan:
    """Plan of a run, the result of `megaptm plan`."""

    title: str
    machine: Machine
    work: Workload
    nodes: int
    parameters: int
    has_published_vocabulary: bool
    """Whether a model of size `custom` has the family's published vocabulary, because its config sets none."""
    memory: list[Memory]
    """Planned memory of a rank of each stage."""
    step: StepTime
    steps_title: str
    """Steps of this phase of the run, counted from 1."""
    steps: int
    """Number of steps of this phase of the run."""
    samples: int
    """Number of samples in the steps of this phase of the run."""
    seconds: float
    """Planned seconds of all steps without failures; steps of a batch ramp take less than `step`."""
    saving: CheckpointCost
    failures: FailureCosts

    @property
    def fullest_stage(self) -> int:
        """Return the pipeline stage with the most memory."""
        return fullest_stage(self.memory)

    @property
    def memory_share(self) -> float:
        """Memory of the fullest rank as a share of the machine's usable memory."""
        return self.memory[self.fullest_stage].total / self.machine.usable_bytes

    @property
    def fits(self) -> bool:
        """Whether the fullest rank of the plan fits in the machine's usable memory."""
        return self.memory_share <= 1

    @property
    def days(self) -> float:
        """Planned days of the run's steps alone, without failures."""
        return self.seconds / DAY

    @property
    def tokens(self) -> int:
        """Number of tokens of this phase of the run."""
        return self.samples * self.work.tokens_per_sample

    @property
    def days_with_failures(self) -> float:
        return self.days / self.failures.goodput

    @property
    def device_hours(self) -> float:
        return self.days_with_failures * 24 * self.work.layout.processes

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values: plain numbers, seconds and bytes."""
        work, layout, saving, failures = self.work, self.work.layout, self.saving, self.failures
        return {
            "model": self.title,
            "machine": self.machine.name,
            "nodes": self.nodes,
            "devices": layout.processes,
            "layout": layout.model_dump(),
            "parameters": self.parameters,
            "tokens_per_step": work.tokens,
            "tokens": self.tokens,
            "flops_per_token": work.flops / work.tokens,
            "flops_per_step": work.flops,
            **{f"{costs.name}_flops_per_step": costs.flops(work) for costs in work.extra_costs},
            "flops": work.flops * self.samples // work.batch,
            "fits": self.fits,
            "memory": {
                "usable_bytes": self.machine.usable_bytes,
                "fullest_stage": self.fullest_stage,
                "stages": [{**stage.parts(), "total": stage.total} for stage in self.memory],
            },
            "step": {
                "seconds": self.step.seconds,
                **self.step.parts(),
                "mfu": self.step.mfu,
                "hfu": self.step.hfu,
                "tokens_per_second": work.tokens / self.step.seconds,
            },
            "stage_seconds": [*self.step.stages],
            "run": {
                "steps": self.steps,
                "days": self.days,
                "days_with_failures": self.days_with_failures,
                "device_hours": self.device_hours,
            },
            "checkpoint": {
                "bytes": saving.bytes,
                "seconds": saving.seconds,
                "stall_seconds": saving.stall,
                "host_bytes": saving.host_bytes,
                "every": failures.every,
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


def make_plan(config: Config, machine: Machine) -> Plan:
    """Return the plan of the present phase of a checked config, on as many of these machines as its layout needs."""
    work = make_workload(config)
    timed = estimate_step(machine, work)
    nodes = ceil(work.layout.processes / machine.devices)
    parameters = count_parameters(work.spec, with_heads=True)
    start, batches = config.train.phase_start, config.batch_schedule
    end = phase_end(config, start)
    seconds = sum(
        number * (timed if size == work.batch else estimate_step(machine, replace(work, batch=size))).seconds
        for size, number in batches.sizes(start, end).items()
    )
    saved = estimate_checkpoint_cost(config, machine, parameters)
    return Plan(
        title=f"{config.model.family}/{config.model.size}",
        machine=machine,
        work=work,
        nodes=nodes,
        parameters=parameters,
        has_published_vocabulary=config.model.size == "custom"
        and work.spec.vocabulary == work.spec.family.tokenizer.vocabulary,
        memory=estimate_memory(work),
        step=timed,
        steps_title=steps_title(config),
        steps=end - start,
        samples=batches.num_trained(end) - batches.num_trained(start),
        seconds=seconds,
        saving=saved,
        failures=estimate_failures(
            machine, saved, nodes=nodes, step_seconds=timed.seconds, seconds=seconds, config=config.checkpoint
        ),
    )


def make_plans(config: Config, machine: Machine) -> list[Plan]:
    """Return the plan of each phase of a run, from the present one on."""
    return [make_plan(phase, machine) for phase in phase_configs(config)]


def summed_json(plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the plans of all phases of a run as JSON values, and their sums."""
    phases = [{"title": plan.steps_title, **plan.to_json()} for plan in plans]
    return {
        "fits": all(plan.fits for plan in plans),
        "tokens": sum(plan.tokens for plan in plans),
        "flops": sum(phase["flops"] for phase in phases),
        "run": {key: sum(phase["run"][key] for phase in phases) for key in phases[0]["run"]},
        "phases": phases,
    }
