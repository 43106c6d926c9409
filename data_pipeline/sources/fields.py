"""Records with named fields: their text, and the fields retained as notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_pipeline.annotate.parts import text_and_parts
from data_pipeline.annotate.turns import text_and_turns
from data_pipeline.sources.json_values import refuse_deep_value
from data_pipeline.sources.source import NAMED_FIELD, Source
from data_pipeline.sources.unreadable import Unreadable, UnreadableRecord


def text_of(record: Any, field: str, option: str = "text") -> str:
    """Return the string in a field of a source's record, or raise `UnreadableRecord`. `option` is the option that names
    the field."""
    text = record.get(field) if isinstance(record, Mapping) else None
    if not isinstance(text, str):
        names = (
            [str(name) for name, value in record.items() if isinstance(value, str)]
            if isinstance(record, Mapping)
            else []
        )
        known_names = f", but in {', '.join(names[:20])}" if names else ""
        problem = f"has no string in its field `{field}`{known_names}"
        raise UnreadableRecord(
            "no text field", problem, f"add it, or name another with `{option}`{_suggest_messages(record, option)}"
        )
    return text


def refuse_duplicate_columns(columns: Sequence[str], source: Source) -> None:
    """Raise `Unreadable` if two columns of a source share the name of a requested field: the text would be
    ambiguous."""
    for name in (*source.fields, *source.keep):
        if (count := columns.count(name)) > 1:
            raise Unreadable("duplicate column names", f"has {count} columns `{name}`", "rename all but one of them")


def _suggest_messages(record: Any, option: str) -> str:
    """Suggest the option `messages` for a record that has no text but has a field with a conversation."""
    if option != "text" or not isinstance(record, Mapping):
        return ""
    talks = [
        name
        for name, value in record.items()
        if isinstance(value, list) and value and isinstance(value[0], Mapping) and {"role", "content"} <= {*value[0]}
    ]
    return f", or a conversation with `messages` (messages: {talks[0]})" if talks else ""


def text_and_notes(record: Any, source: Source) -> tuple[str, dict[str, Any]]:
    """Return the text of a source's record, and the offsets of its parts if it has parts; raises `UnreadableRecord`."""
    if not source.parts:
        return text_of(record, source.text), {}
    return text_and_parts(source.with_prefix([_part_text(record, template) for template in source.parts]))


def _part_text(record: Any, template: str) -> str:
    """Return the text of a part: the text of a field, or a template whose `{field}` names are replaced by texts."""
    if not NAMED_FIELD.search(template):
        return text_of(record, template, "parts")
    return NAMED_FIELD.sub(lambda name: text_of(record, name[1], "parts"), template)


def conversation_of(record: Any, field: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a conversation in a record, and the offset and role of each turn as a note; raises
    `UnreadableRecord`."""
    messages = record.get(field) if isinstance(record, Mapping) else None
    try:
        text, turns = text_and_turns(messages or ())
    except (AttributeError, KeyError, TypeError):
        turns = []
    if not turns:
        problem = f"has no list of messages (`role`, `content`) in its field `{field}`"
        raise UnreadableRecord("no messages", problem, "add it, or name another with `messages`")
    return text, {"turns": turns}


def select_notes(record: Mapping[str, Any], source: Source, notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `notes` with the fields of `Source.keep` that the record of a source has; raises `UnreadableRecord`."""
    if not source.keep:
        return notes
    retained = {name: record[name] for name in source.keep if record.get(name) is not None}
    for value in retained.values():
        refuse_deep_value(value)
    return {**notes, **retained}
