"""What flows through the pipeline, and the account of what does not reach its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXAMPLES = 5
"""Documents kept for each reason: enough to go and look."""
EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class Document:
    """One text."""

    text: str
    source: str
    """Where it came from, `folder/file.txt`, or `file.jsonl@1024` with its first byte; kept beside its tokens."""
    form: str = "prose"
    """`prose` or `code`: how it divides into sentences."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What readers and steps learned, as JSON can say it: `language`, `url`, `turns` ([[first character, role], ...]),
    `image` (the file that the text belongs to)."""


@dataclass
class Dropped:
    """How many documents were left out for each reason, and the beginnings of a few."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """reason -> (source, first characters of the text)"""

    def add(self, reason: str, source: str, text: str = "") -> None:
        self.counts[reason] += 1
        kept = self.examples.setdefault(reason, [])
        if len(kept) < EXAMPLES:
            kept.append((source, text[:EXAMPLE_CHARACTERS]))

    def add_many(self, reason: str, count: int) -> None:
        if count:
            self.counts[reason] += count

    def merge(self, other: Dropped) -> None:
        self.counts.update(other.counts)
        for reason, theirs in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine.extend(theirs[: EXAMPLES - len(mine)])
