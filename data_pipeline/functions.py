"""Functions that a recipe names: `package.module:function`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from megaptm.errors import UserError


def is_function(name: str) -> bool:
    """Whether a setting names a function rather than a file."""
    return re.fullmatch(r"[\w.]+:\w+", name) is not None


@lru_cache(maxsize=64)
def function_named(name: str, setting: str) -> Callable[..., Any]:
    """The function; modules of the current directory are found too. `setting` begins what is said of a mistake."""
    module, _, function = name.partition(":")
    if not is_function(name):
        raise UserError(f"{setting} ({name}) must be written `package.module:function`.")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise UserError(f"{setting}: module `{module}` cannot be imported ({error}): correct the name.") from None
    except AttributeError:
        raise UserError(f"{setting}: module `{module}` has no function `{function}`: correct the name.") from None
    if not callable(found):
        raise UserError(f"{setting}: `{name}` is not a function: correct the name.")
    return found


def file_of(name: str, setting: str) -> str | None:
    """The file of a named function's module: what finished work depends on. What it imports is not looked at."""
    module = function_named(name, setting).__module__
    return getattr(sys.modules[module], "__file__", None)
