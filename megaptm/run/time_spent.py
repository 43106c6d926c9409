"""Breakdown of a run's time. The parts add up to the wall time across all jobs. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from megaptm.resilience.events import (
    START_KINDS,
    AbandonedCheckpointEvent,
    BackEvent,
    BranchEvent,
    ChangeEvent,
    DataMovedEvent,
    EvaluationEvent,
    ExitEvent,
    HangEvent,
    ObjectiveEvent,
    ResumeEvent,
    ScheduleEvent,
    StartEvent,
)


@dataclass
class TimeSpent:
    """Seconds that a run has taken by purpose, from the first launch to the end of the last job."""

    productive: float = 0.0
    """Seconds of a run's steps that were not repeated."""
    lost: float = 0.0
    """Seconds of a run's steps that were repeated because the job ended before they were saved, and of waiting until a
    hang was detected."""
    data: float = 0.0
    """Seconds that a run waited for the data loader."""
    validation: float = 0.0
    checkpoint: float = 0.0
    callbacks: float = 0.0
    startup: float = 0.0
    """Seconds from the command to the first step of each job: processes, imports, loading."""
    other: float = 0.0
    """Seconds of shutdown and of unmeasured time of a run. For a killed job this includes its last steps without a
    record."""
    between_jobs: float = 0.0
    """Seconds between two jobs of a run."""

    @property
    def wall(self) -> float:
        return sum(getattr(self, part.name) for part in fields(self))


@dataclass
class JobTime:
    """Time of one job of a run, from launch to end."""

    launch_time: float
    ready_time: float | None = None
    """Time at which the job's first step could start; None if it never could."""
    initial_step: int = 0
    """Step after which the job started."""
    end: float = 0.0
    exit: dict[str, Any] | None = None
    """Exit event of the job; None for a killed job."""
    hang_seconds: float = 0.0
    """Seconds of the hang that ended the job."""
    records: list[dict[str, Any]] = field(default_factory=list)


PARTS = ("productive", "data", "validation", "checkpoint", "callbacks")


def job_times(events: list[dict[str, Any]], records: list[dict[str, Any]]) -> list[JobTime]:
    """Return the jobs of a run, in order, from its two journals."""
    jobs: list[JobTime] = []
    # Events that do not belong to a job: later evaluations, and preparation of the next job.
    without_job = {
        kind.kind
        for kind in (
            AbandonedCheckpointEvent,
            BackEvent,
            BranchEvent,
            ChangeEvent,
            DataMovedEvent,
            EvaluationEvent,
            ObjectiveEvent,
            ScheduleEvent,
        )
    }
    for event in (event for event in events if event["kind"] not in without_job):
        opens = event["kind"] in (StartEvent.kind, ResumeEvent.kind)
        if event["kind"] in START_KINDS or (opens and (not jobs or jobs[-1].ready_time is not None)):
            jobs.append(JobTime(launch_time=event["time"]))
        if not jobs:
            continue
        job = jobs[-1]
        job.end = max(job.end, event["time"])
        if opens:
            job.ready_time, job.initial_step = event["time"], event.get("step", 0)
        if event["kind"] == ExitEvent.kind:
            job.exit = event
        if event["kind"] == HangEvent.kind:
            job.hang_seconds = float(event.get("seconds") or 0.0)
    for record in (record for record in records if not any(key.startswith("evaluation/") for key in record)):
        owner = next((job for job in reversed(jobs) if job.launch_time <= record["time"]), None)
        if owner is not None:
            owner.records.append(record)
            owner.end = max(owner.end, record["time"])
    return jobs


def time_spent(jobs: list[JobTime]) -> TimeSpent:
    """Return the time that a run has taken by purpose, the total over all jobs."""
    total = TimeSpent()
    for job, following in zip_longest(jobs, jobs[1:]):
        spent = _measured_parts(job)
        for name, seconds in spent.items():
            setattr(total, name, getattr(total, name) + seconds)
        # Journals of older versions contain times that decrease after the system clock was set back.
        startup = max(0.0, (job.end if job.ready_time is None else job.ready_time) - job.launch_time)
        total.startup += startup
        other = max(0.0, job.end - job.launch_time - startup - sum(spent.values()))
        hang_seconds = min(max(job.hang_seconds, 0.0), other)
        total.other += other - hang_seconds
        total.lost += hang_seconds
        if following is not None:
            if following.ready_time is not None:
                repeated = min(_productive_after(job, following.initial_step), spent["productive"])
                total.productive -= repeated
                total.lost += repeated
            total.between_jobs += max(0.0, following.launch_time - job.end)
    return total


def _measured_parts(job: JobTime) -> dict[str, float]:
    """Return the seconds of a job by purpose, from the exit event or else summed from the records."""
    if job.exit is not None:
        return {name: float(job.exit.get(name) or 0.0) for name in PARTS}
    spent = dict.fromkeys(PARTS, 0.0)
    for steps, record in _step_records(job):
        waiting = record.get("data_wait_seconds", 0.0)
        spent["data"] += steps * waiting
        spent["productive"] += steps * (record["step_seconds"] - waiting)
    spent["checkpoint"] = sum(record.get("checkpoint_seconds", 0.0) for record in job.records)
    return spent


def _step_records(job: JobTime) -> list[tuple[int, dict[str, Any]]]:
    """Return the metrics of steps, each with the number of steps that it covers."""
    records = [record for record in job.records if "step_seconds" in record]
    before = [job.initial_step, *(record["step"] for record in records)]
    return [(max(0, record["step"] - last), record) for last, record in zip(before, records, strict=False)]


def _productive_after(job: JobTime, step: int) -> float:
    """Return the seconds of the job's steps after `step` that were not repeated."""
    seconds = 0.0
    for steps, record in _step_records(job):
        num_steps = min(steps, record["step"] - step)
        seconds += max(0, num_steps) * (record["step_seconds"] - record.get("data_wait_seconds", 0.0))
    return seconds
