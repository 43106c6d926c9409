"""Python's search path for modules: installed packages and the folders on PYTHONPATH, not the working directory."""

from __future__ import annotations

import os
import sys

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""Folder that contains the package megaptm: the checkout, or the folder of installed packages."""


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module in this Python. `-P` leaves the working directory out of the search
    path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def named_folders() -> list[str]:
    """Return the folders on PYTHONPATH, absolute, without empty entries.

    Python takes an empty entry for the working directory; `PYTHONPATH=$PYTHONPATH:/folder` creates one by accident.
    """
    return [os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


def searched_folders() -> list[str]:
    """Return the folders of `sys.path`, without the working directory unless PYTHONPATH names it."""
    try:
        here = os.getcwd()
    except OSError:  # deleted: nothing can be imported from it
        return sys.path
    if here in named_folders():
        return sys.path
    return [entry for entry in sys.path if os.path.abspath(entry or here) != here]


def drop_working_directory() -> None:
    """Remove the working directory, which `python -m` adds, from sys.path.

    It stays if PYTHONPATH names it, or if megaptm was imported from it, as in a checkout that is not installed; child
    processes then find it on PYTHONPATH.
    """
    try:
        here = os.getcwd()
    except OSError:  # deleted: nothing can be imported from it
        return
    folders = named_folders()
    if here == CHECKOUT and here not in folders:
        folders.append(here)
    if "PYTHONPATH" in os.environ or folders:
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    if here not in folders:
        sys.path[:] = searched_folders()
