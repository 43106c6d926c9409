"""What a user brings without a fork: `package.module:NAME`, where a name of ours could stand."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
from typing import Any

from megaptm.errors import UserError

ABSENT = object()
"""In the place of a name that a module has not."""
OUR_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


class PluginError(UserError):
    """Code of the user's has failed, in the midst of our work."""

    traceback: str = ""
    """For the log: of who raised it in another process, the traceback does not come along."""


def is_plugin(name: str) -> bool:
    """Whether a setting names something in a module of the user's."""
    return re.fullmatch(r"\w+(\.\w+)*:\w+", name) is not None


def load_plugin(name: str, setting: str, what: str) -> Any:
    """What is called so; modules of the current directory are found too.

    `setting` begins what is said of a mistake; `what` is a function, a family ... Whatever a module does on its import,
    leaving the program included, is a mistake of its own; what it prints is none of a command's output.
    """
    module, _, attribute = name.partition(":")
    if not is_plugin(name):
        raise UserError(f"{setting} ({name}) must be written `package.module:{what}`.")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = getattr(importlib.import_module(module), attribute, ABSENT)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's code raises, as it is imported or asked for a name
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = str(error) if absent else in_words(error)
        remedy = "correct the name, or add the folder of the module to PYTHONPATH" if absent else "mend it"
        raise UserError(f"{setting}: module `{module}` cannot be imported ({why}): {remedy}.") from None
    if found is ABSENT:
        raise UserError(f"{setting}: module `{module}` has no {what} `{attribute}`: correct the name.")
    return found


def is_ours(kind: type) -> bool:
    """Whether a class is one of megaptm's; any other is the user's, or of a library."""
    return kind.__module__.partition(".")[0] == __package__


def plugin_error(what: str, error: BaseException) -> PluginError:
    """The sentence in the place of what code of the user's has raised; `what` it was doing begins it."""
    made = PluginError(f"{what} failed ({in_words(error)}): mend it.")
    made.traceback = "".join(traceback.format_exception(error))
    return made


def in_words(error: BaseException) -> str:
    """What a module of the user's raised, and where."""
    kind = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(("<", OUR_FOLDER))]
    place = f", {own[-1].filename}:{own[-1].lineno}" if own else ""
    return f"{kind}: {error}{place}"
