"""Who made the processor of this machine, and its instructions: what is fast on it follows from these, and is not
measured, so that a run that is resumed there takes the same. No torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

DESCRIPTION = Path("/proc/cpuinfo")


@cache
def _words() -> frozenset[str]:
    """Of what Linux says of it."""
    try:
        return frozenset(DESCRIPTION.read_text(errors="replace").split())
    except OSError:  # no Linux, or one that hides it
        return frozenset()


def is_intel() -> bool:
    return "GenuineIntel" in _words()


def is_amd() -> bool:
    return "AuthenticAMD" in _words()


def has_instructions(name: str) -> bool:
    """By the name that Linux has for them, as `avx512_bf16`."""
    return name in _words()
