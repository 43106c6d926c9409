"""Check of time: duration of the run, number of jobs, and checkpoint interval."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isinf

from megaptm.check.finding import Case, Finding
from megaptm.config import resolve
from megaptm.errors import UserError
from megaptm.families.words import WordSpec
from megaptm.plan.failures import DAY
from megaptm.plan.plan import Plan, plan
from megaptm.schedulers.slurm.options import option_value
from megaptm.schedulers.slurm.slurm_time import format_seconds, parse_time, warning_seconds

TOPIC = "time"
LOST = 0.02
LOST_DEVICE_HOURS = 100.0
"""Warn if the checkpoint interval loses more than this share and these device hours against the best one."""


def timing(case: Case) -> Iterator[Finding]:
    """Compare the planned time with the limit of a job, and `checkpoint.every` with the best interval."""
    options = case.request.slurm_options or ()
    written = option_value(options, "time")
    limit = parse_time(written) if written else case.request.seconds
    warned = warning_seconds(options)
    if limit is not None and limit <= warned:
        raise UserError(
            f"a job of {format_seconds(limit)} is told to save {format_seconds(warned)} before its end, which is at "
            "once: raise --time, or have it told later (--sbatch=--signal=B:USR1@60)."
        )
    if case.mistakes or case.machine is None:
        how = "the config must be right first" if case.mistakes else "name the machine with --machine"
        yield Finding(TOPIC, "unknown", f"how long a step takes is not known: {how}.")
        return
    if isinstance(resolve(case.config), WordSpec):
        how = "word vectors are not planned, a few steps show it"
        yield Finding(TOPIC, "unknown", f"how long a step takes is not known: {how}.")
        return
    made = plan(case.config, case.machine)
    if limit is not None and not isinf(limit):
        yield _job(made, limit, warned)
    else:
        yield Finding(
            TOPIC, "good", f"{made.steps:,} steps of {format_seconds(made.step.seconds)} take {_whole(made)}."
        )
    yield _saving(made)


def jobs_needed(made: Plan, limit: float, warned: float) -> int:
    """Return the number of jobs of the whole run: its duration with failures, over a job's time without start and
    save."""
    return max(1, ceil(made.days_with_failures * DAY / _seconds_of_steps(made, limit, warned)))


def _seconds_of_steps(made: Plan, limit: float, warned: float) -> float:
    return limit - warned - made.failures.restart_seconds


def _job(made: Plan, limit: float, warned: float) -> Finding:
    step, saving, start = made.step.seconds, made.saving.seconds, made.failures.restart_seconds
    numbers = {"limit": limit, "start_seconds": start, "step_seconds": step, "checkpoint_seconds": saving}
    left = _seconds_of_steps(made, limit, warned)
    if left < step:
        raise UserError(
            f"a job of {format_seconds(limit)} makes no step: it starts in {format_seconds(start)}, a step takes "
            f"{format_seconds(step)}, and {format_seconds(warned)} before its end it is told to save: raise --time "
            f"above {format_seconds(start + step + warned)}."
        )
    if warned < step + saving:
        raise UserError(
            f"a job is told to save {format_seconds(warned)} before its end, but a step and a checkpoint take "
            f"{format_seconds(step + saving)}: have it told earlier "
            f"(--sbatch=--signal=B:USR1@{ceil(2 * (step + saving))})."
        )
    steps, jobs = max(1, int(left / (step + made.saving.stall / made.every))), jobs_needed(made, limit, warned)
    says = f"a job of {format_seconds(limit)} makes {min(steps, made.steps):,} steps of {format_seconds(step)}: "
    says += "the whole run." if jobs == 1 else f"{jobs:,} jobs for {made.steps:,}, failures included."
    return Finding(TOPIC, "good", says, {**numbers, "steps_per_job": steps, "jobs": jobs})


def _saving(made: Plan) -> Finding:
    failures = made.failures
    lost = failures.best_goodput - failures.goodput
    numbers = {"every": made.every, "best_every": failures.best_interval_steps, "goodput": failures.goodput}
    if lost > LOST and lost * made.device_hours > LOST_DEVICE_HOURS:
        says = (
            f"checkpoint.every ({made.every:,} steps, {format_seconds(made.every * made.step.seconds)}) costs "
            f"{1 - failures.goodput:.1%} of the time, with failures; every {failures.best_interval_steps:,} would cost "
            f"{1 - failures.best_goodput:.1%}."
        )
        return Finding(TOPIC, "warning", says, numbers)
    says = f"checkpoint.every ({made.every:,} steps) and failures of nodes cost {1 - failures.goodput:.1%} of the time."
    return Finding(TOPIC, "good", says, numbers)


def _whole(made: Plan) -> str:
    return format_seconds(made.seconds)
