"""Parts of a mix: the value of a corpus in `data.mix`. It is a weight; a table of weight, groups of documents and
maximum epochs; or a list of such tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

MixValue = float | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""Value of a corpus in `data.mix`."""


@dataclass(frozen=True, kw_only=True)
class MixPart:
    """Documents of a corpus that a mix reads with one weight."""

    weight: float
    """Weight in tokens, relative to the other parts of the mix."""
    quality: tuple[float, float] | None = None
    """Range of the quality score: two edges of the corpus's buckets. Default: all documents."""
    domains: tuple[str, ...] = ()
    """Domains of the corpus. Default: all."""
    max_epochs: float | None = None
    """Maximum number of times that the documents are read; the other parts then take their share. Default: no limit."""

    @property
    def selection(self) -> str:
        """Return the selected groups for names, such as ` (quality 0.5 to 1, books)`; empty for all documents."""
        quality = [] if self.quality is None else [f"quality {self.quality[0]:g} to {self.quality[1]:g}"]
        shown = ", ".join([*quality, *self.domains])
        return f" ({shown})" if shown else ""


def parse_mix_value(value: Any) -> tuple[MixPart, ...]:
    """Parse the value of a corpus in `data.mix`; raise `ValueError` if it is invalid."""
    if isinstance(value, list | tuple):
        if not value or not all(isinstance(part, Mapping) for part in value):
            raise ValueError("must be a weight, a table with `weight`, or a list of such tables")
        parts = tuple(_parse_part(part) for part in value)
        if len({part.selection for part in parts}) < len(parts):
            raise ValueError("has two tables of the same groups: add their weights")
        return parts
    return (_parse_part(value if isinstance(value, Mapping) else {"weight": value}),)


def total_weight(value: MixValue) -> float:
    """Return the weight of a corpus in a mix: the sum over its parts."""
    return math.fsum(part.weight for part in parse_mix_value(value))


def _parse_part(table: Mapping[str, Any]) -> MixPart:
    known = [field.name for field in fields(MixPart)]
    if unknown := [name for name in table if name not in known]:
        raise ValueError(f"has an unknown key {unknown[0]}: use {', '.join(known)}")
    if not _is_positive(table.get("weight")):
        raise ValueError("must have a weight, a number above 0")
    quality, domains, max_epochs = (table.get(name) for name in ("quality", "domains", "max_epochs"))
    if quality is not None and not (
        isinstance(quality, list | tuple)
        and len(quality) == 2
        and all(map(_is_number, quality))
        and quality[0] < quality[1]
    ):
        raise ValueError("has a quality that is not a range of two numbers, as [0.5, 1.0]")
    if domains is not None and not (
        isinstance(domains, list | tuple) and domains and all(isinstance(name, str) for name in domains)
    ):
        raise ValueError("has domains that are not a list of names")
    if max_epochs is not None and not _is_positive(max_epochs):
        raise ValueError("has max_epochs that is not a number above 0")
    return MixPart(
        weight=float(table["weight"]),
        quality=None if quality is None else (float(quality[0]), float(quality[1])),
        domains=tuple(domains or ()),
        max_epochs=None if max_epochs is None else float(max_epochs),
    )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # integers may be larger


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def short_names(paths: Sequence[str]) -> dict[str, str]:
    """Return the last part of each path of a mix, with as many parts before it as distinguish it from the others."""
    parts = {path: [part for part in path.split("/") if part] or [path] for path in paths}

    def shorten(path: str) -> str:
        for length in range(1, len(parts[path]) + 1):
            if [own[-length:] for own in parts.values()].count(parts[path][-length:]) == 1:
                return "/".join(parts[path][-length:])
        return path

    return {path: shorten(path) for path in paths}
