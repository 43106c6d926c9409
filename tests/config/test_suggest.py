"""Names of other projects lead to a name of megaptm or to advice."""

from __future__ import annotations

import re
from typing import get_args

import click
import pytest

from megaptm.__main__ import main
from megaptm.config.errors import section_keys
from megaptm.config.schema import OptimizerConfig
from megaptm.objectives.registry import TASKS
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.suggest import ADVICE, EQUIVALENT_NAMES, advice_on_foreign_name, suggest_name
from megaptm.tokenizers import KINDS
from tests.commands import all_commands


def config_keys() -> set[str]:
    sections = {section: section_keys((section,)) for section in section_keys()}
    return {*sections}.union(*(sections.values()), (f"{name}.{key}" for name, keys in sections.items() for key in keys))


def test_equivalent_names_exist() -> None:
    options = {name for task in TASKS.values() for name in getattr(task, "__dataclass_fields__", ())}
    kinds = [kind.annotation for kind in OptimizerConfig.model_fields.values()]
    values = {value for kind in kinds for part in (kind, *get_args(kind)) for value in get_args(part)}
    words = {words[-1] for words, _ in all_commands(main)} | {
        form.removeprefix("--")
        for _, command in all_commands(main)
        for parameter in command.get_params(click.Context(command))
        for form in parameter.opts
    }
    assert {*EQUIVALENT_NAMES.values()} <= config_keys() | options | {*QUESTIONS} | {*KINDS} | values | words


def test_keys_equivalents_and_advice_are_disjoint() -> None:
    """Keys of megaptm, equivalent names and words with advice are disjoint."""
    assert not {*EQUIVALENT_NAMES} & config_keys()
    assert not {*ADVICE} & config_keys()
    assert not {*ADVICE} & {*EQUIVALENT_NAMES}


@pytest.mark.parametrize("sentence", sorted({*ADVICE.values()}), ids=lambda sentence: sentence[:30])
def test_keys_and_commands_in_advice_exist(sentence: str) -> None:
    keys = set(re.findall(r"\b(?:train|data|layout|optimizer|track|model)\.[a-z_]+", sentence))
    commands = {tuple(words.split()) for words in re.findall(r"`megaptm ([a-z]+(?: [a-z]+)?)", sentence)}
    known = {words for words, _ in all_commands(main)}
    assert keys <= config_keys()
    assert all(words in known or words[:1] in known for words in commands)
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("n-layer", "layers"),
        ("Hidden_Size", "width"),
        ("mlm", "masked-lm"),
        ("WIDTH", "width"),
        ("heds", "heads"),
        ("zzz", None),
    ],
)
def test_nearest_name(name: str, expected: str | None) -> None:
    assert suggest_name(name, ["heads", "layers", "width", "masked-lm"]) == expected


@pytest.mark.parametrize("name", ["profile_step_start", "use_pytorch_profiler", "profile_ranks"])
def test_profiler_suggests_profile(name: str) -> None:
    assert suggest_name(name, ["phase_start", "profile", "precision"]) == "profile"


@pytest.mark.parametrize("name", ["schedule", "lr_schedule", "lr_scheduler_type"])
def test_lr_scheduler_suggests_decay(name: str) -> None:
    assert suggest_name(name, ["decay", "decay_steps", "warmup_steps"]) == "decay"


def test_equivalent_is_not_suggested_if_it_is_no_key() -> None:
    assert suggest_name("learning_rate", ["width"]) is None


def test_advice_on_a_dotted_key_applies_to_its_section() -> None:
    assert "train.steps" in (advice_on_foreign_name("train.epochs", "epochs") or "")
    assert advice_on_foreign_name("data.epochs", "epochs") is None
