"""Report of a run as one HTML page: no scripts, no external resources."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from rich.text import Text

from megaptm.config import config_to_yaml, load_run_config, resolve_spec
from megaptm.errors import UserError
from megaptm.html import full_page, html_bars, html_table, html_tiles
from megaptm.plan.memory import estimate_memory, fullest_stage
from megaptm.plan.workload import make_workload
from megaptm.report.compare import config_differences
from megaptm.report.history import History
from megaptm.report.summary import MEANINGS
from megaptm.run.folder import CONFIG
from megaptm.run.time_spent import time_spent
from megaptm.spec import LayerlessSpec
from megaptm.storage import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIB = 2**30


def write_report_page(path: Path, title: str, body: Iterable[str]) -> None:
    """Write an HTML page about runs to a file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, full_page(title, body).encode())


def run_page(history: History, samples: Sequence[tuple[str, Text]], no_samples: str = "") -> Iterator[str]:
    """Yield the parts of a run's page. `samples`: titles and texts of samples; `no_samples`: why there are none."""
    yield f"<h1>{escape(history.name)}</h1><p class=faint>{escape(f'{history.title}; {history.progress}')}</p>"
    yield f"<p class=faint>{escape(history.origin)}</p>" if history.origin else ""
    yield html_tiles(_key_figures(history))
    yield "<h2>Curves</h2>"
    yield figure_as_svg(history.plot, key=history.name)
    if history.marks:
        rows = ([f"{mark.step:,}", mark.kind, mark.text] for mark in history.marks)
        marks = html_table(("step", "kind", "what"), rows, is_text=True)
        yield f"<details open><summary>Marks</summary>{marks}</details>"
    yield from _time_parts(history)
    yield from _memory_parts(history)
    yield "<h2>Samples</h2>"
    yield from (f"<p class=faint>{escape(title)}</p><pre>{text_to_html(text)}</pre>" for title, text in samples)
    yield f"<p>{escape(no_samples)}</p>" if no_samples else ""
    yield from _config_parts(history)


def _key_figures(history: History) -> dict[str, str]:
    """Return the most important numbers of a run: name -> number as text."""
    total = history.time
    figures: dict[str, tuple[float | None, str]] = {
        "training loss": (history.last("loss"), "{:.4f}"),
        "validation loss": (history.last("validation/loss"), "{:.4f}"),
        "tokens/s": (history.median("tokens_per_second"), "{:,.0f}"),
        "MFU": (history.median("mfu"), "{:.1%}"),
        "effective time": (total.effective, "{:.1%}"),
        "peak GiB of rank 0": (None if (peak := history.peak_memory) is None else peak / GIB, "{:.2f}"),
    }
    return {name: form.format(value) for name, (value, form) in figures.items() if value is not None}


def figure_as_svg(figure: Callable[[], Figure], *, key: str) -> str:
    """Return a figure as SVG inside HTML, with text as text. `key` distinguishes its ids from those of other
    figures."""
    from matplotlib import rc_context, style

    content = io.BytesIO()
    with style.context("default"), rc_context({"svg.fonttype": "none", "svg.hashsalt": key}):
        figure().savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    text = content.getvalue().decode()
    return f"<div class=wide>{text[text.index('<svg') :]}</div>"


def text_to_html(text: Text) -> str:
    """Return a text as HTML with its styled parts marked."""
    pieces, end = [], 0
    for span in sorted(text.spans, key=lambda span: span.start):
        start = max(span.start, end)
        pieces += [escape(text.plain[end:start]), f"<mark>{escape(text.plain[start : span.end])}</mark>"]
        end = max(end, span.end)
    return "".join([*pieces, escape(text.plain[end:])])


def _time_parts(history: History) -> Iterator[str]:
    total = history.time
    yield "<h2>Where time went</h2>"
    spent = {**total.parts, "unmeasured": max(0.0, total.unmeasured)}
    by_part = {f"{name.replace('_', ' ')}: {MEANINGS[name]}": seconds for name, seconds in spent.items() if seconds}
    yield html_bars(by_part, form="{:,.1f} s", share_of=total.wall)
    yield f"<p>{total.wall:,.1f} s from the start of the first job to the end of the last.</p>"
    if not history.jobs:
        return
    yield "<h2>Jobs</h2>"
    names, speeds, effective, rows = [], {}, {}, []
    for number, job in enumerate(history.jobs, 1):
        names.append(f"job {number}")
        steps = [record["step"] for record in job.records if "step_seconds" in record]
        tokens = [record["tokens_per_second"] for record in job.records if "tokens_per_second" in record]
        speeds[names[-1]] = median(tokens) if tokens else 0.0
        own = time_spent([job])
        effective[names[-1]] = own.effective or 0.0
        begin = _utc(job.launch_time)
        ended = "running or killed" if job.exit is None else f"exit code {job.exit.get('code')}"
        reached = f"{min(steps):,} to {max(steps):,}" if steps else "none"
        rows.append([names[-1], begin, f"{own.wall:,.1f}", reached, ended])
    yield html_table(("job", "begin (UTC)", "seconds", "recorded steps", "end"), rows)
    yield f"<h3>Tokens per second, median</h3>{html_bars(speeds, form='{:,.0f}')}"
    yield f"<h3>Effective time: productive share</h3>{html_bars(effective, form='{:.1%}', largest=1.0)}"


def _utc(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # a damaged journal
        return "unknown"


def _memory_parts(history: History) -> Iterator[str]:
    yield "<h2>Memory</h2>"
    if (peak := history.peak_memory) is not None:
        yield f"<p>Peak of rank 0: {peak / GIB:.2f} GiB.</p>"
    try:
        if isinstance(resolve_spec(history.config), LayerlessSpec):
            return
        stages = estimate_memory(make_workload(history.config))
    except UserError as error:  # code of the user that is absent here
        yield f"<p>The plan is not known here: {escape(str(error))}</p>"
        return
    parts = stages[fullest_stage(stages)].parts()
    yield "<p>Planned for a rank of the fullest stage:</p>"
    yield html_bars({name: size / GIB for name, size in parts.items() if size}, form="{:,.3f} GiB")


def _config_parts(history: History) -> Iterator[str]:
    yield "<h2>Config</h2>"
    if (parent := history.parent) is not None:
        yield f"<p>Differences from <code>{escape(parent)}</code>, from which the run starts:</p>"
        try:
            differences = config_differences([load_run_config(Path(parent) / CONFIG), history.config])
            rows = ([key, *values] for key, values in differences.items())
            yield html_table(("key", "there", "here"), rows, is_text=True, breaks_words=True)
        except (OSError, UserError) as error:
            yield f"<p>Its config cannot be read: {escape(str(error))}</p>"
    text = config_to_yaml(history.config)
    yield f"<details><summary>{CONFIG}</summary><pre>{escape(text)}</pre></details>"
