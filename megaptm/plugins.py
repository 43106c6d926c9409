"""What a user brings without a fork: `package.module:NAME`, where a name of ours could stand."""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

from megaptm.errors import UserError


def is_plugin(name: str) -> bool:
    """Whether a setting names something in a module of the user's."""
    return re.fullmatch(r"[\w.]+:\w+", name) is not None


def load_plugin(name: str, setting: str, what: str) -> Any:
    """What is called so; modules of the current directory are found too.

    `setting` begins what is said of a mistake; `what` is a function, a family ...
    """
    module, _, attribute = name.partition(":")
    if not is_plugin(name):
        raise UserError(f"{setting} ({name}) must be written `package.module:{what}`.")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise UserError(f"{setting}: module `{module}` cannot be imported ({error}): correct the name.") from None
    except AttributeError:
        raise UserError(f"{setting}: module `{module}` has no {what} `{attribute}`: correct the name.") from None
