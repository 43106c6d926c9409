"""Comparison of runs: a table of results, differences of their configs, and curves of all in one plot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from megaptm.config import Config
from megaptm.config.phases import phase_errors, phases_after
from megaptm.config.yamls import flatten_keys
from megaptm.console import Console
from megaptm.errors import UserError, printable
from megaptm.report.curves import COLORS, draw_curves, metric_curve, thin_out
from megaptm.report.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = {
    "loss": "training loss",
    "validation/loss": "validation loss",
    "learning_rate": "learning rate",
    "tokens_per_second": "tokens/s",
}
ABSENT = ""
GAP = 2
"""Characters between two columns of a table in the terminal."""
MIN_VALUE = 8
"""Characters that a column of values needs."""
WRITTEN = ("data.cursors.", "train.phase_start.")
"""Keys of a config that a run writes when it enters a phase or changes."""


def read_runs(runs: Sequence[Path]) -> dict[str, History]:
    """Read the histories of runs by name; by path, if two folders have the same name."""
    if len({run.resolve() for run in runs}) < len(runs):
        raise UserError("a run is given twice: name each folder once.")
    histories = [History.read(run) for run in runs]
    names = [history.name for history in histories]
    return {history.name if names.count(history.name) == 1 else str(history.run): history for history in histories}


def result_rows(histories: Mapping[str, History]) -> list[list[str]]:
    """Return the table of results, first the titles, then a row per run. Columns without values are left out."""
    losses = ("training loss", "validation loss", "lowest")
    rows = [["run", "steps", *losses, "tokens/s", "MFU", "peak GiB", "hours", "effective"]]
    for name, history in histories.items():
        lowest = history.lowest_validation
        total, peak = history.time, history.peak_memory
        values = (
            (history.last_step, "{:,}"),
            (history.last("loss"), "{:.4f}"),
            (history.last("validation/loss"), "{:.4f}"),
            (None if lowest is None else lowest[1], "{:.4f}"),
            (history.median("tokens_per_second"), "{:,.0f}"),
            (history.median("mfu"), "{:.1%}"),
            (None if peak is None else peak / 2**30, "{:.2f}"),
            (total.wall / 3600, "{:,.2f}"),
            (total.effective, "{:.1%}"),
        )
        rows.append([name, *(ABSENT if value is None else form.format(value) for value, form in values)])
    used = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    return [[row[column] for column in used] for row in rows]


def config_differences(configs: Sequence[Config]) -> dict[str, list[str]]:
    """Return the keys whose values differ among configs, with the values as text, in the order of the configs. A
    key that is null is absent, as the keys of a section that a config does not have."""
    trees = [_recipe(config) for config in configs]
    differences = {}
    for key in dict.fromkeys(chain.from_iterable(trees)):
        values = [json.dumps(tree[key], ensure_ascii=False) if key in tree else ABSENT for tree in trees]
        if len(set(values)) > 1:
            differences[key] = values
    return differences


def _recipe(config: Config) -> dict[str, Any]:
    """Return the values of a config by key, without those that a run writes itself. Values of later phases follow, with
    the step after which they begin."""
    tree = flatten_keys(config.model_dump(mode="json", exclude={"run", "phases"}))
    phases = [] if any(phase_errors(config)) else phases_after(config, config.train.phase_start)
    later = {f"{key}, after step {phase.start:,}": value for phase in phases for key, value in phase.changes.items()}
    present = {key: value for key, value in tree.items() if value is not None and not f"{key}.".startswith(WRITTEN)}
    return present | later


def print_comparison(histories: Mapping[str, History], console: Console) -> None:
    """Print the loss curves and tables of runs."""
    curves = {name: metric_curve(history.records, "loss") for name, history in histories.items()}
    for line in draw_curves(curves, width=min(console.width, 100) - 12):
        console.print(line, no_wrap=True)
    if len(curves) > len(COLORS):
        console.print(f"{len(COLORS)} of {len(curves)} runs are plotted; --html plots all.")
    console.print()
    titles, *rows = result_rows(histories)
    console.print(_build_table(titles, rows, numbers=True, width=console.width))
    if differences := config_differences([history.config for history in histories.values()]):
        rows = [[key, *values] for key, values in differences.items()]
        console.print()
        console.print(_build_table(["key", *histories], rows, numbers=False, width=console.width))


def _build_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool, width: int) -> Table:
    """Build a table of numbers, or of values by key. Numbers and keys are not wrapped if the table fits the width."""
    # A title of two words has two lines, because a column that is not wrapped is as wide as its title.
    titles = [printable(title).replace(" ", "\n") if numbers else printable(title) for title in titles]
    columns = zip(titles, *rows, strict=True)
    widths = [max(len(line) for cell in column for line in cell.splitlines() or [""]) for column in columns]
    needed = sum(widths) if numbers else widths[0] + MIN_VALUE * (len(widths) - 1)
    fits = needed + GAP * (len(widths) - 1) <= width
    table = Table(box=None, pad_edge=False)
    for column, title in enumerate(titles):
        table.add_column(
            title,
            justify="right" if numbers and column else "left",
            overflow="fold",
            no_wrap=fits and (numbers or not column),
        )
    for row in rows:
        table.add_row(*row)
    return table


def _plot_runs(histories: Mapping[str, History]) -> Figure:
    """Plot the curves of runs over each other."""
    from matplotlib.figure import Figure

    panels = {
        label: {name: metric_curve(history.records, key) for name, history in histories.items()}
        for key, label in PANELS.items()
    }
    panels = {label: curves for label, curves in panels.items() if any(curves.values())}
    figure = Figure(figsize=(9, 2.6 * len(panels) + 1), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, curves) in zip(all_axes, panels.items(), strict=True):
        for name, points in curves.items():
            x, y = zip(*thin_out(points), strict=True) if points else ((), ())
            axes.plot(x, y, label=printable(name), linewidth=1.2, marker="o" if len(x) < 2 else "", markersize=4)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    for text in all_axes[0].legend().get_texts():
        text.set_parse_math(False)
    all_axes[-1].set_xlabel("step")
    return figure


def comparison_page(histories: Mapping[str, History]) -> Iterator[str]:
    """Yield the parts of the page that compares runs."""
    from megaptm.html import escape, html_table
    from megaptm.report.page import figure_as_svg

    yield f"<h1>{escape(', '.join(histories))}</h1><h2>Results</h2>"
    titles, *rows = result_rows(histories)
    yield html_table(titles, rows)
    yield f"<h2>Curves</h2>{figure_as_svg(lambda: _plot_runs(histories), key='comparison')}"
    yield "<h2>Differences of the configs</h2>"
    differences = config_differences([history.config for history in histories.values()])
    if differences:
        rows = [[key, *values] for key, values in differences.items()]
        yield html_table(["key", *histories], rows, is_text=True, breaks_words=True)
    else:
        yield "<p>None.</p>"
