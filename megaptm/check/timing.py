"""Check of time: duration of the run, number of jobs, and checkpoint interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, isinf

from megaptm.check.finding import CheckInput, Finding
from megaptm.config import resolve_spec
from megaptm.errors import UserError
from megaptm.plan.failures import DAY
from megaptm.plan.plan import Plan, make_plan
from megaptm.schedulers.slurm.options import sbatch_option_value
from megaptm.schedulers.slurm.slurm_time import format_seconds, parse_slurm_time, warning_seconds
from megaptm.spec import LayerlessSpec

TOPIC = "time"
LOST = 0.02
LOST_DEVICE_HOURS = 100.0
"""Share of device hours, and number of device hours, above which a check warns about the checkpoint interval: those
lost compared with the best interval."""


def check_time(case: CheckInput) -> Iterator[Finding]:
    """Check time: compare the planned time with the limit of a job, and `checkpoint.every` with the best interval."""
    options = case.request.slurm_options or ()
    written = sbatch_option_value(options, "time")
    limit = parse_slurm_time(written) if written else case.request.seconds
    warning = warning_seconds(options)
    if limit is not None and limit <= warning:
        raise UserError(
            f"a job of {format_seconds(limit)} gets its signal to save {format_seconds(warning)} before its end, so it "
            "would save immediately: raise --time, or signal later (--sbatch=--signal=B:USR1@60)."
        )
    if case.config_errors or case.machine is None:
        remedy = "correct the config first" if case.config_errors else "name a machine with --machine"
        yield Finding(TOPIC, "unknown", f"the time of a step is unknown: {remedy}.")
        return
    if isinstance(spec := resolve_spec(case.config), LayerlessSpec):
        unknown = f"the time of a step is unknown for {spec.family.title}: run a few steps to see it."
        yield Finding(TOPIC, "unknown", unknown)
        return
    run_plan = make_plan(case.config, case.machine)
    if limit is not None and not isinf(limit):
        yield _job_finding(run_plan, limit, warning)
    else:
        yield Finding(
            TOPIC,
            "ok",
            f"{run_plan.steps:,} steps of {format_seconds(run_plan.step.seconds)} take "
            f"{format_seconds(run_plan.seconds)}.",
        )
    yield _interval_finding(run_plan)


def jobs_needed(plans: Sequence[Plan], limit: float, warning: float) -> int:
    """Return the number of jobs that the phases of a run need: their duration with failures, divided by the time of a
    job without its start and save."""
    jobs = sum(plan.days_with_failures * DAY / _seconds_of_steps(plan, limit, warning) for plan in plans)
    return max(1, ceil(jobs))


def _seconds_of_steps(run_plan: Plan, limit: float, warning: float) -> float:
    return limit - warning - run_plan.failures.restart_seconds


def _job_finding(run_plan: Plan, limit: float, warning: float) -> Finding:
    step, saving, start = run_plan.step.seconds, run_plan.saving.seconds, run_plan.failures.restart_seconds
    details = {"limit": limit, "start_seconds": start, "step_seconds": step, "checkpoint_seconds": saving}
    left = _seconds_of_steps(run_plan, limit, warning)
    if left < step:
        raise UserError(
            f"a job of {format_seconds(limit)} completes no step: its start takes {format_seconds(start)}, a step "
            f"{format_seconds(step)}, and it is signaled to save {format_seconds(warning)} before its end: raise "
            f"--time above {format_seconds(start + step + warning)}."
        )
    if warning < step + saving:
        raise UserError(
            f"a job is signaled to save {format_seconds(warning)} before its end, but a step and a checkpoint take "
            f"{format_seconds(step + saving)}: signal it earlier "
            f"(--sbatch=--signal=B:USR1@{ceil(2 * (step + saving))})."
        )
    steps, jobs = (
        max(1, int(left / (step + run_plan.saving.stall / run_plan.failures.every))),
        jobs_needed([run_plan], limit, warning),
    )
    message = f"a job of {format_seconds(limit)} completes {min(steps, run_plan.steps):,} steps of "
    message += f"{format_seconds(step)}: "
    message += "the full run." if jobs == 1 else f"{run_plan.steps:,} steps need {jobs:,} jobs, including failures."
    return Finding(TOPIC, "ok", message, {**details, "steps_per_job": steps, "jobs": jobs})


def _interval_finding(run_plan: Plan) -> Finding:
    failures = run_plan.failures
    lost = failures.best_goodput - failures.goodput
    details = {"every": failures.every, "best_every": failures.best_interval_steps, "goodput": failures.goodput}
    if lost > LOST and lost * run_plan.device_hours > LOST_DEVICE_HOURS:
        message = (
            f"checkpoint.every ({failures.every:,} steps, {format_seconds(failures.every * run_plan.step.seconds)}) "
            f"costs {1 - failures.goodput:.1%} of the time, with failures; every {failures.best_interval_steps:,} "
            f"would cost {1 - failures.best_goodput:.1%}."
        )
        return Finding(TOPIC, "warning", message, details)
    message = (
        f"checkpoint.every ({failures.every:,} steps) and failures of nodes cost {1 - failures.goodput:.1%} of the "
        "time."
    )
    return Finding(TOPIC, "ok", message, details)
