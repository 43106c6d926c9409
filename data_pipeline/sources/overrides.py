"""Per-file settings that override those of the source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from data_pipeline.settings import parse_settings
from data_pipeline.sources.archives import archive_kind
from data_pipeline.sources.source import InputFile, Source
from megaptm.errors import UserError

SOURCE_SETTINGS = frozenset({"path", "overrides", "parts", "aligned", "prefix"})
"""Settings of the source as a whole, which cannot be overridden per file."""


def check_overrides(source: Source, where: str) -> None:
    """Raise `UserError` if a setting does not exist or cannot be overridden per file."""
    for pattern, settings in source.overrides.items():
        if fixed := sorted(SOURCE_SETTINGS & settings.keys()):
            raise UserError(f"{where}: {fixed[0]} applies to a complete source: make {pattern} a separate source.")
        _read_settings(pattern, settings, where)


def apply_overrides(file: InputFile) -> InputFile:
    """Return the file with its overridden settings; the same object if there are none."""
    for pattern in _matching_patterns(file):
        settings = file.source.overrides[pattern]
        parsed = _read_settings(pattern, settings, f"source {file.source.path}")
        file = replace(file, source=replace(file.source, **{name: getattr(parsed, name) for name in settings}))
    return file


def refuse_unmatched(sources: Iterable[Source], files: Iterable[InputFile]) -> None:
    """Raise `UserError` if a pattern of `overrides` matches no file of its source."""
    patterns = {pattern: source for source in sources for pattern in source.overrides}
    if not patterns:
        return
    for file in files:
        if archive_kind(file.name):
            return  # members of the archive may match
        for pattern in _matching_patterns(file):
            patterns.pop(pattern, None)
    for pattern, source in patterns.items():
        raise UserError(f"source {source.path}: no file matches {pattern} in its overrides: correct the name or glob.")


def _matching_patterns(file: InputFile) -> list[str]:
    names = (file.name, file.path, PurePosixPath(file.name).name)
    return [pattern for pattern in file.source.overrides if any(fnmatchcase(name, pattern) for name in names)]


def _read_settings(pattern: str, settings: Mapping[str, Any], where: str) -> Source:
    return parse_settings(Source, {"path": pattern, **settings}, f"{where}: {pattern}")
