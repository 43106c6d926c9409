"""The lines of a text, and those that pages carry beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from data_pipeline.clean.step import Change, require, require_least

BOILERPLATE = (
    "accept all cookies",
    "accept cookies",
    "we use cookies",
    "this site uses cookies",
    "this website uses cookies",
    "cookie settings",
    "all rights reserved",
    "click here to",
    "skip to content",
    "skip to main content",
    "back to top",
    "sign up for our newsletter",
    "subscribe to our newsletter",
    "share on facebook",
    "share on twitter",
    "share this:",
    "enable javascript",
    "leave a comment",
    "log in to post",
    "powered by wordpress",
)


def lines_of(text: str) -> list[str]:
    """The lines that are not blank, whatever ends them (CRLF, a form feed), without white space at their ends."""
    return [stripped for line in text.splitlines() if (stripped := line.rstrip())]


def paragraphs_of(text: str) -> list[str]:
    """Runs of lines, as `lines_of` gives them, between blank ones: empty, or of white space."""
    lines = (line.rstrip() for line in text.splitlines())
    return ["\n".join(run) for some, run in groupby(lines, bool) if some]


@dataclass(frozen=True)
class DropLines(Change):
    """Remove lines that have one of some phrases, or match a regular expression; short ones only.

    A long line that speaks of cookies is a paragraph about them.
    """

    phrases: tuple[str, ...] = BOILERPLATE
    """In whatever case."""
    patterns: tuple[str, ...] = ()
    """Python's regular expressions, searched in each line; `^` and `$` are its ends."""
    longest: int = 200
    """Characters; a longer line stays."""

    def __post_init__(self) -> None:
        require_least(1, self, "drop-lines", "longest")
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                require(False, f"drop-lines: patterns: `{pattern}` is no regular expression ({error}): correct it.")

    def change(self, text: str) -> str:
        lowered = text.lower()
        phrases = tuple(phrase for phrase in map(str.lower, self.phrases) if phrase in lowered)
        if not phrases and not self.patterns:
            return text
        return "\n".join(line for line in text.split("\n") if not self._drops(line, phrases))

    def _drops(self, line: str, phrases: tuple[str, ...]) -> bool:
        line = line.removesuffix("\r")
        if not line or len(line) > self.longest:
            return False
        lowered = line.lower()
        if any(phrase in lowered for phrase in phrases):
            return True
        return any(_compiled(pattern).search(line) for pattern in self.patterns)


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
