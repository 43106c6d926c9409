"""Files named by options of objectives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from megaptm.errors import UserError

Read = TypeVar("Read")

FILE = {"names": "file"}
"""Metadata of an objective's field, by which the field names a file or a custom function. A run stores its absolute
path and its hash."""


def read_named_file(option: str, name: str, read: Callable[[Path], Read], *, kind: str, remedy: str) -> Read:
    """Return the result of `read` for a file. Raises `UserError` if the file does not exist or `read` fails."""
    try:
        path = Path(name).expanduser()
        if not path.is_file():  # opening a pipe would block
            raise ValueError("no such file")
        return read(path)
    except Exception as error:  # numpy, zipfile, zlib and safetensors raise errors of their own
        raise UserError(f"{option}: {name} is not a {kind} ({error}): {remedy}.") from None
