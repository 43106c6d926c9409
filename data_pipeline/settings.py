"""Convert YAML values to a typed dataclass. A mistake gives one message with the setting and its allowed values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from megaptm.errors import UserError, describe_value, nearest_name_advice, validation_problem
from megaptm.suggest import equivalent_name

Kind = TypeVar("Kind")


def parse_settings(kind: type[Kind], content: Any, where: str, ready: Mapping[str, Any] | None = None) -> Kind:
    """Parse settings of a recipe: return a `kind` (dataclass) with these values. A nested table becomes a dataclass;
    `true` stands for one with all defaults.

    Messages start with `where`: a file and a location in it. `ready` are settings that are already converted.
    """
    if not isinstance(content, Mapping):
        raise UserError(f"{where} must be a table of settings, not {_describe_value(content)}.")
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]  # every kind is a dataclass
    hints = {name: hint for name, hint in get_type_hints(kind, include_extras=True).items() if name in known}
    ready = ready or {}
    for name in content:
        if name not in known:
            raise UserError(f"{where}: unknown setting {name}; {_suggest_setting(str(name), hints)}")
    for name, field in known.items():
        if name not in {**content, **ready} and field.default is MISSING and field.default_factory is MISSING:
            raise UserError(f"{where}: {name} is missing.")
    plain = {name: value for name, value in content.items() if name not in ready}
    values = {name: _parse_value(hints[name], value, f"{where}: {name}") for name, value in plain.items()}
    try:
        return kind(**values, **ready)
    except UserError as error:
        message = str(error).removeprefix(f"{where.rpartition(' ')[2]}: ")  # a step's own message repeats its name
        raise UserError(f"{where}: {message}") from None


def _suggest_setting(name: str, hints: Mapping[str, Any]) -> str:
    """Suggest a setting for one that the recipe's schema does not have: a similar name in this table, or the same name
    in a nested table."""
    known_name = equivalent_name(name) or name
    if known_name not in hints:
        for table, hint in hints.items():
            if (kind := _nested_dataclass(hint)) and known_name in {field.name for field in fields(kind)}:
                return f"did you mean {table}.{known_name}?"
    return nearest_name_advice(name, hints, "it has {}.")


def _nested_dataclass(hint: Any) -> type | None:
    """Return the dataclass of the nested settings that a field may hold, or None."""
    options = get_args(hint) or (hint,)
    return next((option for option in options if isinstance(option, type) and is_dataclass(option)), None)


def _parse_value(hint: Any, value: Any, where: str) -> Any:
    table = _nested_dataclass(hint)
    if table is not None:
        if isinstance(value, table) or (value is None and type(None) in get_args(hint)):
            return value
        if value is False and type(None) in get_args(hint):
            return None
        return parse_settings(table, {} if value is True else value, where)
    try:
        # Validated as JSON, where a list may stand for a tuple but no other conversion is made.
        return TypeAdapter(hint).validate_json(json.dumps(value, allow_nan=False), strict=True)
    except ValidationError as error:
        raise UserError(f"{where} {validation_problem(error.errors()[0])}, not {_describe_value(value)}.") from None
    except (TypeError, ValueError):
        raise UserError(f"{where} cannot be {_describe_value(value)}: use another value.") from None


def _describe_value(value: Any) -> str:
    return "nothing" if value is None else describe_value(value)
