"""What flows through the pipeline, and the account of what does not reach its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from data_pipeline.time_limit import TookTooLong
from megaptm.credentials import in_brief
from megaptm.errors import UserError

OnError = Literal["skip", "fail"]
"""Of what cannot be read, or makes a step fail: count it, or end the build there."""
TOOK_TOO_LONG = "took too long"
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
    `parts` (the first character of each text that it is made of), `image` (the file that the text belongs to)."""
    origin: str = field(default="", compare=False)
    """Format and path of the source, for the report: `json-lines crawl/*.jsonl`."""


@dataclass
class Dropped:
    """How many documents were left out for each reason, and the beginnings of a few."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """reason -> (source, first characters of the text)"""
    said: dict[str, str] = field(default_factory=dict)
    """reason -> what is wrong with the first of them, and what to do, where there is more to say"""

    def add(self, reason: str, source: str, text: str = "", said: str = "") -> None:
        self.counts[reason] += 1
        if said:
            self.said.setdefault(reason, _printable(said))
        kept = self.examples.setdefault(reason, [])
        if len(kept) < EXAMPLES:
            kept.append((_printable(source), _printable(text[:EXAMPLE_CHARACTERS])))

    def add_many(self, reason: str, count: int) -> None:
        if count:
            self.counts[reason] += count

    def merge(self, other: Dropped) -> None:
        self.counts.update(other.counts)
        for reason, theirs in other.examples.items():
            mine = self.examples.setdefault(reason, [])
            mine.extend(theirs[: EXAMPLES - len(mine)])
        self.said = {**other.said, **self.said}

    def failed(self, what: str, document: Document, error: Exception, on_error: OnError) -> None:
        """Count a document on which `what` failed, or end the build with a sentence that names it."""
        said = str(error) if isinstance(error, TookTooLong) else f"{type(error).__name__}: {in_brief(error)}"
        if on_error == "fail":
            raise UserError(
                f"{what} failed on document {document.source} ({said}): mend it, or leave such text out with "
                "`on_error: skip`."
            ) from error
        reason = TOOK_TOO_LONG if isinstance(error, TookTooLong) else f"{what} failed"
        self.add(reason, document.source, document.text, said)


def is_of_document(error: Exception) -> bool:
    """Whether an error is of the document at hand: not a mistake in the recipe, nor a disk or a server that gives up.

    Those end a build in any case. Another time they may not, and a corpus is not to depend on that.
    """
    return not isinstance(error, UserError) and getattr(error, "errno", None) is None


def _printable(text: str) -> str:
    """Halves of surrogate pairs cannot be written down."""
    return text.encode("utf-8", "replace").decode()
