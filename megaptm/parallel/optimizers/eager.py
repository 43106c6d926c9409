"""Calls of torch's optimizers without torch's compiler."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"


class _Compiler(ModuleType):
    """Replacement of torch's compiler, with the two functions that optimizers call. Any other imports the compiler."""

    @staticmethod
    def graph_break() -> None: ...

    @staticmethod
    def disable(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(COMPILER), name)


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Keep the constructor and the methods of torch's optimizers from importing the compiler, unless it is imported.

    Its import takes a quarter of the CPU time in which a rank starts on a CPU. They only exclude themselves from
    compilation. On a GPU megatron-core has imported it.
    """
    if COMPILER in sys.modules:
        yield
        return
    replacement = sys.modules[COMPILER] = _Compiler(COMPILER)
    try:
        yield
    finally:
        _remove(replacement)


def _remove(replacement: ModuleType) -> None:
    if sys.modules.get(COMPILER) is replacement:
        del sys.modules[COMPILER]
