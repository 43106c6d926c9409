"""The registries of what families add, and the stacks of their kinds of attention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from megaptm.errors import UserError
from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.families.registry import Registry
from megaptm.families.transformer_xl.spec import RelativeSpec
from megaptm.layers.stack import stack_class
from megaptm.spec import Block


def test_failed_load_is_repeated_at_the_next_look_up() -> None:
    """A family that cannot be loaded must not leave a registry that looks complete."""
    failures = [ValueError("broken")]

    def load() -> Iterator[tuple[str, int]]:
        yield "a", 1
        if failures:
            raise failures.pop()
        yield "b", 2

    registry = Registry({"core": 0}, load)
    with pytest.raises(ValueError, match="broken"):
        registry["b"]
    assert dict(registry) == {"core": 0, "a": 1, "b": 2}


def test_name_is_registered_once() -> None:
    registry = Registry({"core": 0}, lambda: [("core", 1)])
    with pytest.raises(UserError, match="'core' is registered twice"):
        list(registry)


def test_kinds_with_different_stacks_cannot_be_mixed() -> None:
    with pytest.raises(UserError, match="mixes disentangled and relative"):
        stack_class(Block(attention=(DisentangledSpec(), RelativeSpec())))
