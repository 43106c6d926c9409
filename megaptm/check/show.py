"""Findings in the terminal as they come: ticks and crosses by topic, and a last line that counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from megaptm.check.finding import Finding, State

MARKS: dict[State, Text] = {
    "good": Text("✓", style="green"),
    "warning": Text("!", style="bold yellow"),
    "fault": Text("✗", style="bold red"),
    "unknown": Text("?", style="cyan"),
}
WORDS: dict[State, str] = {"good": "good", "warning": "to be warned of", "fault": "at fault", "unknown": "not known"}
TOPIC_WIDTH = 10


def show(findings: Iterable[Finding], console: Console) -> bool:
    """Print each, a topic named once, and how many there are; whether a fault is among them."""
    counted, before = Counter[State](), ""
    for finding in findings:
        console.print(_line(finding, finding.topic if finding.topic != before else ""))
        counted[finding.state] += 1
        before = finding.topic
    number = [f"{counted[state]} {word}" for state, word in WORDS.items() if counted[state]]
    verdict = ("It cannot start", "bold red") if counted["fault"] else ("It can start", "bold green")
    console.print(Text.assemble("\n", verdict, f": {', '.join(number)}."))
    return bool(counted["fault"])


def _line(finding: Finding, topic: str) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=1)
    line.add_column(width=TOPIC_WIDTH, style="bold")
    line.add_column(overflow="fold")
    line.add_row(MARKS[finding.state], topic, Text(finding.says))
    return line
