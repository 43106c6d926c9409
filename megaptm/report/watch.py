"""`megaptm watch`: a run in the terminal, drawn again as its journals grow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from megaptm.console import Console
from megaptm.errors import UserError
from megaptm.report.curves import draw_curves, loss_curves
from megaptm.report.history import History
from megaptm.report.terminal import format_duration
from megaptm.resilience.events import START_KINDS, ExitEvent, read_events
from megaptm.storage import now
from megaptm.track import read_metrics

MAX_READING_SHARE = 0.1
"""Maximum share of the time that is spent on reading the journals of a long run."""
NUM_MARKS = 5


def watch_run(run: Path, console: Console, *, seconds: float = 2.0) -> None:
    """Draw a run every `seconds` until its job ends or the user presses Ctrl-C. Without a terminal, draw it once."""
    start_time = time.monotonic()
    frame = render_run(run, console.width, height=console.height if console.is_terminal else None)
    if not console.is_terminal:
        console.print(frame)
        return
    with Live(frame, console=console, auto_refresh=False, screen=False) as live:
        while not has_ended(run):
            pause = max(seconds, (time.monotonic() - start_time) / MAX_READING_SHARE)
            time.sleep(pause)
            start_time = time.monotonic()
            live.update(render_run(run, console.width, height=console.height), refresh=True)


def has_ended(run: Path) -> bool:
    """Whether the last job of a run ended with an exit code; a killed one may be started again at any time."""
    kinds = [event["kind"] for event in read_events(run) if event["kind"] in (*START_KINDS, ExitEvent.kind)]
    return kinds[-1:] == [ExitEvent.kind]


def render_run(run: Path, width: int, *, height: int | None = None) -> RenderableType:
    """Return the present state of a run: progress, speed, loss curves, and the last marks. `height`: of the terminal,
    which cuts off longer texts."""
    try:
        history = History.read(run)
    except UserError:
        if read_metrics(run) or not (events := read_events(run)):
            raise
        waited = format_duration(max(0.0, now() - events[-1]["time"]))
        return Text(f"no step is done yet; the last event ({events[-1]['kind']}) was {waited} ago")
    curve_height = 14 if height is None else max(4, min(14, height - 11 - min(NUM_MARKS, len(history.marks))))
    return Group(*_draw_lines(history, width, curve_height))


def _draw_lines(history: History, width: int, curve_height: int) -> Iterator[RenderableType]:
    yield Text.assemble((history.name, "bold"), f": {history.title}; {history.progress}")
    steps = history.config.train.steps
    length = min(width, 100)
    num_done = round(length * min(1.0, history.last_step / steps))
    yield Text.assemble(("━" * num_done, "cyan"), ("─" * (length - num_done), "dim"))
    yield Text(", ".join(_describe_speed(history)))
    yield Text()
    yield from draw_curves(loss_curves(history.records), width=max(20, min(width, 100) - 12), height=curve_height)
    if history.marks:
        yield Text()
        for mark in history.marks[-NUM_MARKS:]:
            yield Text(f"step {mark.step:,}  {mark.text}", "dim", overflow="ellipsis", no_wrap=True)


def _describe_speed(history: History) -> Iterator[str]:
    newest = max(history.records, key=lambda record: record["time"])
    for key, form, name in (
        ("tokens_per_second", "{:,.0f}", "tokens/s"),
        ("mfu", "{:.1%}", "MFU"),
        ("step_seconds", "{:.3g}", "s/step"),
        ("learning_rate", "{:.2e}", "learning rate"),
        ("gradient_norm", "{:.3g}", "gradient norm"),
    ):
        if (value := history.last(key)) is not None:
            yield f"{form.format(value)} {name}"
    # After a start, the estimate of the job before does not hold.
    steps = [record for record in history.records if "step_seconds" in record]
    left = steps[-1].get("seconds_left") if steps else None
    if left is not None and not has_ended(history.run):
        yield f"{format_duration(left)} left"
    yield f"last record {format_duration(max(0.0, now() - newest['time']))} ago"
