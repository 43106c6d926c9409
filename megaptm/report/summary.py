"""`megaptm report`: a summary of a run from its two journals, metrics.jsonl and events.jsonl. No torch."""

from __future__ import annotations

from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from megaptm.config import Config, UncheckedConfig
from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.report.curves import ABANDONED, curve, draw_curves, loss_curves, save_picture
from megaptm.resilience.events import read_events
from megaptm.run.branch import is_abandoned
from megaptm.run.changes import recorded_changes
from megaptm.run.folder import CONFIG, require_run
from megaptm.run.time_spent import JobTime, TimeSpent, job_times, time_spent
from megaptm.track import read_metrics, upload, view_instructions

PICTURE = "report/loss.png"
MEANINGS = {
    "productive": "steps that were not repeated",
    "lost": "repeated steps, and hangs",
    "data": "waiting for the data loader",
    "validation": "validation loss",
    "checkpoint": "saving checkpoints",
    "startup": "from the command to the first step",
    "other": "shutdown, and unmeasured time",
    "between_jobs": "from the end of a job to the start of the next",
}


def report(run: str | Path, *, console: Console | None = None, send: bool = False) -> Path:
    """Print a summary of the run and save its picture; returns the picture's path.

    `send`: first send to MLflow the metrics that an unreachable server missed.
    """
    run, console = Path(run), console or Console()
    config, all_records = _read_run_config(run), read_metrics(run)
    if send:
        upload(run, uri=config.track.uri, experiment=config.track.experiment, loggers=config.track.loggers)
    events = read_events(run)
    jobs = job_times(events, all_records)
    records = [record for record in all_records if not is_abandoned(record, events)]
    abandoned = [record for record in all_records if is_abandoned(record, events)]
    if not records:
        raise UserError(f"{run} has no metrics yet: `megaptm train {run}` writes them.")
    title = f"{config.model.family}/{config.model.size}, {_objective_name(config)}"
    console.print(Text.assemble((run.name, "bold"), f": {title}; {_progress_text(config, records, jobs)}\n"))
    marks = recorded_changes(events)
    curves = loss_curves(records)
    if abandoned:
        curves[ABANDONED] = curve(abandoned, "loss")
    for line in draw_curves(curves, width=min(console.width, 100) - 12, marks=marks):
        console.print(line, no_wrap=True)
    console.print()
    console.print(_metric_table(records, skipped=sum(event["kind"] == "skipped-step" for event in events)))
    for step, text in marks.items():
        console.print(Text(f"Step {step:,}: {text}"), soft_wrap=True)
    for file in _trace_files(events):
        console.print(f"Trace:   {run / file}", soft_wrap=True, highlight=False)
    if jobs:
        console.print(_time_table(time_spent(jobs)))
    picture = run / PICTURE
    save_picture(picture, records, title=f"{run.resolve().name}: {title}", marks=marks, abandoned=abandoned)
    console.print(f"Picture: {picture}", soft_wrap=True)
    if instructions := view_instructions(run.resolve()):
        console.print(f"MLflow:  {', then '.join(instructions)}", soft_wrap=True, highlight=False)
    return picture


def _read_run_config(run: Path) -> Config:
    require_run(run)
    # An unchecked config: the report needs no code of the user, which may be absent here or not allowed.
    written = UncheckedConfig.read_run(run / CONFIG)
    return written.draft().config or written.load()


def _trace_files(events: list[dict[str, Any]]) -> list[str]:
    """Return the files of all traces, relative to the run folder. A repeated trace replaces its files."""
    lists = [event.get("files") for event in events if event["kind"] == "profile"]
    files = chain.from_iterable(each for each in lists if isinstance(each, list))
    return list(dict.fromkeys(file for file in files if isinstance(file, str)))


def _objective_name(config: Config) -> str:
    try:
        return config.built_objective.name
    except UserError:
        return config.objective if isinstance(config.objective, str) else "+".join(config.objective)


def _progress_text(config: Config, records: list[dict[str, Any]], jobs: list[JobTime]) -> str:
    step = max(record["step"] for record in records)
    starts = f" in {len(jobs)} jobs" if len(jobs) > 1 else ""
    return f"step {step} of {config.train.steps}{starts}"


def _metric_table(records: list[dict[str, Any]], *, skipped: int) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    rows = (
        ("loss", "{:.4f}", "training loss, last"),
        ("validation/loss", "{:.4f}", "validation loss, last"),
        ("tokens_per_second", "{:,.0f}", "tokens/s, median"),
        ("model_flops_per_second", "{:.3g}", "model FLOP/s, median"),
        ("mfu", "{:.1%}", "MFU, median"),
        ("gpu_idle_share", "{:.1%}", "time without work for the GPU, last trace"),
    )
    for key, form, label in rows:
        if points := curve(records, key):
            values = sorted(value for _, value in points) if label.endswith("median") else [points[-1][1]]
            table.add_row(label, form.format(values[len(values) // 2]))
    if peaks := curve(records, "peak_memory_bytes"):
        table.add_row("peak memory of rank 0", f"{max(peak for _, peak in peaks) / 2**30:.2f} GiB")
    if skipped:
        table.add_row("steps skipped by the loss scale", f"{skipped:,}")
    return table


def _time_table(total: TimeSpent) -> Table:
    table = Table(box=None, pad_edge=False, title="time of the run", title_justify="left")
    table.add_column("part")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    table.add_column("meaning", style="dim")
    for part in fields(total):
        seconds = getattr(total, part.name)
        if round(seconds, 1):
            name, share = part.name.replace("_", " "), f"{seconds / (total.wall or 1.0):.1%}"
            table.add_row(name, f"{seconds:,.1f}", share, MEANINGS[part.name])
    table.add_row("wall time", f"{total.wall:,.1f}", "100.0%", "from the start of the first job to the end of the last")
    return table
