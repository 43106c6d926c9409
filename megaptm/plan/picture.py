"""Drawing of a plan: an HTML page with inline drawings and no scripts or external files, or a PNG picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from megaptm.errors import UserError, printable
from megaptm.plan import costs
from megaptm.plan.plan import Plan
from megaptm.plan.schedule import Pass, timeline
from megaptm.plan.show import PARTS, layout_words, parts_of_memory, seconds_words
from megaptm.plan.stages import stages

GIB = 2**30
COLORS = (
    *("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677"),
    *("#aa3377", "#bbbbbb", "#997700", "#004488", "#117733"),
)
FORWARD, BACKWARD = ("#4477aa", "#77aadd", "#225588"), ("#cc6677", "#ee99aa", "#882255")
MOST_PASSES = 4000
"""Largest number of passes that are drawn; pages with more rectangles open slowly."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --faint: #808080 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
table { border-collapse: collapse } td, th { padding: .15rem 1rem .15rem 0; text-align: left }
td, th { border-bottom: 1px solid var(--line) } td + td, th + th { text-align: right }
td, th { font-variant-numeric: tabular-nums }
.tiles { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem } .tiles b { display: block; font-size: 1.4rem }
.faint { color: var(--faint) } svg { width: 100%; height: auto; display: block } svg text { fill: currentColor }
.drawing { overflow-x: auto } .drawing svg { min-width: 40rem }
.keys { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: .6rem 0 } .keys span { white-space: nowrap }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .3em } .bad { color: #cc6677 }
"""


def draw(plan: Plan, path: Path) -> None:
    """Write the plan to `path`: a page if it ends in .html, a picture if it ends in .png."""
    if path.suffix not in (".html", ".png"):
        raise UserError(f"--plot {path}: the name must end in .html or .png.")
    if not path.parent.is_dir():
        raise UserError(f"--plot {path}: there is no folder {path.parent}; make it first.")
    if path.suffix == ".html":
        path.write_text(html(plan), encoding="utf-8")
    else:
        _png(plan, path)


def drawn_passes(plan: Plan) -> tuple[list[Pass], int]:
    """Return the pipeline schedule of as many micro-batches as can be drawn, and their number."""
    layout, count = plan.work.layout, plan.work.microbatches
    room = max(2 * layout.pipeline, MOST_PASSES // (2 * layout.pipeline * layout.virtual))
    shown = min(count, max(layout.pipeline, room - room % layout.pipeline))
    passes = [costs_of_stage(plan, stage) for stage in range(layout.pipeline)]
    return (
        timeline(
            stages=layout.pipeline,
            chunks=layout.virtual,
            microbatches=shown,
            forward=[forward / layout.virtual for forward, _ in passes],
            backward=[backward / layout.virtual for _, backward in passes],
        ),
        shown,
    )


def costs_of_stage(plan: Plan, stage: int) -> tuple[float, float]:
    """Return the seconds of one micro-batch in a stage, forward and backward."""
    one = costs.stage(plan.machine, plan.work, stages(plan.work)[stage])
    return one.forward.total, one.backward.total + one.again.total


def html(plan: Plan) -> str:
    """Return the page."""
    step, failures, work = plan.step, plan.failures, plan.work
    passes, shown = drawn_passes(plan)
    fullest = plan.memory[plan.fullest]
    tiles = {
        "a step": seconds_words(step.seconds),
        "of peak (MFU)": f"{step.mfu:.1%}",
        "tokens/s": f"{work.tokens / step.seconds:,.0f}",
        "with failures": f"{plan.days_with_failures:,.3g} days",
        "device hours": f"{plan.device_hours:,.0f}",
        "fullest rank": f"{fullest.total / GIB:.1f} GiB",
        "goodput": f"{failures.goodput:.1%}",
    }
    fit = "" if plan.fits else f"<p class=bad>Does not fit: {plan.machine.usable_bytes / GIB:.1f} GiB can be used.</p>"
    note = "" if shown == work.microbatches else f" The first {shown:,} of {work.microbatches:,} micro-batches."
    body = [
        f"<h1>{escape(plan.title)} on {plan.nodes:,} x {plan.machine.devices} {escape(plan.machine.name)}</h1>",
        f"<p class=faint>{plan.parameters:,} parameters; {layout_words(work.layout)}; {work.precision}, "
        f"batch {work.batch:,}</p>",
        f"<div class=tiles>{''.join(f'<div><b>{value}</b>{name}</div>' for name, value in tiles.items())}</div>{fit}",
        "<h2>Memory of a rank, by stage</h2>",
        _bars(plan),
        "<h2>Time of a step</h2>",
        _table(
            (PARTS[name], seconds_words(value), f"{value / step.seconds:.1%}")
            for name, value in step.parts().items()
            if value
        ),
        f"<h2>The pipeline</h2><p class=faint>A row a stage, time to the right; blue forward, red backward, a shade a "
        f"chunk.{note}</p>",
        _timeline(passes, work.layout.pipeline),
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(plan.title)}</title>"
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _table(rows: Iterable[Sequence[str]]) -> str:
    return f"<table>{''.join(_row(row) for row in rows)}</table>"


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _bars(plan: Plan) -> str:
    """Draw a bar per stage, labeled with its total; the dashed line is the usable memory of a device."""
    usable, names = plan.machine.usable_bytes, parts_of_memory(plan)
    most = max(usable, *(one.total for one in plan.memory))
    height, shapes = 14, []
    for row, one in enumerate(plan.memory):
        at = 60.0
        shapes.append(f"<text x=0 y={row * height + 10} font-size=10>stage {row}</text>")
        for name, color in zip(names, COLORS, strict=False):
            value = one.parts()[name]
            width = value / most * 880
            title = f"<title>{name} {value / GIB:.2f} GiB</title>"
            shapes.append(_rectangle(at, row * height, width, height - 2, color, title))
            at += width
        shapes.append(f"<text x={at + 5:.1f} y={row * height + 10} font-size=10>{one.total / GIB:.1f}</text>")
    line, end = 60 + usable / most * 880, len(plan.memory) * height
    shapes.append(f"<line x1={line:.1f} x2={line:.1f} y1=0 y2={end} stroke=currentColor stroke-dasharray=3 />")
    keys = zip(names, COLORS, strict=False)
    legend = "".join(f"<span><span class=key style='background:{color}'></span>{name}</span>" for name, color in keys)
    limit = f"{usable / GIB:.1f} GiB, which {escape(plan.machine.name)} has to give"
    said = f"<p class=faint>In GiB; the dashed line: {limit}.</p>"
    return f"{said}{_drawing(end, shapes)}<div class=keys>{legend}</div>"


def _drawing(height: int, shapes: Iterable[str]) -> str:
    """Return an SVG of width 1000. Narrow windows scroll it, so that its text stays readable."""
    return f"<div class=drawing><svg viewBox='0 0 1000 {height}'>{''.join(shapes)}</svg></div>"


def _timeline(passes: Sequence[Pass], number: int) -> str:
    end, height = max(one.stop for one in passes), max(6, min(18, 400 // number))
    shapes = []
    for one in passes:
        shade = (BACKWARD if one.backward else FORWARD)[one.chunk % 3]
        left, width = one.start / end * 1000, (one.stop - one.start) / end * 1000
        title = f"<title>{'backward' if one.backward else 'forward'} {one.microbatch}, chunk {one.chunk}</title>"
        shapes.append(_rectangle(left, one.stage * height, max(width - 0.3, 0.2), height - 1, shade, title))
    return _drawing(number * height, shapes)


def _rectangle(x: float, y: float, width: float, height: float, color: str, title: str) -> str:
    return f"<rect x={x:.1f} y={y:.1f} width={width:.2f} height={height} fill='{color}'>{title}</rect>"


def _png(plan: Plan, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, style

    style.use("default")  # not what a `matplotlibrc` in the working directory says
    passes, _ = drawn_passes(plan)
    figure, (memory, schedule) = pyplot.subplots(2, 1, figsize=(12, 8), constrained_layout=True)
    title = f"{plan.title} on {plan.nodes:,} x {plan.machine.devices} {plan.machine.name}"
    figure.suptitle(printable(title), parse_math=False)
    _draw_memory(memory, plan)
    for one in passes:
        shade = (BACKWARD if one.backward else FORWARD)[one.chunk % 3]
        schedule.barh(one.stage, one.stop - one.start, left=one.start, color=shade, height=0.9)
    schedule.invert_yaxis()
    schedule.set(xlabel="seconds", ylabel="stage", title=f"a step: {plan.step.seconds:.3g} s, MFU {plan.step.mfu:.1%}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_memory(axes: Any, plan: Plan) -> None:
    numbers, left = range(len(plan.memory)), [0.0] * len(plan.memory)
    for name, color in zip(parts_of_memory(plan), COLORS, strict=False):
        values = [one.parts()[name] / GIB for one in plan.memory]
        axes.barh(numbers, values, left=left, color=color, label=name)
        left = [before + value for before, value in zip(left, values, strict=True)]
    axes.axvline(plan.machine.usable_bytes / GIB, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set(xlabel="GiB", ylabel="stage", title="memory of a rank; the line is what the device has to give")
    axes.legend(loc="lower right", fontsize=8)
