"""SentencePiece's normalization as components of a tokenizer.json.

SentencePiece replaces the longest match in a table (the charsmap) at each position of a text. The `Precompiled`
component of the tokenizers library uses the same table, but applies it to one grapheme or code point at a time, and
takes the shortest match. Thus decomposed Korean stays decomposed, and decomposed Vietnamese loses its tones. Therefore
`expand_precompiled` surrounds `Precompiled` with components that together give SentencePiece's result:

1. A separator is inserted before each mark that SentencePiece does not compose with the characters before it.

2. Another separator is inserted before all other marks, so that `Precompiled` sees single code points.

3. `Precompiled` replaces these by the table.

4. The second separator is removed.

5. NFC composes the characters that no separator divides.

6. The first separator is removed.

Remaining differences: sequences that the library's NFC does not know because of its Unicode version (21 in the newest
table, in scripts added by Unicode 13 and 16), and the two separators themselves, noncharacters, which are removed.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from megaptm.errors import UserError

if TYPE_CHECKING:
    import tokenizers

NormalizerPart = dict[str, Any]
"""Component of a normalizer in the form of tokenizer.json."""

MAX_PATTERN_LENGTH = 1 << 17
"""Maximum characters of a pattern. SentencePiece's tables need 22,000; a forged table could need any number."""
MAX_GROWTH = 1000
"""Maximum number of characters that a normalizer may make of one. Published tokenizers make a few."""
# Noncharacters of four bytes: `Precompiled` treats graphemes of less than six bytes as a unit, and a mark has two
# bytes.
BLOCK, SPLIT = "\U0001fffe", "\U0001ffff"
# Characters that extend a grapheme without being marks (\p{M}): Hangul vowels and finals, Thai and Lao AM, halfwidth
# sound marks, joiners, skin tones, tags.
JOINING = (
    r"\x{1160}-\x{11ff}\x{d7b0}-\x{d7ff}\x{e33}\x{eb3}\x{ff9e}\x{ff9f}"
    r"\x{200c}\x{200d}\x{1f3fb}-\x{1f3ff}\x{e0020}-\x{e007f}"
)
_CASED = r"[\p{Cased}&&[^\p{Case_Ignorable}]]"
_BEFORE = "|".join(f"(?<={_CASED}{ignorable}Σ)" for ignorable in (r"\p{Case_Ignorable}" * n for n in range(8)))
COMBINING = r"[\x{300}-\x{34e}"
"""Start of the regular expression for all characters with a combining class."""
SIGMA = {
    "type": "Replace",
    "pattern": {"Regex": rf"Σ(?:{_BEFORE})(?!(?>\p{{Case_Ignorable}}{{0,64}}){_CASED})"},
    "content": "ς",
}
"""Component of a normalizer that lower-cases a final sigma as Python does; the library's `Lowercase` only considers
single characters. The bounds keep the cost linear, even for a line of a million dots."""


def expand_precompiled(normalizer: NormalizerPart | None, *, folds: bool = True) -> NormalizerPart | None:
    """Expand the `Precompiled` component of a normalizer to components with SentencePiece's result; a normalizer
    without one is unchanged.

    With `folds`, the folds of ALBERT and XLNet match their own code: only characters with a combining class are
    removed, and not all marks, which include the vowels of Hindi and Thai; a final sigma is lower-cased as such.
    """
    parts = flatten_normalizer(normalizer)
    if not any(part["type"] == "Precompiled" for part in parts) or _collapse_groups(parts) != parts:
        return normalizer
    changed: list[NormalizerPart] = []
    for part in parts:
        if part["type"] == "Precompiled":
            changed += expand_charsmap(part["precompiled_charsmap"])
        elif folds and part["type"] == "StripAccents":
            changed.append(_replace_component(_combining_marks(), "", regex=True))
        else:
            changed += [SIGMA, part] if folds and part["type"] == "Lowercase" else [part]
    return {"type": "Sequence", "normalizers": changed}


def collapse_precompiled(normalizer: NormalizerPart | None) -> NormalizerPart | None:
    """Collapse the components of `expand_precompiled` to `Precompiled` again. The fingerprint and the types of
    components are based on the result."""
    parts = flatten_normalizer(normalizer)
    collapsed = _collapse_groups(parts)
    if collapsed == parts:
        return normalizer
    return collapsed[0] if len(collapsed) == 1 else {"type": "Sequence", "normalizers": collapsed}


def reject_growing_normalizer(normalizer: NormalizerPart | None) -> None:
    """Raise `ValueError` if a normalizer's replacements turn a character into more than MAX_GROWTH: a short text could
    fill the memory."""
    parts = flatten_normalizer(normalizer)
    texts = [part.get("content") or part.get("prepend") or "" for part in parts]
    if all(len(text) < 2 for text in texts):
        return
    stages = [make_library_normalizer(part) for part in parts]
    for start, text in enumerate(texts):
        for stage in stages[start + 1 :] if 1 < len(text) <= MAX_GROWTH else ():
            text = stage.normalize_str(text)
            if len(text) > MAX_GROWTH:
                break
        if len(text) > MAX_GROWTH:
            raise ValueError(f"its normalizer replaces one character by more than {MAX_GROWTH:,}")


def flatten_normalizer(part: Mapping[str, Any] | None) -> list[Any]:
    """Flatten the nested sequences of a normalizer or pre-tokenizer."""
    if part is None:
        return []
    inner = part.get("normalizers", part.get("pretokenizers"))
    return [part] if inner is None else [deeper for entry in inner for deeper in flatten_normalizer(entry)]


def without_prefix(part: NormalizerPart | None) -> NormalizerPart | None:
    """Return a normalizer or pre-tokenizer without the space that it adds before a text."""
    if part is None:
        return None
    inner_name = next((name for name in ("normalizers", "pretokenizers") if name in part), None)
    if inner_name is not None:
        parts = (without_prefix(inner) for inner in part[inner_name] if inner["type"] != "Prepend")
        return {**part, inner_name: [*parts]}
    if part["type"] == "Prepend":
        return None
    changes = {"prepend_scheme": "never", "add_prefix_space": False}
    return {**part, **{name: value for name, value in changes.items() if name in part}}


@lru_cache(maxsize=4)
def expand_charsmap(charsmap: str) -> list[NormalizerPart]:
    """Expand SentencePiece's normalization table, which is in base64 as in tokenizer.json, to six components of a
    normalizer."""
    continuations = _read_replaced_sequences(base64.b64decode(charsmap))
    bases: dict[str, list[str]] = defaultdict(list)
    for base, pattern in continuations.items():
        bases[pattern].append(base)
    following = {character for pattern in bases for character in _characters_of_pattern(pattern)}
    mark = f"[{_class_ranges(following)}{JOINING}\\p{{M}}]"
    # The pattern with most bases comes first: Korean.
    composed = "|".join(
        f"(?<=[{_class_ranges(group)}]){pattern}"
        for pattern, group in sorted(bases.items(), key=lambda item: -len(item[1]))
    )
    # Matches at the first mark after a character, after skipping marks that SentencePiece composes with it.
    block = f"(?={mark})(?<=[\\s\\S])(?:(?:{composed})\\K|)" if composed else f"(?={mark})(?<=[\\s\\S])"
    return [
        _replace_component(block, BLOCK, regex=True),
        _replace_component(f"(?={mark})(?<=[^{BLOCK}])", SPLIT, regex=True),
        {"type": "Precompiled", "precompiled_charsmap": charsmap},
        _replace_component(SPLIT, ""),
        {"type": "NFC"},
        _replace_component(BLOCK, ""),
    ]


def make_nmt_nfkc() -> NormalizerPart:
    """Return SentencePiece's default normalizer, nmt_nfkc, with which T5, ALBERT, XLNet and DeBERTa were trained."""
    try:
        import sentencepiece
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise UserError("training a unigram tokenizer needs SentencePiece: `pip install 'megaptm[corpus]'`.") from None
    normalizer = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    spec = sentencepiece_model_pb2.NormalizerSpec.FromString(  # type: ignore[attr-defined]  # generated
        normalizer.serialized_normalizer_spec()
    )
    return make_precompiled(spec.precompiled_charsmap)


def make_precompiled(charsmap: bytes) -> NormalizerPart:
    """Return the `Precompiled` component for the normalization table of a SentencePiece model."""
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}


def make_library_normalizer(normalizer: NormalizerPart | None) -> tokenizers.normalizers.Normalizer:
    """Return a normalizer component as an object of the tokenizers library, which can only read complete tokenizers."""
    from tokenizers import Tokenizer, models

    content = {**json.loads(Tokenizer(models.WordLevel()).to_str()), "normalizer": normalizer}
    return Tokenizer.from_str(json.dumps(content)).normalizer


def _replace_component(pattern: str, content: str, *, regex: bool = False) -> NormalizerPart:
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": pattern}, "content": content}


def _collapse_groups(parts: list[NormalizerPart]) -> list[NormalizerPart]:
    """Undo `expand_precompiled`: replace each group of components that it created by the original component."""
    collapsed, at = list(parts), 0
    if not any(part == _replace_component(BLOCK, "") for part in parts):
        return collapsed
    while at < len(collapsed):
        kinds = [part["type"] for part in collapsed[at : at + 6]]
        part = collapsed[at]
        if kinds == ["Replace", "Replace", "Precompiled", "Replace", "NFC", "Replace"] and part["content"] == BLOCK:
            collapsed[at : at + 6] = [collapsed[at + 2]]
        elif kinds[0] == "Replace" and part["content"] == SIGMA["content"]:
            del collapsed[at]
            continue
        elif kinds[0] == "Replace" and str(part["pattern"].get("Regex")).startswith(COMBINING):
            collapsed[at] = {"type": "StripAccents"}
        at += 1
    return collapsed


@cache
def _combining_marks() -> str:
    """Return a pattern of all characters with a combining class (`unicodedata.combining`)."""
    return f"[{_class_ranges(filter(unicodedata.combining, map(chr, range(sys.maxunicode + 1))))}]"


def _class_ranges(characters: Iterable[str]) -> str:
    """Return the inside of a regular expression's character class for these characters."""
    codes = sorted({ord(character) for character in characters})
    edges = [index for index in range(1, len(codes)) if codes[index] != codes[index - 1] + 1]
    runs = zip([0, *edges], [*edges, len(codes)], strict=True)
    spans = [(codes[first], codes[last - 1]) for first, last in runs if last > first]
    return "".join(f"\\x{{{a:x}}}" if a == b else f"\\x{{{a:x}}}-\\x{{{b:x}}}" for a, b in spans)


def _characters_of_pattern(pattern: str) -> Iterator[str]:
    for first, last in re.findall(r"\\x\{(\w+)\}(?:-\\x\{(\w+)\})?", pattern):
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1))


def _read_replaced_sequences(charsmap: bytes) -> dict[str, str]:
    """Return the sequences of a normalization table as first code point -> pattern of the longest remainder.

    The table is a double array of darts-clone, in which equal branches are shared, so each is visited once.
    """
    size = struct.unpack_from("<I", charsmap)[0]
    units = np.frombuffer(charsmap, dtype="<u4", count=size // 4, offset=4)
    labels = np.arange(1, 256)

    def offset(unit: int) -> int:
        return (unit >> 10) << ((unit & (1 << 9)) >> 6)

    @cache
    def edges(node: int) -> list[tuple[int, int, bool]]:
        """Return the edges of a node of the table: (byte, child node, whether a sequence ends there)."""
        indices = node ^ labels
        indices = indices[indices < len(units)]
        indices = indices[(units[indices] & 0x800000FF) == (indices ^ node)]
        entries = ((int(index), int(units[index])) for index in indices)
        return [(index ^ node, index ^ offset(unit), bool(unit >> 8 & 1)) for index, unit in entries]

    def characters(node: int, head: bytes = b"") -> Iterator[tuple[str, int, bool]]:
        for byte, child, ends in edges(node):
            raw = head + bytes([byte])
            first = raw[0]
            length = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            if len(raw) < length:
                yield from characters(child, raw)
            else:
                yield raw.decode(), child, ends

    @cache
    def pattern(node: int) -> str:
        """Return a pattern of the possible continuations after a node of the normalization table, longest first; empty
        without any."""
        groups: dict[tuple[str, bool], list[str]] = defaultdict(list)
        for character, child, ends in characters(node):
            groups[pattern(child), ends].append(character)
        choices = []
        for (continuation, ends), group in groups.items():
            choices.append(f"[{_class_ranges(group)}]{continuation}{'?' if continuation and ends else ''}")
        if sum(map(len, choices)) > MAX_PATTERN_LENGTH:
            raise ValueError("its precompiled_charsmap is not a table of SentencePiece")
        return f"(?:{'|'.join(choices)})" if choices else ""

    return {first: remainder for first, child, _ in characters(offset(int(units[0]))) if (remainder := pattern(child))}
