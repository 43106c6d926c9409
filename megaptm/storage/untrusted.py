"""Validation of untrusted input: JSON with a known schema, and file names in it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from megaptm.errors import UserError, quote_value
from megaptm.storage.files import regular_file

T = TypeVar("T")

MAX_NAME_BYTES = 200
"""Maximum bytes of a file name in untrusted input. File systems allow 255, and temporary names are longer than final
ones."""
# Separators of any system, control characters, and surrogates, which no file system can encode.
FORBIDDEN_CHARACTERS = re.compile(r"[/\\\x00-\x1f\x7f\ud800-\udfff]")


def validate_file_name(name: str) -> str:
    """Return `name` if it is a plain file name, else raise `ValueError`, because a path could lead out of its folder.

    Every name from a manifest, an archive or a listing is checked here before it becomes part of a path.
    """
    if name in ("", ".", "..") or FORBIDDEN_CHARACTERS.search(name) or len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"{quote_value(name)} is not a plain file name")
    return name


FileName = Annotated[str, AfterValidator(validate_file_name)]


class Record(BaseModel):
    """Base of records in untrusted files. Strings are not converted to numbers; unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def parse_json(content: bytes, source: str | os.PathLike[str], *, remedy: str) -> Any:
    """Parse untrusted JSON that was read from `source`; raise `UserError` with the remedy if it is invalid.

    Stricter than Python's parser: deep nesting raises no `RecursionError`, and all strings can be encoded.
    """
    try:
        return from_json(content)
    except ValueError as error:
        raise UserError(f"{source} is not valid JSON ({error}): {remedy}.") from None


def read_json_object(file: Path, *, remedy: str) -> dict[str, Any]:
    """Read the object in a small, untrusted JSON file."""
    return validate(
        dict[str, Any], parse_json(regular_file(file).read_bytes(), file, remedy=remedy), file, remedy=remedy
    )


def validate(schema: type[T], content: Any, source: str | os.PathLike[str], *, remedy: str) -> T:
    """Validate untrusted JSON: return `content` with the type `schema`; raise `UserError` with the first field of the
    wrong type."""
    try:
        return TypeAdapter(schema).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        problem = first["msg"].removeprefix("Value error, ")
        problem = problem[:1].lower() + problem[1:]
        raise UserError(f"{source}: {field and field + ': '}{problem}: {remedy}.") from None
