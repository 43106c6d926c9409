"""Folders of the package that extend the core as families do, without being families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

EXTENSIONS = ("megaptm.distillation",)


def attributes(packages: Iterable[str], module: str, name: str) -> Iterator[Any]:
    """Yield the attribute `name` of `PACKAGE.module`, for each package that has both."""
    for package in packages:
        path = f"{package}.{module}"
        if find_spec(path):
            attribute = getattr(import_module(path), name, None)
            if attribute is not None:
                yield attribute
