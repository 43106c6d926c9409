"""Repair wrongly decoded text, and normalize equivalent and invisible characters."""

from __future__ import annotations

import re
import sys
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from data_pipeline.clean.step import Change, import_library, require

FORMS = ("NFC", "NFD", "NFKC", "NFKD", "none")

# Characters that end a line or page, according to Unicode's line breaking (UAX 14) and Python's `splitlines`. Words do
# not extend across them.
LINE_ENDS = "\x0b\x0c\x1c\x1d\x1e"
# Control characters except tab and line ends; soft hyphen; zero-width space and word joiner; byte order mark; halves of
# surrogate pairs; noncharacters. The joiners U+200C and U+200D and direction marks are part of spelling and stay.
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u200b\u2060\ufeff\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]+"
)
NEW_LINES = str.maketrans(dict.fromkeys(LINE_ENDS, "\n"))
MAX_MARKS, STRIDE = 1024, 64
"""Maximum combining marks on a letter, and distance of the characters that are examined first."""
INVISIBLE_ASCII = bytes(code for code in range(128) if INVISIBLE.match(chr(code)))


@dataclass(frozen=True)
class RepairEncoding(Change):
    """Repair UTF-8 that was decoded with another encoding (`schÃ¶n`), with ftfy, line by line. Nothing else changes."""

    def change(self, text: str) -> str:
        if text.isascii():
            return text
        parts, end = [], 0
        while match := _mojibake_pattern().search(text, end):
            first = max(end, text.rfind("\n", end, match.start()) + 1)
            last = text.find("\n", match.end()) % (len(text) + 1)
            parts += [text[end:first], import_library("ftfy", "repair-encoding").fix_encoding(text[first:last])]
            end = last
        return "".join([*parts, text[end:]]) if parts else text


@lru_cache(maxsize=1)
def _mojibake_pattern() -> re.Pattern[str]:
    """Pattern of the first two bytes of a UTF-8 character in any encoding that ftfy knows, or a control character.

    It is about a hundred times as fast as ftfy's own check, which is only applied to matching lines.
    """
    clues = import_library("ftfy.chardata", "repair-encoding").UTF8_CLUES
    first = "".join(clues[f"utf8_first_of_{count}"] for count in (2, 3, 4))
    return re.compile(f"[{first}][{clues['utf8_continuation']}]|[\x80-\x9f]")


@dataclass(frozen=True)
class NormalizeUnicode(Change):
    """Normalize Unicode (Standard Annex 15), and remove invisible characters."""

    form: str = "NFC"
    """Unicode normalization form: `NFC` changes no letter; `NFKC` also converts ligatures, full-width and superscript
    letters to plain ones."""
    remove_invisible: bool = True
    """Remove control characters except tab and line ends, zero-width spaces, soft hyphens and byte order marks. A
    vertical tab or form feed becomes a line end."""
    simplify_chinese: bool = False
    """Convert traditional to simplified Chinese characters with OpenCC, phrase by phrase."""
    fold_case: bool = False
    """Whether to convert text to lower case."""

    def __post_init__(self) -> None:
        require(
            self.form in FORMS, f"normalize-unicode: form ({self.form}) is not known: use one of {', '.join(FORMS)}."
        )

    def change(self, text: str) -> str:
        if self.remove_invisible:
            text = _without_invisible(text.translate(NEW_LINES) if any(end in text for end in LINE_ENDS) else text)
        if self.simplify_chinese and not text.isascii():
            text = _load_opencc().convert(text)
        text = self._compose_unicode(text)
        # Again, because mathematical capitals become plain capitals first, and some lower-case letters are two
        # characters.
        return self._compose_unicode(text.lower()) if self.fold_case else text

    def _compose_unicode(self, text: str) -> str:
        return text if self.form == "none" else normalize(self.form, text)


def normalize(form: str, text: str) -> str:
    """Return a text in a normalization form of Unicode. Raises `ValueError` for too many marks on one letter, which
    Python sorts in quadratic time."""
    if not text.isascii():
        sampled, complete = _runs_of_marks()
        if sampled.search(text[::STRIDE]) and complete.search(text):
            raise ValueError(f"more than {MAX_MARKS:,} marks follow one letter")
    return unicodedata.normalize(form, text)  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def _runs_of_marks() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return a pattern that every STRIDE-th character of more than MAX_MARKS marks matches, and one for all of them."""
    marks = "".join(chr(code) for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code)))
    return re.compile(f"[{marks}]{{{MAX_MARKS // STRIDE}}}"), re.compile(f"(?<![{marks}])[{marks}]{{{MAX_MARKS + 1}}}")


def _without_invisible(text: str) -> str:
    if text.isascii():
        encoded = text.encode("ascii")
        visible = encoded.translate(None, INVISIBLE_ASCII)
        return text if len(visible) == len(encoded) else visible.decode("ascii")
    return INVISIBLE.sub("", text)


@lru_cache(maxsize=1)
def _load_opencc() -> Any:
    return import_library("opencc", "normalize-unicode: simplify_chinese").OpenCC("t2s")
