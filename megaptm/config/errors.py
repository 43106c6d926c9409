"""Convert a pydantic error to one message: location, key, problem, remedy."""

from __future__ import annotations

from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from megaptm.config.schema import Config, DeviceLayout, Layout
from megaptm.errors import describe_invalid_value, describe_value, missing_space_advice
from megaptm.suggest import advice_on_foreign_name, equivalent_name, suggest_name


def error_messages(error: ValidationError, *, origins: dict[str, str], source: str) -> list[str]:
    """Return a message for every mistake in a config. Unknown keys come first; the keys that they were meant to be are
    not reported as missing."""
    mistakes = error.errors()
    unknown = [details for details in mistakes if details["type"] == "extra_forbidden"]
    intended = {_intended_path(_key_path(details)) for details in unknown}
    reported = unknown + [
        details
        for details in mistakes
        if details not in unknown
        and not (details["type"] == "missing" and ".".join(_key_path(details)) in intended)
        and not (_is_missing_entry(details) and details["loc"][-1] != len(details["input"]))
    ]
    return [_error_sentence(details, origins, source) for details in reported]


def _key_path(details: ErrorDetails) -> tuple[str, ...]:
    # pydantic inserts a step for a mapping's key, which is not part of the user's name.
    return tuple(str(step) for step in details["loc"] if step != "[key]")


def _is_missing_entry(details: ErrorDetails) -> bool:
    """Whether an entry of a fixed-length list is missing. pydantic reports each missing entry."""
    return details["type"] == "missing" and isinstance(details["loc"][-1], int)


def _error_sentence(details: ErrorDetails, origins: dict[str, str], source: str) -> str:
    path = _key_path(details)
    key = ".".join(path)
    origin = _location_of(path, origins)
    if _is_missing_entry(details):
        list_key = ".".join(path[:-1])
        return (
            f"{origin or source}: {list_key} must have {_list_length(path[:-1])} entries, not "
            f"{describe_value(details['input'])}."
        )
    if details["type"] == "missing":
        # The file that started the section may be extended by this one, so it need not set all keys.
        where = origin if origin and origin.startswith(f"{source}:") else source
        hint = ": set it, or extend another config, as `extends: gpt2/tiny` does" if key == "model" else ""
        return f"{where}: {key} is missing{_key_meaning(path)}{hint}."
    where = origin or source
    if no_space := missing_space_advice(path[-1], details["input"]):
        return f"{where}: {key} {no_space}"
    if details["type"] == "extra_forbidden":
        path = _known_path(path, details["input"])
        return f"{where}: unknown key {'.'.join(path)}{_suggest_key(path)}"
    if details["type"] == "invalid_key":
        return f"{where}: unknown key {key}{_suggest_key(path, numbered=True)}"
    if details["type"] == "dict_type" and key == "data.mix" and (corpora := _suggested_mix(details["input"])):
        return f"{where}: data.mix is a mapping of corpora to weights: write 'data.mix={{{corpora}}}'."
    if details["type"] == "model_type" and key == "layout":
        return f"{where}: layout must be auto, or a section (a mapping), not {describe_value(details['input'])}."
    return f"{where}: {key} {describe_invalid_value(details)}"


def _suggested_mix(value: object) -> str | None:
    """Return the mapping to suggest for `data.mix`, if it was written as a corpus or a list of corpora."""
    if isinstance(value, str):
        return f"{value.strip('{}') or 'corpora/books'}: 1"
    if isinstance(value, list) and value and all(isinstance(corpus, str) for corpus in value):
        return ", ".join(f"{corpus}: 1" for corpus in value)
    return None


def _location_of(path: tuple[str, ...], origins: dict[str, str]) -> str | None:
    """Return the location of the config key, or of the innermost section above it that has one."""
    for depth in range(len(path), 0, -1):
        if ".".join(path[:depth]) in origins:
            return origins[".".join(path[:depth])]
    return None


def section_keys(path: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the keys in a section of the config's schema, each with its meaning. An empty path is the top level."""
    if path[:1] == ("layouts",):
        return _key_meanings(Layout) if len(path) == 2 else {}
    section = _section_class(path)
    if section is None:
        return {}
    return _key_meanings(section) if path else _key_meanings(section) | _key_meanings(DeviceLayout)


def _section_class(path: tuple[str, ...]) -> type[BaseModel] | None:
    """Return the class of the section at a path of the config's schema."""
    section: Any = Config
    for step in path:
        if get_origin(section) is dict:  # sections with user-defined names
            section = get_args(section)[1]
        else:
            field = section.model_fields.get(step)
            section = _without_none(field.annotation) if field is not None else None
        if not (get_origin(section) is dict or (isinstance(section, type) and issubclass(section, BaseModel))):
            return None
    return None if get_origin(section) is dict else section


def _without_none(annotation: Any) -> Any:
    """Return the type of an optional config key."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType] if isinstance(annotation, UnionType) else []
    return kinds[0] if len(kinds) == 1 else annotation


def _list_length(path: tuple[str, ...]) -> int:
    """Return the length of a fixed-length list in a config's type, which may be nested in lists."""
    depth = max(index for index, step in enumerate(path) if not step.isdecimal())
    section = _section_class(path[:depth])
    assert section is not None
    kind = _without_annotations(section.model_fields[path[depth]].annotation)
    for _ in path[depth + 1 :]:
        kind = _without_annotations(get_args(kind)[0])
    return len(get_args(kind))


def _without_annotations(annotation: Any) -> Any:
    """Return the type of a config key without annotations and without None."""
    if get_origin(annotation) is Annotated:
        return _without_annotations(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _without_annotations(next(kind for kind in get_args(annotation) if kind is not NoneType))
    return annotation


def _key_meanings(section: type[BaseModel]) -> dict[str, str]:
    return {name: field.description or "" for name, field in section.model_fields.items()}


def _key_meaning(path: tuple[str, ...]) -> str:
    text = section_keys(path[:-1]).get(path[-1], "")
    return f" ({text.rstrip('.')})" if text else ""


def _suggest_key(path: tuple[str, ...], *, numbered: bool = False) -> str:
    """Return what to suggest for an unknown config key: `; did you mean X?`, advice, or the keys of the section. A
    numeric key may belong to one of its tables."""
    if instead := advice_on_foreign_name(".".join(path), path[-1]):
        return f"; {instead}"
    meant = _intended_path_of_number(path) if numbered else _intended_path(path)
    if meant:
        return f"; did you mean {meant}?"
    here, siblings = path[:-1], list(section_keys(path[:-1]))
    return f"; {'.'.join(here) or 'a config'} has {', '.join(siblings)}." if siblings else "."


def _known_path(path: tuple[str, ...], value: Any) -> tuple[str, ...]:
    """Return the path of the first key in an unknown section that another project uses, else the path of the
    section."""
    inside = [(*path, str(name)) for name in value] if isinstance(value, dict) and not _intended_path(path) else []
    return next(
        (key_path for key_path in inside if advice_on_foreign_name(key_path[-1]) or _intended_path(key_path)), path
    )


def _intended_path_of_number(path: tuple[str, ...]) -> str | None:
    section = _section_class(path[:-1])
    names = section.model_fields.items() if section is not None else ()
    tables = [name for name, field in names if get_origin(field.annotation) is dict]
    return next((".".join((*path[:-1], name, path[-1])) for name in tables), None)


def _intended_path(path: tuple[str, ...]) -> str | None:
    """Return the path of the intended config key: a spelling in this section, the same name in another section, another
    project's name of a key, or the nearest name in this section."""
    here, name = path[:-1], path[-1]
    sections = [here, (), *((section,) for section in section_keys())]
    mistyped = [(*here, known) for known in get_close_matches(name, section_keys(here), n=1, cutoff=0.85)]
    same = [(*section, name) for section in sections if name in section_keys(section)]
    own_name = equivalent_name(name)
    renamed = [(*section, own_name) for section in sections if own_name in section_keys(section)]
    renamed.sort(key=lambda meant: _section_class(meant) is not None)  # `dp` means layout.data, not the section data
    close = [(*here, known) for known in [suggest_name(name, section_keys(here))] if known]
    return next((".".join(meant) for meant in [*mistyped, *same, *renamed, *close]), None)
