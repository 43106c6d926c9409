"""What comes from outside is damaged or hostile until it is checked: JSON of a known shape, names of files in it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from megaptm.errors import UserError, shown
from megaptm.storage.files import plain_file

T = TypeVar("T")

LONGEST_NAME = 200
"""Bytes of a name: file systems take 255, and unfinished files have a longer one than finished ones."""
# Separators of any system, control characters, and halves of characters, which no file system's encoding has.
REFUSED = re.compile(r"[/\\\x00-\x1f\x7f\ud800-\udfff]")


def file_name(name: str) -> str:
    """`name` where it is a plain name of a file in a folder, else a `ValueError`: a path could lead out of the folder.

    Every name that a manifest, an archive or a listing gives is checked here before it becomes part of a path.
    """
    if name in ("", ".", "..") or REFUSED.search(name) or len(name.encode()) > LONGEST_NAME:
        raise ValueError(f"{shown(name)} is no plain file name")
    return name


FileName = Annotated[str, AfterValidator(file_name)]


class Record(BaseModel):
    """An object in a file from outside: a number is never taken from a string, and unknown keys are left alone."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def parse_json(written: bytes, place: str | os.PathLike[str], *, remedy: str) -> Any:
    """The JSON in `written`, which was read at `place`; a `UserError` with the remedy where it is none.

    Stricter than Python's own: no depth ends in a `RecursionError`, and every string can be written again.
    """
    try:
        return from_json(written)
    except ValueError as error:
        raise UserError(f"{place} is not valid JSON ({error}): {remedy}.") from None


def read_object(file: Path, *, remedy: str) -> dict[str, Any]:
    """The object in a small JSON file."""
    return validated(
        dict[str, Any], parse_json(plain_file(file).read_bytes(), file, remedy=remedy), file, remedy=remedy
    )


def validated(kind: type[T], content: Any, place: str | os.PathLike[str], *, remedy: str) -> T:
    """`content` as a `kind`; a `UserError` that names the first field that is not of its type."""
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        problem = problem[:1].lower() + problem[1:]
        raise UserError(f"{place}: {field and field + ': '}{problem}: {remedy}.") from None
