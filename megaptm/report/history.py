"""History of a run, read from its config and its two journals: metrics, events, jobs and marks for its curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from megaptm.config import Config, UncheckedConfig
from megaptm.errors import UserError
from megaptm.report.curves import metric_curve, plot_curves
from megaptm.report.marks import Mark, find_marks
from megaptm.resilience.events import read_events
from megaptm.run.branch import describe_branch, find_branch
from megaptm.run.folder import CONFIG, require_run
from megaptm.run.time_spent import JobTime, TimeSpent, job_times, time_spent
from megaptm.track import read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class History:
    """Metrics and events of a run, with the marks for its curves."""

    run: Path
    config: Config
    records: list[dict[str, Any]]
    """Metrics of the steps that led to the newest one, and of evaluations."""
    abandoned: list[dict[str, Any]]
    """Metrics of steps that were repeated from an earlier checkpoint, after a failure or by a command."""
    events: list[dict[str, Any]]
    jobs: list[JobTime]

    @classmethod
    def read(cls, run: Path) -> History:
        """Read a run's history; raise `UserError` if it has no metrics yet."""
        require_run(run)
        # An unchecked config: a report needs no code of the user, which may be absent here or not allowed.
        written = UncheckedConfig.read_run(run / CONFIG)
        config = written.draft().config or written.load()
        records, events = read_metrics(run), read_events(run)
        if not records:
            raise UserError(f"{run} has no metrics yet: `megaptm train {run}` writes them.")
        return cls(run, config, *split_abandoned(records, events), events, job_times(events, records))

    @property
    def name(self) -> str:
        return self.run.resolve().name

    @property
    def title(self) -> str:
        """Return model and objective as text."""
        return f"{self.config.model.family}/{self.config.model.size}, {_objective_name(self.config)}"

    @property
    def progress(self) -> str:
        """Return the number of steps, and of jobs if there were several, as text."""
        jobs = f" in {len(self.jobs)} jobs" if len(self.jobs) > 1 else ""
        return f"step {self.last_step} of {self.config.train.steps}{jobs}"

    @property
    def last_step(self) -> int:
        return int(max(record["step"] for record in self.records))

    @property
    def parent(self) -> str | None:
        """Folder of the run from which this one branched, or took its initial weights."""
        source = (find_branch(self.events) or {}).get("run")
        return source if isinstance(source, str) else self.config.train.init_from

    @property
    def origin(self) -> str:
        """Return from which run this one branched, and what it keeps of it, as text; empty if it is no branch."""
        event = find_branch(self.events)
        return describe_branch(event) if event is not None else ""

    @property
    def time(self) -> TimeSpent:
        return time_spent(self.jobs)

    @cached_property
    def marks(self) -> list[Mark]:
        return find_marks(self.events, self.records)

    def plot(self) -> Figure:
        """Plot the curves of the run, with marks."""
        title = f"{self.name}: {self.title}"
        return plot_curves(self.records, title=title, marks=self.marks, abandoned=self.abandoned)

    def last(self, key: str) -> float | None:
        """Return the value of a metric at its last step; None without one."""
        points = metric_curve(self.records, key)
        return points[-1][1] if points else None

    def median(self, key: str) -> float | None:
        """Return the median of a metric over all its records; None without one."""
        points = metric_curve(self.records, key)
        return median(value for _, value in points) if points else None

    @property
    def lowest_validation(self) -> tuple[float, float] | None:
        """Return the step and the value of the lowest validation loss; None without a finite one."""
        points = [point for point in metric_curve(self.records, "validation/loss") if math.isfinite(point[1])]
        return min(points, key=lambda point: point[1], default=None)

    @property
    def peak_memory(self) -> float | None:
        """Return the peak memory of rank 0 over all jobs, in bytes."""
        return max((value for _, value in metric_curve(self.records, "peak_memory_bytes")), default=None)


def split_abandoned(
    records: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split metrics into those of the run's present history and those of steps before which it started again."""
    current: list[dict[str, Any]] = []
    abandoned: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    # The first step that is done again: that of the first record of a later job, or the one after a `back` event.
    backs = [
        {"time": event["time"], "again": event["step"] + 1}
        for event in events
        if event["kind"] == "back" and "step" in event
    ]
    newest = 0
    for record in sorted([*map(dict, records), *backs], key=lambda record: record["time"]):
        if any(key.startswith(("evaluation/", "baseline/")) for key in record):
            evaluations.append(record)
            continue
        again = record.get("again", record["step"] if "step_seconds" in record else None)
        if again is not None and again <= newest:
            # Records after that of the newest step may be of the later job: norms, metrics of callbacks.
            last = max((index for index, other in enumerate(current) if "step_seconds" in other), default=-1)
            limits = [again if index <= last or "again" in record else again + 1 for index in range(len(current))]
            split = [(other, other["step"] >= limit) for other, limit in zip(current, limits, strict=True)]
            current = [other for other, is_abandoned in split if not is_abandoned]
            abandoned += [other for other, is_abandoned in split if is_abandoned]
        newest = newest if again is None else again - ("again" in record)
        if "again" not in record:
            current.append(record)
    return [*current, *evaluations], sorted(abandoned, key=lambda record: record["time"])


def _objective_name(config: Config) -> str:
    try:
        return config.built_objective.name
    except UserError:
        return config.objective if isinstance(config.objective, str) else "+".join(config.objective)
