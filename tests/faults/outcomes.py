"""Outcomes of faults: their journal, and a table with one row per kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from megaptm.storage import parse_journal


class FaultError(Exception):
    """Raised if a fault did not happen, if the run did not recover, or if a person would be needed."""


@dataclass
class Outcome:
    """Outcome of a fault. It is written to the journal after the fault, and again after the comparison."""

    number: int
    """Number of the fault in its campaign, from 1 on."""
    kind: str
    detail: str = ""
    step: int = 0
    """Last step before the fault."""
    detected: float | None = None
    """Seconds until the event or message that shows the fault; None if the kind has none."""
    restarted: float | None = None
    """Seconds until the first step after a restart."""
    recovered: float | None = None
    """Seconds until the run had recovered (`Kind.until`)."""
    steps_lost: int = 0
    """Number of steps that were trained again."""
    skipped: list[list[int]] = field(default_factory=list)
    """First and last sample of each range that a return to a checkpoint skipped."""
    problem: str = ""
    is_compared: bool = False
    """Whether the losses were compared with those of the undisturbed run."""

    @property
    def result(self) -> str:
        if self.problem or not self.is_compared:
            return self.problem or "not compared"
        samples = ", ".join(f"{first:,}-{last:,}" for first, last in self.skipped)
        return f"samples {samples} skipped" if samples else "same losses"

    def __str__(self) -> str:
        times = f"detected after {seconds(self.detected)}, recovered after {seconds(self.recovered)}"
        return f"{self.number:3} {self.kind} ({self.detail}) at step {self.step:,}: {times}, {self.result}"


def read_outcomes(path: Path) -> tuple[dict[int, Outcome], dict[str, bool]]:
    """Return the outcomes in a journal by number, and the summaries of its parts with whether they were good."""
    outcomes, summaries = dict[int, Outcome](), dict[str, bool]()
    for record in parse_journal(path.read_bytes()) if path.exists() else ():
        del record["time"]
        if "summary" in record:
            summaries[record["summary"]] = record["is_good"]
        else:
            outcomes[record["number"]] = Outcome(**record)
    return outcomes, summaries


def report(paths: Sequence[Path], kinds: Sequence[str]) -> tuple[str, bool]:
    """Return a Markdown table of the outcomes in some journals with the summaries of all parts, and whether all is
    good."""
    journals = [read_outcomes(path) for path in paths]
    outcomes = [outcome for by_number, _ in journals for outcome in by_number.values()]
    summaries = {text: is_good for _, parts in journals for text, is_good in parts.items()}
    failed = [outcome for outcome in outcomes if outcome.problem or not outcome.is_compared]
    rows = ["| fault | faults | detected after | recovered after | steps lost | result |"]
    rows += ["|---|---:|---:|---:|---:|---|"]
    for kind in kinds:
        if faults := [outcome for outcome in outcomes if outcome.kind == kind]:
            detected = spread([fault.detected for fault in faults])
            recovered = spread([fault.recovered for fault in faults])
            lost = max(fault.steps_lost for fault in faults)
            results = "; ".join(dict.fromkeys(fault.result for fault in faults))
            rows.append(f"| {kind} | {len(faults)} | {detected} | {recovered} | {lost} | {results} |")
    lines = [*map(str, failed), *summaries, f"faults: {len(outcomes)}, failed or not compared: {len(failed)}"]
    return "\n".join([*rows, "", *(f"- {line}" for line in lines), ""]), not failed and all(summaries.values())


def spread(values: Sequence[float | None]) -> str:
    """Format the median of some seconds and, if there are several, their maximum."""
    known = [value for value in values if value is not None]
    return seconds(median(known) if known else None) + (f", at most {seconds(max(known))}" if len(known) > 1 else "")


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
