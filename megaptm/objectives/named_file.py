"""Files that options of objectives name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from megaptm.errors import UserError

Read = TypeVar("Read")


def read_named_file(option: str, name: str, read: Callable[[Path], Read], *, kind: str, remedy: str) -> Read:
    """What `read` makes of the file `name`. A `UserError` where there is no such file, or where `read` raises: then it
    is none of its kind."""
    try:
        path = Path(name).expanduser()
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("there is no such file")
        return read(path)
    except Exception as error:  # numpy, zipfile, zlib and safetensors each have kinds of their own
        raise UserError(f"{option}: {name} is no {kind} ({error}): {remedy}.") from None
