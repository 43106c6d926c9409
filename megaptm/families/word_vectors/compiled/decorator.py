"""Compilation of loops by numba, without the GIL, with a cache for later starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


class CompiledCache(FunctionCache):  # type: ignore[misc]  # numba has no types
    """Cache of compiled code, beside the module or in `NUMBA_CACHE_DIR`. It is optional: errors of numba about a
    truncated cache file or a full disk do not end a run."""

    @contextmanager
    def _guard_against_spurious_io_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:  # pickle raises many types
            with suppress(Exception):
                self.flush()


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a loop over word vectors with numba. If nothing can be cached, as in a read-only
    container, each start compiles for half a minute."""

    def compile_(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher: Any = njit(nogil=True, **options)(function)
        with suppress(RuntimeError):  # no cache folder
            dispatcher._cache = CompiledCache(function)
        compiled_function: Callable[..., Any] = dispatcher
        return compiled_function

    return compile_
