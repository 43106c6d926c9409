"""Findings in the terminal as they come: ticks and crosses by topic, and a last line that counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from megaptm.check.finding import Finding, State, counted

MARKS: dict[State, Text] = {
    "good": Text("✓", style="green"),
    "warning": Text("!", style="bold yellow"),
    "fault": Text("✗", style="bold red"),
    "unknown": Text("?", style="cyan"),
}
WORDS: dict[State, str] = {"fault": "faults", "warning": "warnings", "unknown": "unknown", "good": "good"}
TOPIC_WIDTH = 10


def show(findings: Iterable[Finding], console: Console) -> bool:
    """Print each, a topic named once, and how many there are; whether a fault is among them."""
    found, before = Counter[State](), ""
    for finding in findings:
        console.print(_line(finding, finding.topic if finding.topic != before else ""))
        found[finding.state] += 1
        before = finding.topic
    number = [counted(found[state], state, many) for state, many in WORDS.items() if found[state]]
    verdict = Text("Faults", MARKS["fault"].style) if found["fault"] else Text("No fault", MARKS["good"].style)
    console.print(Text.assemble("\n", verdict, f": {', '.join(number)}."))
    return bool(found["fault"])


def _line(finding: Finding, topic: str) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=1)
    line.add_column(width=TOPIC_WIDTH, style="bold")
    line.add_column(overflow="fold")
    line.add_row(MARKS[finding.state], topic, Text(finding.says))
    return line
