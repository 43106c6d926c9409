"""What a user brings without a fork: `package.module:NAME`, where a name of ours could stand."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from megaptm.errors import UserError

ALLOW_CODE = "MEGAPTM_ALLOW_CODE"
"""Environment variable with the modules that runs may name, separated by commas. Child processes inherit it."""
NAMED_BY_USER: set[str] = set()
"""Modules that a config names which the user wrote."""
NAMED_BY_RUNS: dict[str, str] = {}
"""Module -> the config of the run that names it. A run's folder may come from anybody."""
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
    """What is called so, in an installed module or one on PYTHONPATH; a module that only a run's folder names must be
    allowed (`allow_code`).

    `setting` begins what is said of a mistake; `what` is a function, a family ... Whatever a module does on its import,
    leaving the program included, is a mistake of its own; what it prints is none of a command's output.
    """
    module, _, attribute = name.partition(":")
    if not is_plugin(name):
        raise UserError(f"{setting} ({name}) must be written `package.module:{what}`.")
    if module in NAMED_BY_RUNS and module not in NAMED_BY_USER and not is_allowed(module):
        raise UserError(
            f"{setting}: {NAMED_BY_RUNS[module]} names code, module `{module}`, and a run's folder may come from "
            f"anybody: if you trust that module, add `--allow-code {module}` "
            f"(in Python `megaptm.allow_code({module!r})`)."
        )
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = getattr(importlib.import_module(module), attribute, ABSENT)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the user's code raises, as it is imported or asked for a name
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = str(error) if absent else in_words(error)
        remedy = _remedy_absent(module) if absent else "mend it"
        raise UserError(f"{setting}: module `{module}` cannot be imported ({why}): {remedy}.") from None
    if found is ABSENT:
        raise UserError(f"{setting}: module `{module}` has no {what} `{attribute}`: correct the name.")
    return found


def _remedy_absent(module: str) -> str:
    top = module.partition(".")[0]
    if os.path.isdir(top) or os.path.isfile(f"{top}.py"):
        return "the working directory has one, but is searched only if you name it: `export PYTHONPATH=$PWD`"
    return "correct the name, or add the folder of the module to PYTHONPATH"


def allow_code(*modules: str) -> None:
    """Allow the folders of runs to name code in these modules, and in modules within them."""
    for module in modules:
        if not re.fullmatch(r"\w+(\.\w+)*", module):
            raise UserError(f"allow_code ({module!r}) must be the name of a module, as in `package.module`.")
    os.environ[ALLOW_CODE] = ",".join(dict.fromkeys((*_allowed(), *modules)))


def is_allowed(module: str) -> bool:
    """Whether `allow_code` names the module, or a package that it is in."""
    return any(f"{module}.".startswith(f"{name}.") for name in _allowed())


def _allowed() -> list[str]:
    return [name.strip() for name in os.environ.get(ALLOW_CODE, "").split(",") if name.strip()]


def modules_named(values: Any) -> Iterator[str]:
    """Return the module of each `package.module:NAME` among the keys and values of a config."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from modules_named(key)
            yield from modules_named(value)
    elif isinstance(values, list):
        for value in values:
            yield from modules_named(value)
    elif isinstance(values, str) and is_plugin(values):
        yield values.partition(":")[0]


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
