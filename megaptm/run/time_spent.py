"""Breakdown of a run's time by purpose, from its journals, and the measured wall time of all jobs. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
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
    FirstStepEvent,
    ObjectiveEvent,
    ResumeEvent,
    ScheduleEvent,
    StartEvent,
    read_events,
)
from megaptm.storage import now
from megaptm.track import read_metrics


@dataclass
class TimeParts:
    """Seconds that a run has taken by purpose, each measured by itself."""

    productive: float = 0.0
    """Seconds of a run's steps that were not repeated."""
    lost: float = 0.0
    """Seconds of a run's steps that were repeated or abandoned, and of a killed or hung job after its last record."""
    data: float = 0.0
    """Seconds that a run waited for the data of a step, on the slowest rank."""
    validation: float = 0.0
    checkpoint: float = 0.0
    callbacks: float = 0.0
    startup: float = 0.0
    """Seconds from the command to the first step of each job: processes, imports, loading."""
    shutdown: float = 0.0
    """Seconds from the last step of each job to its end."""
    between_jobs: float = 0.0
    """Seconds between two jobs of a run."""


@dataclass
class TimeSpent(TimeParts):
    """Seconds that a run has taken by purpose, and in total."""

    wall: float = 0.0
    """Seconds from the first launch to the end of the last job, by the clock."""

    @property
    def parts(self) -> dict[str, float]:
        """Return the measured seconds by purpose."""
        return {part.name: getattr(self, part.name) for part in fields(TimeParts)}

    @property
    def unmeasured(self) -> float:
        """Return the seconds that no part covers; less than 0 if parts overlap."""
        return self.wall - sum(self.parts.values())

    @property
    def effective(self) -> float | None:
        """Return the effective training time ratio (ETTR), the productive share of the wall time."""
        return self.productive / self.wall if self.wall else None


@dataclass(frozen=True)
class EffectiveTime:
    """Effective training time ratio (ETTR) of a run while it trains."""

    launch_time: float
    """Time of the first launch of the run."""
    productive: float
    """Productive seconds of earlier jobs."""

    @classmethod
    def read(cls, run: Path) -> EffectiveTime:
        """Read the journals of a run whose present job has not made a step yet."""
        jobs = job_times(read_events(run), read_metrics(run))
        return cls(jobs[0].launch_time if jobs else now(), time_spent(jobs).productive)

    def share(self, seconds: float) -> float:
        """Return the productive share of the time since the first launch. `seconds`: productive time of this job."""
        return (self.productive + seconds) / max(now() - self.launch_time, self.productive + seconds, 1e-9)


@dataclass
class JobTime:
    """Time of one job of a run, from launch to end. A restart within a job counts as another."""

    launch_time: float
    ready_time: float | None = None
    """Time at which the job's first step could start; None if it never could."""
    initial_step: int = 0
    """Step after which the job started."""
    end: float = 0.0
    exit: dict[str, Any] | None = None
    """Exit event of the job; None for a killed job."""
    records: list[dict[str, Any]] = field(default_factory=list)

    @property
    def step_records(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the metrics of steps, each with the number of steps that it covers."""
        records = [record for record in self.records if "step_seconds" in record]
        before = [self.initial_step, *(record["step"] for record in records)]
        return [(max(0, record["step"] - last), record) for last, record in zip(before, records, strict=False)]


MEASURED = ("productive", "data", "validation", "checkpoint", "callbacks", "shutdown")
"""Parts that a job itself measures."""


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
        if event["kind"] == FirstStepEvent.kind and job.ready_time is not None and "step_seconds" in event:
            job.ready_time = max(job.ready_time, event["time"] - event["step_seconds"])
        if event["kind"] == ExitEvent.kind:
            job.exit = event
    for record in (record for record in records if not any(key.startswith("evaluation/") for key in record)):
        owner = next((job for job in reversed(jobs) if job.launch_time <= record["time"]), None)
        if owner is not None:
            owner.records.append(record)
            owner.end = max(owner.end, record["time"])
    return jobs


def time_spent(jobs: list[JobTime]) -> TimeSpent:
    """Return the time that a run has taken by purpose, the total over all jobs."""
    total = TimeSpent()
    continued_from: int | None = None
    """Lowest step from which a later job continued."""
    following: JobTime | None = None
    for job in reversed(jobs):
        for name, seconds in _parts(job, continued_from).items():
            setattr(total, name, getattr(total, name) + seconds)
        if following is not None:
            total.between_jobs += max(0.0, following.launch_time - job.end)
        if job.ready_time is not None:
            continued_from = job.initial_step if continued_from is None else min(continued_from, job.initial_step)
        following = job
    if jobs:
        # Journals of older versions contain times that decrease after the system clock was set back.
        total.wall = max(0.0, max(job.end for job in jobs) - jobs[0].launch_time)
    return total


def _parts(job: JobTime, continued_from: int | None) -> dict[str, float]:
    """Return the seconds of a job by purpose. `continued_from`: step from which later jobs repeated this job's
    steps."""
    if job.ready_time is None:
        return {"startup": max(0.0, job.end - job.launch_time)}
    spent = {"startup": max(0.0, job.ready_time - job.launch_time), **_measured_parts(job), "lost": 0.0}
    if job.exit is None:
        saved, lost = _unrecorded_seconds(job, continued_from)
        spent["productive"] += saved
        spent["lost"] += lost
    if continued_from is not None:
        repeated = min(_productive_after(job, continued_from), spent["productive"])
        spent["productive"] -= repeated
        spent["lost"] += repeated
    return spent


def _measured_parts(job: JobTime) -> dict[str, float]:
    """Return the seconds of a job by purpose, from the exit event or else summed from the records."""
    if job.exit is not None:
        return {name: float(job.exit.get(name) or 0.0) for name in MEASURED}
    spent = dict.fromkeys(MEASURED, 0.0)
    for steps, record in job.step_records:
        waiting = record.get("data_wait_seconds", 0.0)
        spent["data"] += steps * waiting
        spent["productive"] += steps * (record["step_seconds"] - waiting)
    for name in ("checkpoint", "validation"):
        spent[name] = sum(record.get(f"{name}_seconds", 0.0) for record in job.records)
    return spent


def _unrecorded_seconds(job: JobTime, continued_from: int | None) -> tuple[float, float]:
    """Return the seconds of a killed job after its last record: those of steps that a checkpoint has kept, and the lost
    ones."""
    records = job.step_records
    last = max([job.ready_time or 0.0, *(record["time"] for record in job.records)])
    seconds = max(0.0, job.end - last)
    if not records or continued_from is None:
        return 0.0, seconds
    newest = records[-1][1]
    saved = min(seconds, max(0, continued_from - newest["step"]) * newest["step_seconds"])
    return saved, seconds - saved


def _productive_after(job: JobTime, step: int) -> float:
    """Return the seconds of the job's recorded steps after `step`."""
    seconds = 0.0
    for steps, record in job.step_records:
        num_steps = min(steps, record["step"] - step)
        seconds += max(0, num_steps) * (record["step_seconds"] - record.get("data_wait_seconds", 0.0))
    return seconds
