"""How loops are compiled: by numba, without the interpreter's lock, and kept for the next start where they can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class KeptLoop(FunctionCache):  # type: ignore[misc]  # numba says nothing of types
    """What was compiled, kept beside the module or in a home (`NUMBA_CACHE_DIR`): a help, without which a run does as
    well. What numba raises of a file that a crash has cut short, or of a home that is full, is no reason to end."""

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # pickle's are of all kinds
            with suppress(Exception):
                self.flush()


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator. Where nothing can be kept, as in a container that is read-only, loops are compiled at each start,
    which takes half a minute."""

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        made: Any = njit(nogil=True, **options)(function)
        with suppress(RuntimeError):  # no folder for it
            made._cache = KeptLoop(function)
        found: Callable[..., Any] = made
        return found

    return compile_
