"""What the processor of this machine multiplies fast: told by what it is, as what is measured may differ when a run is
resumed. No torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

DESCRIPTION = Path("/proc/cpuinfo")


@cache
def _description() -> str:
    try:
        return DESCRIPTION.read_text(errors="replace")
    except OSError:  # no Linux, or one that hides it
        return ""


@cache
def is_of_intel() -> bool:
    return "GenuineIntel" in _description()


@cache
def is_of_amd() -> bool:
    return "AuthenticAMD" in _description()


@cache
def has(instructions: str) -> bool:
    """By the name that Linux has for them, as `avx512_bf16`."""
    return f" {instructions}" in _description()


def multiplies_bfloat16() -> bool:
    """Whether attention by products of bfloat16 beats torch's fused kernel, as on AMD's cores that have instructions
    for it: 2 rows of 512 places and 12 heads, forward and backward, one thread of an EPYC of family 26: 25 against 54
    ms; 8 rows of 128: 8 against 28 (benchmarks/products.py)."""
    return is_of_amd() and has("avx512_bf16")
