"""Names of other libraries lead to ours."""

from __future__ import annotations

from typing import get_args

import pytest

from megaptm.config.errors import fields
from megaptm.config.schema import OptimizerConfig
from megaptm.objectives.registry import TASKS
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.suggest import ELSEWHERE, suggest


def test_what_other_libraries_name_is_a_key_here() -> None:
    keys = {*fields()}.union(*(fields((section,)) for section in fields()))
    options = {name for task in TASKS.values() for name in getattr(task, "__dataclass_fields__", ())}
    values = {value for kind in OptimizerConfig.model_fields.values() for value in get_args(kind.annotation)}
    assert {*ELSEWHERE.values()} <= keys | options | {*QUESTIONS} | values
    assert not {*ELSEWHERE} & keys


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("n-layer", "layers"),
        ("Hidden_Size", "width"),
        ("mlm", "masked-lm"),
        ("WIDTH", "width"),
        ("heds", "heads"),
        ("zzz", None),
    ],
)
def test_what_was_meant(name: str, meant: str | None) -> None:
    assert suggest(name, ["heads", "layers", "width", "masked-lm"]) == meant


def test_a_name_of_another_library_means_nothing_where_its_key_is_not_known() -> None:
    assert suggest("learning_rate", ["width"]) is None
