"""Metrics and the dated entry of `benchmarks/gpu.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from common.gpu_shapes import PEER_GOAL, Shape


def speed(shape: Shape, result: Mapping[str, Any]) -> float:
    """Return tokens or rows per second."""
    return float((result["tokens"] if shape.unit == "tokens" else result["rows"]) / result["seconds"])


def cell(shape: Shape, result: Mapping[str, Any] | None, peak: float | None) -> str:
    """Return time, speed, MFU and memory as text."""
    if result is None:
        return ""
    if "seconds" not in result:
        return str(result.get("skipped") or "failed")
    parts = [f"{result['seconds'] * 1e3:.1f} ms", f"{speed(shape, result):,.0f} {shape.unit}/s"]
    if peak is not None:
        parts.append(f"{result['flops'] / result['seconds'] / peak:.1%} MFU")
    if result["peak_gib"]:
        parts.append(f"{result['peak_gib']:.1f} GiB")
    return ", ".join(parts)


def peers_of(shape: Shape, peers: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """Return the seconds of a step of the peers that were measured."""
    measured = [results.get(shape.name, {}) for results in peers.values()]
    return [result["seconds"] for result in measured if "seconds" in result]


def step_metrics(
    shape: Shape, result: Mapping[str, Any], peers: Mapping[str, Mapping[str, Any]], *, is_full: bool
) -> Iterator[str]:
    """Yield metrics of a shape. `is_full`: it has its published size."""
    if "seconds" not in result:
        return
    seconds = result["seconds"]
    if is_full:
        yield f"METRIC {shape.metric} {speed(shape, result):.0f} {shape.unit}/s goal >={shape.goal}"
    if "idle_share" in result:
        yield f"METRIC {shape.metric}_gpu_idle {100 * result['idle_share']:.1f} % goal <=5"
    if times := peers_of(shape, peers):
        yield f"METRIC {shape.metric}_over_transformers {min(times) / seconds:.2f} ratio goal >={PEER_GOAL}"


def class_table(shapes: list[Shape], results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return Markdown lines: milliseconds of a step by class of kernel."""
    measured = [shape for shape in shapes if "milliseconds" in results.get(shape.name, {})]
    if not measured:
        return []
    totals: dict[str, float] = {}
    for shape in measured:
        for label, value in results[shape.name]["milliseconds"].items():
            totals[label] = totals.get(label, 0.0) + value
    labels = sorted(totals, key=lambda label: -totals[label])
    lines = [
        "",
        "Milliseconds of a step by class of kernel:",
        "",
        f"| model | kernels | idle | {' | '.join(labels)} |",
        f"|---|---:|---:|{'---:|' * len(labels)}",
    ]
    for shape in measured:
        result = results[shape.name]
        cells = (f"{result['milliseconds'].get(label, 0.0):.1f}" for label in labels)
        lines.append(f"| {shape.name} | {result['kernels']:,.0f} | {result['idle_share']:.0%} | {' | '.join(cells)} |")
    return lines


def batch_title(shape: Shape, contenders: Mapping[str, Mapping[str, dict[str, Any]]]) -> str:
    """Return the batch that was measured, as rows x positions."""
    results = (results.get(shape.name, {}) for results in contenders.values())
    measured = next((result for result in results if "rows" in result), None)
    rows = shape.rows if measured is None else measured["rows"]
    return f"{rows} x {shape.length if measured is None else measured['tokens'] // rows}"


def entry_lines(
    title: str,
    notes: list[str],
    shapes: list[Shape],
    contenders: Mapping[str, Mapping[str, dict[str, Any]]],
    peak: float | None,
) -> list[str]:
    """Return the dated entry in Markdown."""
    lines = [f"## {title}", "", *(f"- {note}" for note in notes)]
    if contenders:
        names = [name for name in ("megaptm", "transformers", "compiled") if name in contenders]
        headings = {"megaptm": "megaptm", "transformers": "transformers, eager", "compiled": "transformers, compiled"}
        lines += ["", f"| model, batch x sequence | {' | '.join(headings[name] for name in names)} |"]
        lines.append(f"|---|{'---|' * len(names)}")
        for shape in shapes:
            cells = " | ".join(cell(shape, contenders[name].get(shape.name), peak) for name in names)
            lines.append(f"| {shape.name}, {batch_title(shape, contenders)} | {cells} |")
        lines += class_table(shapes, contenders.get("megaptm", {}))
    return lines


def add_entry(page: Path, lines: list[str]) -> None:
    """Insert an entry before the first one of a page."""
    text = page.read_text(encoding="utf-8")
    introduction, heading, entries = text.partition("\n## ")
    page.write_text(
        introduction + "\n" + "\n".join(lines) + "\n" + (heading + entries if heading else ""), encoding="utf-8"
    )
