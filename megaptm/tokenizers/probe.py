"""Texts for comparing two tokenizers before the faster one is used."""

from __future__ import annotations

import random
from functools import lru_cache

# Text on which splitting rules of tokenizers differ: spaces, lines, digits, contractions, case, symbols.
ODD = (
    "It's  the 2nd “naïve”\ttest\r\n\n   of 12345 x² — I'LL 漢字 e\u0301 👩‍👧\u00a0\u2028.. \x00 __init__(self): ß\n ",
    "",
    " ",
    "\n\n\n \n",
    "a" * 300,
    "▁ ▁▁a <0x41> <s> </s> <unk> [MASK] <|endoftext|>",
    "HTTPServer camelCase snake_case 3.14e-10 1,234,567 'S 's'S we\u2019ve don't DON'T //path/ \\n {}[]()",
)
CRITICAL = "aZé漢か1٣²'\u2019.,-_/ \t\n\r\v\f\x00\x1c\x85\u00a0\u2028\u3000\u200d\u0301\u1ac1\ufe0f😀▁sStTlL"
LOW, STEP, HIGH = 0x300, 37, 0x20000
"""Code points of the texts on which two tokenizers are compared: all below LOW, and every STEP-th of those up to
HIGH."""


@lru_cache(maxsize=1)
def probe_texts() -> tuple[str, ...]:
    """Return texts on which two tokenizers are compared, about 100,000 characters: odd texts, characters of all scripts
    next to others, and random mixtures."""
    rng = random.Random(0)
    mixtures = ["".join(rng.choices(CRITICAL, k=rng.randint(1, 60))) for _ in range(600)]
    codes = [*range(LOW), *range(LOW, HIGH, STEP)]
    characters = [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    contexts = [
        "".join(f"a{c}b {c}{c}1{c}\n" for c in characters[at : at + 32]) for at in range(0, len(characters), 32)
    ]
    return (*ODD, *mixtures, *contexts)
