"""What flows through the pipeline, and the account of what does not reach its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

EXAMPLES = 5
"""Names kept for each reason: enough to go and look."""


@dataclass(frozen=True)
class Document:
    """One text."""

    text: str
    source: str
    """Where it came from, `folder/file.txt` or `file.jsonl:12`; kept beside its tokens."""
    form: str = "prose"
    """`prose` or `code`: how it divides into sentences."""


@dataclass
class Dropped:
    """How many documents were left out for each reason, and the names of a few."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, source: str) -> None:
        self.counts[reason] += 1
        names = self.examples.setdefault(reason, [])
        if len(names) < EXAMPLES:
            names.append(source)

    def merge(self, other: Dropped) -> None:
        self.counts.update(other.counts)
        for reason, names in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine.extend(names[: EXAMPLES - len(mine)])
