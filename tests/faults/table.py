"""Tables of the outcomes of faults: on the terminal, and as Markdown for docs/faults.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from rich.table import Table

from tests.faults.campaign import Outcome

COLUMNS = ("", "fault", "where", "step", "detected after", "recovered after", "steps lost", "result")


def result_of(outcome: Outcome) -> str:
    if outcome.problem:
        return outcome.problem
    return f"batches {outcome.skipped[0]}-{outcome.skipped[-1]} skipped" if outcome.skipped else "same losses"


def cells(outcome: Outcome) -> list[str]:
    """Return the cells of an outcome between its number and its result, in the order of `COLUMNS`."""
    times = (seconds(outcome.detected), seconds(outcome.recovered))
    return [outcome.kind, outcome.detail, f"{outcome.step:,}", *times, str(outcome.steps_lost)]


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(*COLUMNS)
    for number, outcome in enumerate(outcomes, 1):
        table.add_row(str(number), *cells(outcome), result_of(outcome), style="red" if outcome.problem else "")
    return table


def summary_rows(outcomes: Iterable[Outcome], kinds: Sequence[str]) -> list[str]:
    """Return a Markdown table with one row per kind: medians and maxima of its faults."""
    by_kind = {kind: [outcome for outcome in outcomes if outcome.kind == kind] for kind in kinds}
    rows = [
        "| fault | faults | detected after | recovered after | steps lost | result |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for kind, faults in by_kind.items():
        if faults:
            detected = spread([fault.detected for fault in faults])
            recovered = spread([fault.recovered for fault in faults])
            lost = max(fault.steps_lost for fault in faults)
            results = "; ".join(dict.fromkeys(map(result_of, faults)))
            rows.append(f"| {kind} | {len(faults)} | {detected} | {recovered} | {lost} | {results} |")
    return rows


def spread(values: Sequence[float | None]) -> str:
    """Format the median of some seconds and, if there are several, their maximum."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{median(known):.1f} s" + (f", at most {max(known):.1f} s" if len(known) > 1 else "")
