"""Words of other projects lead to a name or a sentence of ours."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from megaptm.__main__ import main
from megaptm.config.errors import fields
from megaptm.config.schema import OptimizerConfig
from megaptm.objectives.registry import TASKS
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.suggest import ADVICE, EQUIVALENT_NAMES, advice, suggest
from megaptm.tokenizers import KINDS
from tests.commands import all_commands


def config_keys() -> set[str]:
    sections = {section: fields((section,)) for section in fields()}
    return {*sections}.union(*(sections.values()), (f"{name}.{key}" for name, keys in sections.items() for key in keys))


def test_each_equivalent_is_a_name_of_megaptm() -> None:
    options = {name for task in TASKS.values() for name in getattr(task, "__dataclass_fields__", ())}
    values = {value for kind in OptimizerConfig.model_fields.values() for value in get_args(kind.annotation)}
    words = {words[-1] for words, _ in all_commands(main)} | {
        form.removeprefix("--") for _, command in all_commands(main) for one in command.params for form in one.opts
    }
    assert {*EQUIVALENT_NAMES.values()} <= config_keys() | options | {*QUESTIONS} | {*KINDS} | values | words


def test_a_word_has_one_answer() -> None:
    """Keys of megaptm, equivalent names and words with advice are disjoint."""
    assert not {*EQUIVALENT_NAMES} & config_keys()
    assert not {*ADVICE} & config_keys()
    assert not {*ADVICE} & {*EQUIVALENT_NAMES}


@pytest.mark.parametrize("sentence", sorted({*ADVICE.values()}), ids=lambda sentence: sentence[:30])
def test_advice_names_keys_and_commands_that_exist(sentence: str) -> None:
    keys = set(re.findall(r"\b(?:train|data|layout|optimizer|track|model)\.[a-z_]+", sentence))
    commands = {tuple(words.split()) for words in re.findall(r"`megaptm ([a-z]+(?: [a-z]+)?)", sentence)}
    known = {words for words, _ in all_commands(main)}
    assert keys <= config_keys()
    assert all(words in known or words[:1] in known for words in commands)
    assert sentence.endswith(".")


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


@pytest.mark.parametrize("name", ["schedule", "lr_schedule", "lr_scheduler_type"])
def test_a_schedule_of_the_learning_rate_is_its_decay(name: str) -> None:
    assert suggest(name, ["decay", "decay_steps", "warmup_steps"]) == "decay"


def test_a_name_of_another_library_means_nothing_where_its_key_is_not_known() -> None:
    assert suggest("learning_rate", ["width"]) is None


def test_advice_on_a_dotted_key_holds_in_its_section_only() -> None:
    assert "context parallelism" in (advice("layout.context", "context") or "")
    assert advice("data.context", "context") is None
