"""Tiny models and batches of families that need their own, in modules that load these families."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple, Protocol

from torch import Tensor

from megaptm.spec import ModelSpec


class TinySpec(Protocol):
    def __call__(self, *, dropout: float = 0.0, layers: int = 4) -> ModelSpec: ...


class OwnCase(NamedTuple):
    spec: TinySpec
    batch: Callable[[int, int], dict[str, Tensor]] | None = None
    """Function of the number of samples and the step. None: the batch of any family."""


MODULES = {
    "elmo": "tests.models.recurrent",
    "cove": "tests.models.recurrent",
    "vit": "tests.models.vision",
    "clip": "tests.models.vision",
    "uniter": "tests.models.regions",
    "unimo": "tests.models.unified",
}
"""Family -> module with its case, in `CASES`."""


def own_case(family: str) -> OwnCase | None:
    """Return the case of a family; None if its models and batches are as those of others."""
    if family not in MODULES:
        return None
    case: OwnCase = import_module(MODULES[family]).CASES[family]
    return case
