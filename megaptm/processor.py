"""Vendor and instructions of this machine's processor. The choice of kernels depends on them and not on measurements,
so that a resumed run makes the same choice. No torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

DESCRIPTION = Path("/proc/cpuinfo")


@cache
def _words() -> frozenset[str]:
    """Return the words of the processor description of Linux."""
    try:
        return frozenset(DESCRIPTION.read_text(errors="replace").split())
    except OSError:  # not Linux, or hidden
        return frozenset()


def is_intel() -> bool:
    return "GenuineIntel" in _words()


def is_amd() -> bool:
    return "AuthenticAMD" in _words()


def has_instructions(name: str) -> bool:
    """Whether the processor has these instructions, by Linux's name, such as `avx512_bf16`."""
    return name in _words()
