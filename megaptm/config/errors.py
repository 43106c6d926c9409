"""A pydantic error as one sentence: where it was written, which key, what is wrong, what to write."""

from __future__ import annotations

import re
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from megaptm.config.schema import Config, DeviceLayout, Layout
from megaptm.suggest import ELSEWHERE, suggest

NO_SPACE = re.compile(r"(.+):([^:/]+)")
"""A key that was to be a key and its value, as in `{a:1}`."""

WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "dict_type": "a mapping",
    "model_type": "a section (a mapping)",
    "tuple_type": "a list",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "{min_length} or more entries",
    "too_long": "{max_length} entries",
}


def sentences(error: ValidationError, *, origins: dict[str, str], source: str) -> list[str]:
    """Every mistake. Unknown keys come first; what they were meant to be is not told as missing as well."""
    details = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    meant = {_meant(_path(one)) for one in details if one["type"] == "extra_forbidden"}
    told = [one for one in details if one["type"] != "missing" or ".".join(_path(one)) not in meant]
    return [_sentence(one, origins, source) for one in told]


def _path(details: ErrorDetails) -> tuple[str, ...]:
    # pydantic marks a mapping's key with a step of its own, which is no part of the name that the user wrote.
    return tuple(str(step) for step in details["loc"] if step != "[key]")


def _sentence(details: ErrorDetails, origins: dict[str, str], source: str) -> str:
    path = _path(details)
    key = ".".join(path)
    origin = _origin(path, origins)
    if details["type"] == "missing":
        # Whoever began the section, in a file that this one extends, need not have given all of it.
        where = origin if origin and origin.startswith(f"{source}:") else source
        return f"{where}: {key} is missing{_meaning(path)}."
    where = origin or source
    if details["input"] is None and (joined := NO_SPACE.fullmatch(path[-1])):
        return f"{where}: {key} is one word to YAML: write a space after the colon, {joined[1]}: {joined[2]}"
    if details["type"] == "extra_forbidden":
        return f"{where}: unknown key {key}{_nearest(path)}"
    return f"{where}: {key} must be {wanted(details)}, not {told_value(details['input'])}."


def _origin(path: tuple[str, ...], origins: dict[str, str]) -> str | None:
    """Where the key was written, or the closest section above it."""
    for depth in range(len(path), 0, -1):
        if ".".join(path[:depth]) in origins:
            return origins[".".join(path[:depth])]
    return None


def wanted(details: ErrorDetails) -> str:
    """What the key may hold, in words."""
    form = WANTED.get(details["type"])
    return details["msg"] if form is None else form.format(**details.get("ctx", {}))


def told_value(value: Any) -> str:
    """A value that cannot be taken."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?0[0-9_]+", value):
        return f"{value} (octal in one version of YAML and decimal in the next: write it without leading zeros)"
    return "empty" if value is None else repr(value)


def fields(path: tuple[str, ...] = ()) -> dict[str, str]:
    """Names in a section of the schema (the top for an empty path), each with its meaning."""
    if path[:1] == ("layouts",):
        return _meanings(Layout) if len(path) == 2 else {}
    section: Any = Config
    for step in path:
        if get_origin(section) is dict:  # of sections by a name that is free
            section = get_args(section)[1]
        else:
            field = section.model_fields.get(step)
            section = field.annotation if field is not None else None
        if not (get_origin(section) is dict or (isinstance(section, type) and issubclass(section, BaseModel))):
            return {}
    if get_origin(section) is dict:
        return {}
    return _meanings(section) if path else _meanings(section) | _meanings(DeviceLayout)


def _meanings(section: type[BaseModel]) -> dict[str, str]:
    return {name: field.description or "" for name, field in section.model_fields.items()}


def _meaning(path: tuple[str, ...]) -> str:
    text = fields(path[:-1]).get(path[-1], "")
    return f" ({text.rstrip('.')})" if text else ""


def _nearest(path: tuple[str, ...]) -> str:
    """`; did you mean X?`, or what the section has."""
    if meant := _meant(path):
        return f"; did you mean {meant}?"
    here, siblings = path[:-1], list(fields(path[:-1]))
    return f"; {'.'.join(here) or 'a config'} has {', '.join(siblings)}." if siblings else "."


def _meant(path: tuple[str, ...]) -> str | None:
    """The same name in another section, else what was meant of this section, else another library's name of a key in
    another section."""
    here, name = path[:-1], path[-1]
    elsewhere = [f"{section}.{name}" for section in fields() if name in fields((section,))]
    close = [".".join((*here, one)) for one in [suggest(name, fields(here))] if one]
    called = [f"{section}.{ELSEWHERE[name]}" for section in fields() if ELSEWHERE.get(name) in fields((section,))]
    return next(iter([*elsewhere, *close, *called]), None)
