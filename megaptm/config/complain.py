"""A pydantic error as one sentence: where it was written, which key, what is wrong, what to write."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from megaptm.config.schema import Config, Layout, Offered

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
    """Every mistake; unknown keys come before what is missing, since they are often its cause."""
    details = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    return [_sentence(one, origins, source) for one in details]


def _sentence(details: ErrorDetails, origins: dict[str, str], source: str) -> str:
    # pydantic marks a mapping's key with a step of its own, which is no part of the name that the user wrote.
    path = tuple(str(step) for step in details["loc"] if step != "[key]")
    key = ".".join(path)
    where = _origin(path, origins) or source
    if details["type"] == "extra_forbidden":
        return f"{where}: unknown key {key}{_nearest(path)}"
    if details["type"] == "missing":
        return f"{where}: {key} is missing{_meaning(path)}."
    return f"{where}: {key} must be {wanted(details)}, not {shown(details['input'])}."


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


def shown(value: Any) -> str:
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
        field = section.model_fields.get(step)
        section = field.annotation if field is not None else None
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return {}
    return _meanings(section) if path else _meanings(section) | _meanings(Offered)


def _meanings(section: type[BaseModel]) -> dict[str, str]:
    return {name: field.description or "" for name, field in section.model_fields.items()}


def _meaning(path: tuple[str, ...]) -> str:
    text = fields(path[:-1]).get(path[-1], "")
    return f" ({text.rstrip('.')})" if text else ""


def _nearest(path: tuple[str, ...]) -> str:
    """`; did you mean X?`: the same name in another section, else the closest one in this section."""
    here, name = path[:-1], path[-1]
    siblings = list(fields(here))
    elsewhere = [f"{section}.{name}" for section in fields() if name in fields((section,))]
    close = [".".join((*here, one)) for one in get_close_matches(name, siblings, n=1)]
    if suggested := [*elsewhere, *close]:
        return f"; did you mean {suggested[0]}?"
    return f"; {'.'.join(here) or 'a config'} has {', '.join(siblings)}." if siblings else "."
