"""Plugins: code of the user.

A config names an object as `package.module:NAME`, in place of a built-in name. An installed package registers itself by
an entry point; its modules are then found as those of the folders of `megaptm/families`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Any

from megaptm.errors import UserError
from megaptm.python_path import searched_folders

EXTENSIONS = ("megaptm.distillation",)
"""Folders of megaptm that extend the core as families do, without being families."""
ALLOW_CODE = "MEGAPTM_ALLOW_CODE"
"""Environment variable with the modules that runs may name, separated by commas. Child processes inherit it."""
NAMED_BY_USER: set[str] = set()
"""Modules that configs written by the user name; they may be imported."""
NAMED_BY_RUNS: dict[str, str] = {}
"""Modules that configs of runs name, each with such a config. A run's folder may come from an untrusted source."""
ABSENT = object()
"""Marker for an attribute that a plugin's module does not have."""
ENTRY_POINTS = "megaptm.families"
"""Group of the entry points of packages that add what a folder of `megaptm/families` can add."""
PACKAGE_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
LIBRARY_FOLDERS = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "purelib", "platlib"))


class PluginError(UserError):
    """Raised for a failure in code of the user."""

    traceback: str = ""
    """Traceback of the failure for the log: an error raised in another process arrives without its own."""


def is_plugin(name: str) -> bool:
    """Whether a value of a config has the form `package.module:NAME`."""
    return re.fullmatch(r"\w+(\.\w+)*:\w+", name) is not None


def is_module(name: str) -> bool:
    """Whether a value of a config has the form `package.module`."""
    return re.fullmatch(r"\w+(\.\w+)*", name) is not None


def load_plugin(name: str, setting: str, kind: str) -> Any:
    """Import the object with this name from an installed module, or from one on PYTHONPATH.

    A module that only a run's folder names must be allowed (`allow_code`). Error messages start with `setting`; `kind`
    is that of the object: a function, a family ... Any failure of the import, SystemExit included, becomes a
    PluginError. Output of an import in the main thread goes to stderr.
    """
    module, _, attribute = name.partition(":")
    if not is_plugin(name):
        raise UserError(f"{setting} ({name}) must be written `package.module:{kind}`.")
    if module in NAMED_BY_RUNS and module not in NAMED_BY_USER and not is_allowed(module):
        raise UserError(
            f"{setting}: {NAMED_BY_RUNS[module]} names code in module `{module}`, and a run's folder may be untrusted: "
            f"if you trust that module, add `--allow-code {module}` (in Python `megaptm.allow_code({module!r})`)."
        )
    result = _import_attribute(module, attribute, setting)
    if result is ABSENT:
        raise UserError(f"{setting}: module `{module}` has no {kind} `{attribute}`: correct the name.")
    return result


def _import_attribute(module: str, name: str, setting: str) -> Any:
    """Import a plugin's module and return its attribute, or ABSENT. Any failure, SystemExit included, becomes a
    UserError."""
    # All threads share sys.stdout: two that redirect it at the same time would leave it redirected.
    is_main = threading.current_thread() is threading.main_thread()
    try:
        with contextlib.redirect_stdout(sys.stderr) if is_main else contextlib.nullcontext():
            return getattr(importlib.import_module(module), name, ABSENT)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # anything raised by the import or by `__getattr__`
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        reason = str(error) if absent else describe_error(error)
        remedy = _remedy_absent(module) if absent else "fix it"
        raise UserError(f"{setting}: module `{module}` cannot be imported ({reason}): {remedy}.") from None


@cache
def registered_packages() -> dict[str, str]:
    """Return the packages that installed distributions register, and the distribution of each.

    The entry points are those of installed distributions, and of folders on PYTHONPATH, but not of the working
    directory, which may come from an untrusted source.
    """
    packages = {
        point.value: distribution.name
        for distribution in distributions(path=searched_folders())
        for point in distribution.entry_points
        if point.group == ENTRY_POINTS
    }
    return dict(sorted(packages.items()))


def registered_attributes(module: str, name: str) -> Iterator[Any]:
    """Yield the attribute `name` of `PACKAGE.module` for each registered package that has both. Without `module` it is
    an attribute of the package itself."""
    for package, distribution in registered_packages().items():
        setting = f"entry point of {distribution}, group {ENTRY_POINTS}"
        if not is_module(package) or _import_attribute(package, "__path__", setting) is ABSENT:
            raise UserError(f"{setting}: {package} must be a package, a folder with __init__.py: correct it.")
        path = f"{package}.{module}" if module else package
        if find_spec(path) and (attribute := _import_attribute(path, name, setting)) is not ABSENT:
            yield attribute


def package_attributes(packages: Iterable[str], module: str, name: str) -> Iterator[Any]:
    """Yield the attribute `name` of `PACKAGE.module`, for each package of megaptm that has both."""
    for package in packages:
        path = f"{package}.{module}"
        if find_spec(path) and (attribute := getattr(importlib.import_module(path), name, None)) is not None:
            yield attribute


def load_class(record: Any, field: str) -> Any:
    """Import the class, or the function, that a field of a record names: its costs, its module or its stack."""
    return load_plugin(getattr(record, field), f"{type(record).__name__}.{field}", "class")


def _remedy_absent(module: str) -> str:
    top = module.partition(".")[0]
    if os.path.isdir(top) or os.path.isfile(f"{top}.py"):
        return "the working directory has it, but is not searched by default: `export PYTHONPATH=$PWD`"
    return "correct the name, or add the folder of the module to PYTHONPATH"


def allow_code(*modules: str) -> None:
    """Allow the folders of runs to name code in these modules and their submodules."""
    for module in modules:
        if not is_module(module):
            raise UserError(f"allow_code ({module!r}) must be the name of a module, as in `package.module`.")
    os.environ[ALLOW_CODE] = ",".join(dict.fromkeys((*_allowed_modules(), *modules)))


def is_allowed(module: str) -> bool:
    """Whether `allow_code` has allowed the module or one of its parent packages."""
    return any(f"{module}.".startswith(f"{name}.") for name in _allowed_modules())


def _allowed_modules() -> list[str]:
    return [name.strip() for name in os.environ.get(ALLOW_CODE, "").split(",") if name.strip()]


def named_modules(values: Any) -> Iterator[str]:
    """Yield the module of each `package.module:NAME` among the keys and values of a config."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from named_modules(key)
            yield from named_modules(value)
    elif isinstance(values, list):
        for value in values:
            yield from named_modules(value)
    elif isinstance(values, str) and is_plugin(values):
        yield values.partition(":")[0]


def is_builtin(kind: type) -> bool:
    """Whether a class is defined in megaptm, and not by the user or a library."""
    return kind.__module__.partition(".")[0] == __package__


def plugin_error(action: str, error: BaseException) -> PluginError:
    """Return a PluginError for an error that the user's code raised; its message starts with the failed
    `action`."""
    result = PluginError(f"{action} failed ({describe_error(error)}): fix it.")
    result.traceback = "".join(traceback.format_exception(error))
    return result


def describe_error(error: BaseException) -> str:
    """Return type, message and source line of an error that a plugin raised.

    The line is in the user's code, also if a library raised the error. An installed plugin counts as a library.
    """
    kind = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [frame for frame in frames if not frame.filename.startswith(("<", PACKAGE_FOLDER))]
    named = [frame for frame in foreign if not frame.filename.startswith(LIBRARY_FOLDERS)] or foreign
    location = f", {named[-1].filename}:{named[-1].lineno}" if named else ""
    return f"{kind}: {error}{location}"
