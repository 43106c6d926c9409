"""How loops are compiled: by numba, without the interpreter's lock, and kept for the next start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator. Where what was compiled can be kept nowhere, neither beside the module nor in a home, as in a
    container that is read-only, it is compiled at each start, which takes half a minute."""

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            kept: Callable[..., Any] = njit(cache=True, nogil=True, **options)(function)
        except RuntimeError:
            again: Callable[..., Any] = njit(nogil=True, **options)(function)
            return again
        return kept

    return compile_
