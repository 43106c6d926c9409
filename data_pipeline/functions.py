"""Functions that a recipe names: `package.module:function`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from megaptm.errors import UserError
from megaptm.plugins import is_plugin, load_plugin


def is_function(name: str) -> bool:
    """Whether a setting of a recipe names a function rather than a file."""
    return is_plugin(name)


@lru_cache(maxsize=64)
def load_function(name: str, setting: str) -> Callable[..., Any]:
    """Import a function that a recipe names. Modules of the current directory can be imported. Error messages start
    with `setting`."""
    function: Callable[..., Any] = load_plugin(name, setting, "function")
    if not callable(function):
        raise UserError(f"{setting}: `{name}` is not a function: correct the name.")
    return function


def function_source_file(name: str, setting: str) -> str | None:
    """Return the source file of a function that a recipe names, because finished work depends on it. Its imports are
    not tracked."""
    module = load_function(name, setting).__module__
    return getattr(sys.modules[module], "__file__", None)
