"""Canonical form for comparing texts: independent of markup, case, Unicode form and Chinese script variant."""

from __future__ import annotations

import html
import re
import unicodedata
from functools import lru_cache
from typing import Any

import numpy as np

from data_pipeline.clean.step import import_library
from data_pipeline.clean.unicode import normalize

FILLER = "\xad"
"""Character that replaces removed ones, so that the text keeps its length: a soft hyphen, itself removed as a format
character."""

# Comments, scripts and footnotes with their content; tags; entities; links of Wikipedia and Markdown.
MARKUP = re.compile(
    r"<!--.{0,5000}?-->|<(?P<whole>script|style|ref)\b[^<>]*(?<!/)>.{0,5000}?</(?P=whole)\s*>|</?(?P<tag>[A-Za-z][A-Za-z0-9]*)[^<>]*>"
    r"|(?P<entity>&#?\w{2,31};)|\[\[(?:[^\[\]|\n]*\|)?|\]\]|(?<=\])\([^()\s]*\)",
    re.DOTALL,
)
MARKUP_SIGNS = ("<", "&", "[")
# Inline tags, which may occur within a word. Any other tag separates words.
INLINE_TAGS = frozenset(
    re.findall("[a-z]+", "a abbr b big cite code del em font i ins kbd mark q ref s small span strong sub sup tt u wbr")
)
# Invisible characters: control and format characters (Unicode's Cf), variation selectors, halves of surrogate pairs.
INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f"
    "\ufeff\ud800-\udfff\U000e0000-\U000e0fff]+"
)
HAN = re.compile("[\u3400-\u9fff\U00020000-\U0003ffff]")
# Characters that compose with the one before: vowels and finals of Hangul, half-width voiced marks.
COMBINING = r"[\u1160-\u11ff\uff9e\uff9f\uffa0-\uffdc]"


def comparable_text(text: str) -> str:
    """Convert a text to the form in which texts are compared: without markup and format characters, in NFKC,
    case-folded, and in simplified Chinese."""
    return _to_simplified_chinese(_fold_case(_without_markup(text)))


def comparable_text_with_offsets(text: str) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the form of a text for comparisons, and for each of its characters the start and end in `text` (int64)."""
    plain = _without_markup(text)
    if plain.isascii() and plain.isprintable():
        at = np.arange(len(plain))
        return _fold_case(plain), at, at + 1
    visible = [at for at, character in enumerate(plain) if not INVISIBLE.match(character)]
    folded, starts, ends = [], [], []
    first = 0
    for last in range(1, len(visible) + 1):
        if last < len(visible) and _is_combining(plain[visible[last]]):
            continue
        written = _fold_case("".join(plain[at] for at in visible[first:last]))
        folded.append(written)
        starts += [visible[first]] * len(written)
        ends += [visible[last - 1] + 1] * len(written)
        first = last
    return _to_simplified_chinese("".join(folded)), np.array(starts, np.int64), np.array(ends, np.int64)


def _is_combining(character: str) -> bool:
    """Whether a Unicode character combines with the one before it."""
    return unicodedata.category(character)[0] == "M" or re.match(COMBINING, character) is not None


def _without_markup(text: str) -> str:
    """Replace markup in a text with filler of the same length."""
    return MARKUP.sub(_markup_filler, text) if any(mark in text for mark in MARKUP_SIGNS) else text


def _markup_filler(match: re.Match[str]) -> str:
    size = len(match[0])
    if match["entity"]:
        return html.unescape(match[0]).ljust(size, FILLER)
    tag = match["tag"]
    return (" " if tag and tag.lower() not in INLINE_TAGS else FILLER) * size


def _fold_case(text: str) -> str:
    if text.isascii():
        return INVISIBLE.sub("", text).lower()
    # Some lower-case letters expand to several characters, which then compose (Unicode's NFKC_Casefold).
    return normalize("NFKC", normalize("NFKC", INVISIBLE.sub("", text)).casefold())


def _to_simplified_chinese(text: str) -> str:
    """Convert to simplified Chinese without changing the length: by phrase, then the rest by character.

    Thus texts are equal even if their phrases were already simplified with another table.
    """
    if text.isascii() or not HAN.search(text):
        return text
    phrases = _load_opencc().convert(text)
    return (phrases if len(phrases) == len(text) else text).translate(_simplified_characters())


@lru_cache(maxsize=1)
def _load_opencc() -> Any:
    return import_library("opencc", "decontaminate: Chinese text").OpenCC("t2s")


class _SimplifiedCharacters(dict[int, str]):
    """Table of simplified Chinese characters by code point, computed at the first lookup."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        simplified = _load_opencc().convert(character) if HAN.match(character) else character
        self[code] = simplified if len(simplified) == 1 else character
        return self[code]


@lru_cache(maxsize=1)
def _simplified_characters() -> _SimplifiedCharacters:
    return _SimplifiedCharacters()
