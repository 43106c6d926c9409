"""Records with named fields: the text, and what of the rest is kept as notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_pipeline.annotate.parts import text_and_parts
from data_pipeline.annotate.turns import text_and_turns
from data_pipeline.sources.bad import BadRecord, Unreadable
from data_pipeline.sources.source import NAMED_FIELD, Source


def text_of(record: Any, field: str, option: str = "text") -> str:
    """The string in a field, which an option names; raises `BadRecord`."""
    text = record.get(field) if isinstance(record, Mapping) else None
    if not isinstance(text, str):
        names = (
            [str(name) for name, value in record.items() if isinstance(value, str)]
            if isinstance(record, Mapping)
            else []
        )
        there = f", but in {', '.join(names[:20])}" if names else ""
        what = f"has no string in its field `{field}`{there}"
        raise BadRecord("no text field", what, f"add it, or name another with `{option}`{_instead(record, option)}")
    return text


def refuse_twins(columns: Sequence[str], source: Source) -> None:
    """Raise `Unreadable` where two columns have the name of a wanted one: it does not tell which is the text."""
    for name in (*source.fields, *source.keep):
        if (count := columns.count(name)) > 1:
            raise Unreadable("columns of one name", f"has {count} columns `{name}`", "rename all but one of them")


def _instead(record: Any, option: str) -> str:
    """The option that a record without a text needs, where it has a field with a conversation."""
    if option != "text" or not isinstance(record, Mapping):
        return ""
    talks = [
        name
        for name, value in record.items()
        if isinstance(value, list) and value and isinstance(value[0], Mapping) and {"role", "content"} <= {*value[0]}
    ]
    return f", or a conversation with `messages` (messages: {talks[0]})" if talks else ""


def text_and_notes(record: Any, source: Source) -> tuple[str, dict[str, Any]]:
    """The text of a record, and where the parts begin of one that has such; raises `BadRecord`."""
    if not source.parts:
        return text_of(record, source.text), {}
    return text_and_parts(source.with_prefix([_part(record, said) for said in source.parts]))


def _part(record: Any, said: str) -> str:
    """The text of a field, or what is said with the texts of fields in the place of their names."""
    if not NAMED_FIELD.search(said):
        return text_of(record, said, "parts")
    return NAMED_FIELD.sub(lambda name: text_of(record, name[1], "parts"), said)


def conversation_of(record: Any, field: str) -> tuple[str, dict[str, Any]]:
    """The text of the messages in a field, and who speaks from where on as a note; raises `BadRecord`."""
    messages = record.get(field) if isinstance(record, Mapping) else None
    try:
        text, turns = text_and_turns(messages or ())
    except (AttributeError, KeyError, TypeError):
        turns = []
    if not turns:
        what = f"has no list of messages (`role`, `content`) in its field `{field}`"
        raise BadRecord("no messages", what, "add it, or name another with `messages`")
    return text, {"turns": turns}


def notes_of(record: Mapping[str, Any], source: Source, notes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields to keep that the record has, beside notes that there are already."""
    if not source.keep:
        return notes
    return {**notes, **{name: record[name] for name in source.keep if record.get(name) is not None}}
