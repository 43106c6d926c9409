"""Lines and paragraphs of a text, and a step that removes boilerplate lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from data_pipeline.clean.step import Change, require, require_minimum

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


def text_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank, split at any line end (CRLF, form feed), without trailing white
    space."""
    return [stripped for line in text.splitlines() if (stripped := line.rstrip())]


def text_paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text: groups of `text_lines` between blank lines."""
    lines = (line.rstrip() for line in text.splitlines())
    return ["\n".join(run) for has_text, run in groupby(lines, bool) if has_text]


@dataclass(frozen=True)
class DropLines(Change):
    """Remove short lines that contain one of `phrases` or match a regular expression.

    Longer lines are kept: a long line about cookies is probably a paragraph of content.
    """

    phrases: tuple[str, ...] = BOILERPLATE
    """Phrases of boilerplate lines, matched in any case."""
    patterns: tuple[str, ...] = ()
    """Python regular expressions of boilerplate lines, searched in each line. `^` and `$` match its ends."""
    max_characters: int = 200
    """Maximum characters of a removed line."""

    def __post_init__(self) -> None:
        require_minimum(1, self, "drop-lines", "max_characters")
        for pattern in self.patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                require(False, f"drop-lines: patterns: `{pattern}` is not a regular expression ({error}): correct it.")

    def change(self, text: str) -> str:
        lowered = text.lower()
        phrases = tuple(phrase for phrase in map(str.lower, self.phrases) if phrase in lowered)
        if not phrases and not self.patterns:
            return text
        return "\n".join(line for line in text.split("\n") if not self._is_boilerplate(line, phrases))

    def _is_boilerplate(self, line: str, phrases: tuple[str, ...]) -> bool:
        line = line.removesuffix("\r")
        if not line or len(line) > self.max_characters:
            return False
        lowered = line.lower()
        if any(phrase in lowered for phrase in phrases):
            return True
        return any(_compile_pattern(pattern).search(line) for pattern in self.patterns)


@lru_cache(maxsize=64)
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
