"""`megaptm report`: a summary of a run from its two journals, metrics.jsonl and events.jsonl. No torch."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from megaptm.console import Console
from megaptm.report.curves import (
    ABANDONED,
    draw_curves,
    loss_curves,
    metric_curve,
    save_picture,
    validation_set_metrics,
)
from megaptm.report.history import History
from megaptm.run.branch import find_returns, is_abandoned
from megaptm.run.changes import recorded_changes
from megaptm.run.time_spent import TimeSpent
from megaptm.track import upload_metrics, view_instructions

PICTURE = "report/loss.png"
MEANINGS = {
    "productive": "steps that were not repeated",
    "lost": "repeated steps, and those that a kill or hang left unfinished",
    "data": "waiting for the data loader of the slowest rank",
    "validation": "validation loss",
    "checkpoint": "saving checkpoints",
    "callbacks": "callbacks, and the metrics of a step",
    "startup": "from the command to the first step",
    "shutdown": "from the last step to the end of a job",
    "between_jobs": "from the end of a job to the start of the next",
    "unmeasured": "wall time that no part covers",
}


def report_run(run: str | Path, *, console: Console | None = None, send: bool = False) -> Path:
    """Print a summary of the run and save its picture; returns the picture's path.

    `send`: first send to the loggers the metrics that they missed.
    """
    run, console = Path(run), console or Console()
    history = History.read(run)
    if send:
        track = history.config.track
        upload_metrics(run, uri=track.uri, experiment=track.experiment, loggers=track.loggers)
    console.print(Text.assemble((run.name, "bold"), f": {history.title}; {history.progress}"))
    if history.origin:
        console.print(Text(history.origin), soft_wrap=True)
    console.print()
    changes, curves = recorded_changes(history.events), loss_curves(history.records)
    # Steps that were repeated after a failure have equal losses.
    returns = find_returns(history.events)
    if abandoned := [record for record in history.abandoned if is_abandoned(record, returns)]:
        curves[ABANDONED] = metric_curve(abandoned, "loss")
    for line in draw_curves(curves, width=min(console.width, 100) - 12, marks=changes):
        console.print(line, no_wrap=True)
    console.print()
    console.print(_metric_table(history))
    for step, text in changes.items():
        console.print(Text(f"Step {step:,}: {text}"), soft_wrap=True)
    for file in _trace_files(history.events):
        console.print(f"Trace:   {run / file}", soft_wrap=True, highlight=False)
    if history.jobs:
        console.print(_time_table(history.time))
    picture = run / PICTURE
    save_picture(picture, history.plot)
    console.print(f"Picture: {picture}", soft_wrap=True)
    if instructions := view_instructions(run.resolve()):
        console.print(f"MLflow:  {', then '.join(instructions)}", soft_wrap=True, highlight=False)
    return picture


def _trace_files(events: list[dict[str, Any]]) -> list[str]:
    """Return the files of all traces, relative to the run folder. A repeated trace replaces its files."""
    lists = [event.get("files") for event in events if event["kind"] == "profile"]
    files = chain.from_iterable(each for each in lists if isinstance(each, list))
    return list(dict.fromkeys(file for file in files if isinstance(file, str)))


def _metric_table(history: History) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    rows = (
        ("loss", "{:.4f}", "training loss, last"),
        ("validation/loss", "{:.4f}", "validation loss, last"),
        *(
            (key, "{:.4f}", f"validation loss of {name}, last")
            for name, key in validation_set_metrics(history.records).items()
        ),
        ("tokens_per_second", "{:,.0f}", "tokens/s, median"),
        ("model_flops_per_second", "{:.3g}", "model FLOP/s, median"),
        ("mfu", "{:.1%}", "MFU, median"),
        ("gpu_idle_share", "{:.1%}", "time without work for the GPU, last trace"),
        ("rank_seconds/median", "{:.3g}", "own work of a step of half of the ranks, seconds, median"),
        ("rank_seconds/slowest", "{:.3g}", "own work of a step of the slowest rank, seconds, median"),
    )
    for key, form, label in rows:
        value = history.median(key) if label.endswith("median") else history.last(key)
        if value is not None:
            table.add_row(label, form.format(value))
        if key == "validation/loss" and history.lowest_validation is not None:
            step, lowest = history.lowest_validation
            table.add_row("validation loss, lowest", f"{lowest:.4f} at step {step:,}")
    if (peak := history.peak_memory) is not None:
        table.add_row("peak memory of rank 0", f"{peak / 2**30:.2f} GiB")
    if skipped := sum(event["kind"] == "skipped-step" for event in history.events):
        table.add_row("steps skipped by the loss scale", f"{skipped:,}")
    if spikes := [event for event in history.events if event["kind"] == "spike"]:
        table.add_row("spikes (skipped)", f"{len(spikes):,} ({sum(event['skipped'] is True for event in spikes):,})")
    return table


def _time_table(total: TimeSpent) -> Table:
    table = Table(box=None, pad_edge=False, title="time of the run", title_justify="left")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    table.add_column("meaning", style="dim")
    for part, seconds in {**total.parts, "unmeasured": total.unmeasured}.items():
        if round(seconds, 1):
            share = f"{seconds / (total.wall or 1.0):.1%}"
            table.add_row(part.replace("_", " "), f"{seconds:,.1f}", share, MEANINGS[part])
    table.add_row("wall time", f"{total.wall:,.1f}", "100.0%", "from the start of the first job to the end of the last")
    if total.effective is not None:
        table.add_row("effective time", "", f"{total.effective:.1%}", "productive share of the wall time (ETTR)")
    return table
