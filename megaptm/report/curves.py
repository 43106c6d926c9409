"""Curves of a run: as braille dots in the terminal, and as a picture."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from rich.text import Text

from megaptm.errors import printable
from megaptm.storage import refuse_link, write_atomically
from megaptm.track.journal import OWN_METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from megaptm.report.marks import Mark

Points = Sequence[tuple[float, float]]

# Dots of a braille character, two wide and four high, as bits above U+2800.
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
COLORS = ("cyan", "yellow", "magenta", "green", "red")
ABANDONED = "abandoned"
"""Name of the curve of steps that were repeated from an earlier checkpoint; it is gray."""
MARK_COLORS = {"restart": "gray", "change": "purple", "failure": "darkorange", "spike": "red", "stop": "black"}
"""Colors of the marks of a run in a picture, by kind."""
METRICS = {"learning rate": "learning_rate", "tokens/s": "tokens_per_second"}
"""Metrics of the panels of a picture, by label."""
SET_LOSS = re.compile("validation/.+/loss")
"""Metrics with the loss of a validation set."""
GROUPS = ("gradient_norm", "weight_norm", "update_norm", "rank_seconds")
"""Metrics of the run itself, by the first part of their names, that have panels as those of callbacks have."""
MAX_POINTS = 2000
"""Maximum points of a curve in a picture."""
MAX_PANELS = 8
"""Maximum panels of further metrics in a picture."""


def draw_curves(
    curves: Mapping[str, Points],
    *,
    width: int = 72,
    height: int = 14,
    marks: Iterable[int] = (),
    format_x: Callable[[float], str] = "{:.6g}".format,
) -> list[Text]:
    """Return lines of text that show curves of a run over a common range; NaN and infinite values leave gaps. The axis
    has a tick at each step of `marks`, and its ends as `format_x` returns them."""
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in curves.items()}
    all_points = [point for points in finite.values() for point in points]
    if not all_points:
        return [Text("no finite values yet")]
    (start, stop), (low, high) = _value_range([x for x, _ in all_points]), _value_range([y for _, y in all_points])
    cells = [[0] * width for _ in range(height)]
    colors = [[""] * width for _ in range(height)]
    for _, points, color in _colored(finite):
        dots = [
            (
                round((x - start) / (stop - start) * (2 * width - 1)),
                round((high - y) / (high - low) * (4 * height - 1)),
            )
            for x, y in points
        ]
        for x, y in _connect_points(dots):
            cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]
            colors[y // 4][x // 2] = color
    lines = []
    ticks = {row: high - (high - low) * row / (height - 1) for row in range(height) if row % 3 == 1 or height < 4}
    labels = dict(zip(ticks, _distinct_labels([*ticks.values()]), strict=True))
    for row in range(height):
        label = f"{labels.get(row, ''):>8} "
        line = Text(label + "│")
        for cell, color in zip(cells[row], colors[row], strict=True):
            # A space if there are no dots: in a font without braille, the empty braille character has another width.
            line.append(chr(0x2800 + cell) if cell else " ", style=color)
        lines.append(line)
    ticks_at = {round((step - start) / (stop - start) * (width - 1)) for step in marks if start <= step <= stop}
    lines.append(Text(" " * 9 + "└" + "".join("┴" if column in ticks_at else "─" for column in range(width))))
    lines.append(Text(" " * 10 + f"{format_x(start):<{width // 2}}{format_x(stop):>{width - width // 2}}"))
    return [*lines, *_legend_lines(finite, width)]


def _colored(curves: Mapping[str, Points]) -> Iterator[tuple[str, Points, str]]:
    """Yield the curves with their colors. Abandoned steps come first, so that others are drawn over them."""
    if ABANDONED in curves:
        yield ABANDONED, curves[ABANDONED], "bright_black"
    remaining = ((name, points) for name, points in curves.items() if name != ABANDONED)
    for (name, points), color in zip(remaining, COLORS, strict=False):
        yield name, points, color


def _distinct_labels(values: Sequence[float]) -> list[str]:
    """Format the axis labels of a plot with as many digits, three or more, as distinguish them."""
    for digits in range(3, 8):
        labels = [f"{value:.{digits}g}" for value in values]
        if len(set(labels)) == len(labels):
            break
    return labels


def _legend_lines(curves: Mapping[str, Points], width: int) -> list[Text]:
    """Return the legend lines: color, name and last value of each curve."""
    lines = [Text(" " * 10)]
    for name, points, color in _colored(curves):
        entry = f"{name} {points[-1][1]:.4g}" if points else name
        if len(lines[-1]) > 10 and len(lines[-1]) + len(entry) + 2 > width + 10:
            lines.append(Text(" " * 10))
        lines[-1].append("● ", style=color).append(f"{entry}  ")
    for line in lines:
        line.rstrip()
    return lines


def save_picture(path: Path, figure: Callable[[], Figure]) -> None:
    """Save a plot as PNG."""
    from matplotlib import style

    refuse_link(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    # A `matplotlibrc` in the working directory, possibly an untrusted run, could make LaTeX read files.
    with style.context("default"):
        figure().savefig(content, dpi=120)
    write_atomically(path, content.getvalue())


def plot_curves(
    records: Sequence[Mapping[str, Any]],
    *,
    title: str,
    marks: Sequence[Mark] = (),
    abandoned: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """Plot the curves of a run over steps: the loss (with held-out loss and baselines), each part of a combined loss,
    the learning rate, the speed, and further metrics. Abandoned records are gray."""
    from matplotlib.figure import Figure  # a figure of its own: no display, no global state

    parts = _loss_parts(records)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {
        "loss (weighted sum)" if parts else "loss (nats a token)": loss_curves(records),
        **{f"{name} (nats)": curves for name, curves in parts.items()},
        "learning rate": {"": metric_curve(records, "learning_rate")},
        "tokens/s": {"": metric_curve(records, "tokens_per_second")},
        **other_panels(records),
    }
    heights = [4, *(1.5 for _ in parts), *(1 for _ in range(len(panels) - 1 - len(parts)))]
    figure = Figure(figsize=(9, 2 + sum(heights)), layout="constrained")
    all_axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axes, (label, curves) in zip(all_axes, panels.items(), strict=True):
        for part in _split_repeated(abandoned):
            metric = METRICS.get(label, "loss" if axes is all_axes[0] else f"loss/{label.removesuffix(' (nats)')}")
            if points := thin_out(metric_curve(part, metric)):
                axes.plot(*zip(*points, strict=True), color="lightgray", linewidth=1, zorder=0)
        for name, points in curves.items():
            style = {"linestyle": "--"} if name.startswith("baseline") else {}
            marker = "o" if name.startswith("validation") and len(points) < 50 else ""
            if points:
                width = 1.5 if axes is all_axes[0] and not style else 1
                x, y = zip(*thin_out(points), strict=True)
                axes.plot(x, y, label=printable(name), marker=marker, markersize=4, linewidth=width, **style)
        axes.set_ylabel(printable(label), parse_math=False)
        axes.grid(alpha=0.3)
        if len(curves) > 1 and axes is not all_axes[0] and any(curves.values()):
            _add_legend(axes, fontsize="x-small")
        for mark in marks:
            axes.axvline(mark.step, color=MARK_COLORS[mark.kind], linewidth=1, linestyle=":")
    loss = all_axes[0]
    if abandoned:
        loss.plot([], [], color="lightgray", label=ABANDONED)
    changes = {mark.step: mark.text for mark in reversed(marks) if mark.kind == "change"}  # the first of each step
    for step, text in changes.items():
        label = loss.text(step, 0.02, printable(shorten(text, 60)), transform=loss.get_xaxis_transform(), fontsize=7)
        label.set(rotation=90, horizontalalignment="right", verticalalignment="bottom", parse_math=False)
    for kind in dict.fromkeys(mark.kind for mark in marks):
        loss.plot([], [], color=MARK_COLORS[kind], linestyle=":", label=kind)
    loss.set_title(printable(title), parse_math=False)
    all_axes[-1].set(xlabel="step")
    if loss.get_legend_handles_labels()[0]:
        _add_legend(loss)
    return figure


def _add_legend(axes: Axes, **options: Any) -> None:
    for text in axes.legend(**options).get_texts():
        text.set_parse_math(False)


def _split_repeated(records: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Divide metrics where the step decreases: a run may go back several times."""
    parts: list[list[Mapping[str, Any]]] = []
    for record in (record for record in records if "loss" in record):
        if not parts or record["step"] <= parts[-1][-1]["step"]:
            parts.append([])
        parts[-1].append(record)
    return parts


def other_panels(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return panels of further metrics: norms, seconds of ranks, and metrics of callbacks. Metrics whose names
    have the same first part share a panel."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for key in dict.fromkeys(key for record in records for key in record):
        group, _, name = key.partition("/")
        if group in GROUPS or group not in OWN_METRICS:
            panels.setdefault(group.replace("_", " "), {})[name] = metric_curve(records, key)
    return dict(list(panels.items())[:MAX_PANELS])


def thin_out(points: Points) -> Points:
    """Return at most `MAX_POINTS` points of a curve, with its lowest and highest ones, so that spikes stay."""
    if len(points) <= MAX_POINTS:
        return points
    size = -(-2 * len(points) // MAX_POINTS)
    thinned: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        finite = [point for point in part if math.isfinite(point[1])] or part
        thinned += sorted({min(finite, key=lambda point: point[1]), max(finite, key=lambda point: point[1])})
    return thinned


def _loss_parts(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Return the curves, on training and held-out text, of each loss of a run with several; the loss is their weighted
    sum."""
    keys = dict.fromkeys(key for record in records for key in record if key.startswith("loss/"))
    names = [key.removeprefix("loss/") for key in keys]
    return {
        name: {
            "training": metric_curve(records, f"loss/{name}"),
            "validation": metric_curve(records, f"validation/{name}"),
        }
        for name in names
    }


def loss_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return the loss curves of a run: training and held-out loss, that of each validation set, and each baseline (a
    metric named `baseline/...`) as a horizontal line."""
    curves = {"training": metric_curve(records, "loss"), "validation": metric_curve(records, "validation/loss")}
    curves |= {
        f"validation {name}": metric_curve(records, key) for name, key in validation_set_metrics(records).items()
    }
    steps = [record["step"] for record in records]
    for key in dict.fromkeys(key for record in records for key in record if key.startswith("baseline/")):
        level = metric_curve(records, key)[-1][1]
        curves[f"baseline {key.removeprefix('baseline/')}"] = [(min(steps), level), (max(steps), level)]
    return {name: points for name, points in curves.items() if points}


def validation_set_metrics(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the metric with the loss of each validation set of a run, by the name of the set."""
    keys = dict.fromkeys(key for record in records for key in record if SET_LOSS.fullmatch(key))
    return {key.split("/", 1)[1].removesuffix("/loss"): key for key in keys}


def metric_curve(records: Sequence[Mapping[str, Any]], key: str) -> list[tuple[float, float]]:
    """Return the curve of a metric, (step, value) in order of steps; the last value of a repeated step."""
    return sorted({record["step"]: record[key] for record in records if key in record}.items())


def _value_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _connect_points(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the points of a curve, connected by dots on straight lines."""
    dots = list(points[:1])
    for (x0, y0), (x1, y1) in pairwise(points):
        length = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots += [(x0 + round((x1 - x0) * i / length), y0 + round((y1 - y0) * i / length)) for i in range(1, length + 1)]
    return dots
