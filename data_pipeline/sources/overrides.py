"""Per-file settings that override those of the source."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from data_pipeline.settings import parse_settings
from data_pipeline.sources.archives import archive_kind
from data_pipeline.sources.source import InputFile, Source
from megaptm.errors import UserError

SOURCE_SETTINGS = frozenset({"path", "overrides", "parts", "aligned", "prefix", "incomplete"})
"""Settings of the source as a whole, which cannot be overridden per file."""


def check_overrides(source: Source, where: str) -> None:
    """Raise `UserError` if `Source.overrides` has a setting that does not exist or cannot be overridden per file."""
    for pattern, settings in source.overrides.items():
        if fixed := sorted(SOURCE_SETTINGS & settings.keys()):
            raise UserError(f"{where}: {fixed[0]} applies to a complete source: make {pattern} a separate source.")
        _parse_override(pattern, settings, where)


def apply_overrides(file: InputFile) -> InputFile:
    """Return a source file with its overridden settings; the same object if there are none."""
    for pattern in _matching_patterns(file):
        settings = file.source.overrides[pattern]
        parsed = _parse_override(pattern, settings, f"source {file.source.path}")
        file = replace(file, source=replace(file.source, **{name: getattr(parsed, name) for name in settings}))
    return file


def refuse_unmatched(sources: Iterable[Source], files: Sequence[InputFile]) -> None:
    """Raise `UserError` if a pattern of `overrides` matches no file of its source.

    With archives among the files, an unmatched pattern is accepted, since it may match members of archives. A pattern
    that is the path of an existing file is always an error: the user meant that file, which no source contains.
    """
    patterns = {pattern: source for source in sources for pattern in source.overrides}
    if not patterns:
        return
    for file in files:
        for pattern in _matching_patterns(file):
            patterns.pop(pattern, None)
    has_archives = any(archive_kind(file.name) for file in files)
    for pattern, source in patterns.items():
        if os.path.isfile(pattern):  # false for a name that is too long
            raise UserError(
                f"{pattern} is in no source, so its overrides have no effect: name the file as a source too, or "
                "correct the name or glob."
            )
        if not has_archives:
            raise UserError(
                f"source {source.path}: no file matches {pattern} in its overrides: correct the name or glob."
            )


def _matching_patterns(file: InputFile) -> list[str]:
    names = (file.name, file.path, PurePosixPath(file.name).name)
    return [pattern for pattern in file.source.overrides if any(fnmatchcase(name, pattern) for name in names)]


def _parse_override(pattern: str, settings: Mapping[str, Any], where: str) -> Source:
    return parse_settings(Source, {"path": pattern, **settings}, f"{where}: {pattern}")
