"""Documents, and counts of dropped documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from data_pipeline.time_limit import TimeLimitError
from megaptm.credentials import brief_message
from megaptm.errors import UserError

OnError = Literal["skip", "fail"]
"""Action for text that cannot be read, or on which a step fails: count it as dropped, or end the build."""
TIME_LIMIT_EXCEEDED = "time limit exceeded"
ATTACHED = "image"
"""Note of a document: path or URL of the file that its text describes, and that is stored with it."""
EXAMPLES = 5
"""Number of documents recorded as examples of each drop reason."""
EXAMPLE_CHARACTERS = 200


@dataclass(frozen=True)
class Document:
    """One text with its metadata."""

    text: str
    source: str
    """Name of the origin, `folder/file.txt`, or `file.jsonl@1024` with a byte offset; stored with the tokens."""
    form: str = "prose"
    """`prose` or `code`, which determines sentence splitting."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Metadata from readers and steps, as JSON values: `language`, `url`, `turns` ([[first character, role], ...]),
    `parts` (first character of each part), `ATTACHED`."""
    origin: str = field(default="", compare=False)
    """Format and path of the source, for the report: `json-lines crawl/*.jsonl`."""


@dataclass
class DropCounts:
    """Number of dropped documents per reason, with examples."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Examples of dropped documents: reason -> (source, first characters of the text)."""
    messages: dict[str, str] = field(default_factory=dict)
    """Detailed message about the first document dropped for each reason, with a remedy, if there is one."""

    def add(self, reason: str, source: str, text: str = "", message: str = "") -> None:
        self.counts[reason] += 1
        if message:
            self.messages.setdefault(reason, _without_surrogates(message))
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append((_without_surrogates(source), _without_surrogates(text[:EXAMPLE_CHARACTERS])))

    def add_many(self, reason: str, count: int) -> None:
        if count:
            self.counts[reason] += count

    def merge(self, other: DropCounts) -> None:
        self.counts.update(other.counts)
        for reason, added in other.examples.items():
            own = self.examples.setdefault(reason, [])
            own.extend(added[: EXAMPLES - len(own)])
        self.messages = {**other.messages, **self.messages}

    def count_failure(self, step: str, document: Document, error: Exception, on_error: OnError) -> None:
        """Count a document on which a cleaning `step` failed, or end the build with a `UserError` that names it."""
        message = str(error) if isinstance(error, TimeLimitError) else f"{type(error).__name__}: {brief_message(error)}"
        if on_error == "fail":
            raise UserError(
                f"{step} failed on document {document.source} ({message}): correct it, or skip such text with "
                "`on_error: skip`."
            ) from error
        reason = TIME_LIMIT_EXCEEDED if isinstance(error, TimeLimitError) else f"{step} failed"
        self.add(reason, document.source, document.text, message)


def is_document_error(error: Exception) -> bool:
    """Whether an error is about the document, and not about the recipe, a failing disk or server, or the limits of a
    process (memory, open files).

    Other errors always end the build. They may not occur at the next attempt, and the corpus must not depend on them.
    A `RecursionError` is about the document: nothing but its nesting causes it.
    """
    is_resource_error = isinstance(error, MemoryError | TimeoutError | ConnectionError)  # these may lack an errno
    return not isinstance(error, UserError) and not is_resource_error and getattr(error, "errno", None) is None


def memory_error(action: str) -> UserError:
    """Return the error of an `action`, such as `read crawl.jsonl`, for which this machine has too little memory. No
    document is dropped for it, because a corpus must not depend on the memory of a machine."""
    return UserError(f"there is not enough memory to {action}: use a machine with more memory, or fewer workers.")


def _without_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs in a text, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode()
