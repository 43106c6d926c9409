"""Does the fullest rank fit on a device of the machine, and what checkpoints are written from in its host's memory?"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isinf

from megaptm.check.finding import Case, Finding
from megaptm.config import Config
from megaptm.errors import UserError
from megaptm.plan.count import count
from megaptm.plan.failures import DAY
from megaptm.plan.machine import Machine
from megaptm.plan.memory import fullest
from megaptm.plan.memory import memory as planned
from megaptm.plan.plan import Plan, plan
from megaptm.plan.saving import saving
from megaptm.plan.search import FULL
from megaptm.plan.workload import workload_of
from megaptm.schedulers.slurm.options import option
from megaptm.schedulers.slurm.slurm_time import seconds_of, warning_seconds, words

GIB = 2**30
HOST_SHARE = 0.75
"""Of the host's memory that copies may take: the rest is of the processes, some GiB each, and of the system."""


def memory(case: Case) -> Iterator[Finding]:
    """What the plan says of the stage that holds most, and the room that is left."""
    machine = case.machine
    if case.mistakes or machine is None:
        how = "the config must be right first" if case.mistakes else "name one with --machine"
        yield Finding("memory", "unknown", f"whether a rank fits on its device is not known: {how}.")
        return
    work = workload_of(case.config)
    held = planned(work)
    stage = fullest(held)
    needed, usable = held[stage].total, machine.usable_bytes
    free, share = usable - needed, (usable - needed) / usable
    rank = f"a rank of stage {stage}" if len(held) > 1 else "a rank"
    device = f"the {usable / GIB:,.1f} GiB that a device of {machine.name} has for it"
    numbers = {"stage": stage, "bytes": needed, "usable_bytes": usable, "free_bytes": free}
    if free < 0:
        remedy = "raise layout.tensor or layout.pipeline, set layout.recompute=full, or see megaptm plan --search."
        yield Finding("memory", "fault", f"{rank} needs {_gib(needed)} GiB of {device}: {remedy}", numbers)
    elif needed > FULL * usable:
        remedy = (
            f"the plan is right to some percent, only {share:.1%} are left; leave more, or try it on one node first."
        )
        yield Finding("memory", "warning", f"{rank} needs {_gib(needed)} GiB of {device}: {remedy}", numbers)
    else:
        left = f"{free / GIB:,.1f} GiB ({share:.0%}) are left"
        yield Finding("memory", "good", f"{rank} needs {_gib(needed)} GiB of {device}; {left}.", numbers)
    if free >= 0:
        yield from _copies(case.config, machine, count(work.spec, with_heads=True), free)


def _copies(config: Config, machine: Machine, parameters: int, free: float) -> Iterator[Finding]:
    """`free`: bytes of a device that the run leaves."""
    needed = saving(config, machine, parameters).host_bytes
    if not needed:
        return
    on_node = min(machine.devices, config.layout.processes)
    room = on_node * free if machine.host_gib is None else HOST_SHARE * machine.host_gib * GIB
    numbers = {"host_bytes": needed, "usable_host_bytes": room}
    says = (
        f"copies that checkpoints are written from take {_gib(needed)} of the {_gib(room)} GiB that a host has for them"
    )
    if needed > room:
        yield Finding("memory", "fault", f"{says}: set checkpoint.asynchronous=false, or use more nodes.", numbers)
    else:
        yield Finding("memory", "good", f"{says}.", numbers)


def _gib(size: float) -> str:
    """With the digits that say something: 0.02, 61.3."""
    return f"{size / GIB:,.{1 if size > GIB else 2}f}"


LOST = 0.02
LOST_DEVICE_HOURS = 100.0
"""More than this share and these hours lost by saving too seldom, or too often, is told."""
TOPIC = "time"


def timing(case: Case) -> Iterator[Finding]:
    """The plan's seconds beside the limit of a job, and its best interval beside `checkpoint.every`."""
    options = case.request.slurm_options or ()
    written = option(options, "time")
    limit = seconds_of(written) if written else case.request.seconds
    warned = warning_seconds(options)
    if limit is not None and limit <= warned:
        raise UserError(
            f"a job of {words(limit)} is told to save {words(warned)} before its end, which is at once: raise --time, "
            "or have it told later (--sbatch=--signal=B:USR1@60)."
        )
    if case.mistakes or case.machine is None:
        how = "the config must be right first" if case.mistakes else "name the machine with --machine"
        yield Finding(TOPIC, "unknown", f"how long a step takes is not known: {how}.")
        return
    made = plan(case.config, case.machine)
    if limit is not None and not isinf(limit):
        yield _job(made, limit, warned)
    else:
        yield Finding(TOPIC, "good", f"{made.steps:,} steps of {words(made.step.seconds)} take {_whole(made)}.")
    yield _saving(made)


def jobs_needed(made: Plan, limit: float, warned: float) -> int:
    """Jobs of the whole run: its days, with failures, over what starting and saving leave of a job's limit."""
    return max(1, ceil(made.days_with_failures * DAY / _seconds_of_steps(made, limit, warned)))


def _seconds_of_steps(made: Plan, limit: float, warned: float) -> float:
    return limit - warned - made.failures.restart_seconds


def _job(made: Plan, limit: float, warned: float) -> Finding:
    step, saving, start = made.step.seconds, made.saving.seconds, made.failures.restart_seconds
    numbers = {"limit": limit, "start_seconds": start, "step_seconds": step, "checkpoint_seconds": saving}
    left = _seconds_of_steps(made, limit, warned)
    if left < step:
        raise UserError(
            f"a job of {words(limit)} makes no step: it starts in {words(start)}, a step takes {words(step)}, and "
            f"{words(warned)} before its end it is told to save: raise --time above {words(start + step + warned)}."
        )
    if warned < step + saving:
        raise UserError(
            f"a job is told to save {words(warned)} before its end, but a step and a checkpoint take "
            f"{words(step + saving)}: have it told earlier (--sbatch=--signal=B:USR1@{ceil(2 * (step + saving))})."
        )
    steps, jobs = max(1, int(left / (step + made.saving.stall / made.every))), jobs_needed(made, limit, warned)
    says = f"a job of {words(limit)} makes {min(steps, made.steps):,} steps of {words(step)}: "
    says += "the whole run." if jobs == 1 else f"{jobs:,} jobs for {made.steps:,}, failures included."
    return Finding(TOPIC, "good", says, {**numbers, "steps_per_job": steps, "jobs": jobs})


def _saving(made: Plan) -> Finding:
    failures = made.failures
    lost = failures.best_goodput - failures.goodput
    numbers = {"every": made.every, "best_every": failures.best_interval_steps, "goodput": failures.goodput}
    if lost > LOST and lost * made.device_hours > LOST_DEVICE_HOURS:
        says = (
            f"checkpoint.every ({made.every:,} steps, {words(made.every * made.step.seconds)}) costs "
            f"{1 - failures.goodput:.1%} of the time, with failures; every {failures.best_interval_steps:,} would cost "
            f"{1 - failures.best_goodput:.1%}."
        )
        return Finding(TOPIC, "warning", says, numbers)
    says = f"checkpoint.every ({made.every:,} steps) and failures of nodes cost {1 - failures.goodput:.1%} of the time."
    return Finding(TOPIC, "good", says, numbers)


def _whole(made: Plan) -> str:
    return words(made.seconds)
