"""Which objectives a family can learn by: those that make what it reads, and ask what it does not see."""

from __future__ import annotations

import pytest

from megaptm.config import load
from megaptm.config.objective_fit import objective_mismatch
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.objectives import OBJECTIVES, objective_of
from megaptm.objectives.causal import CausalLM
from tests.config.test_check import CONFIGS

FITTING = {
    "gpt2": {"causal-lm"},
    "unilm": {"unilm", "fragment-generation"},
    "electra": {"replaced-token-detection"},
    "deberta-v3": {"replaced-token-detection"},
}
ENCODERS = {
    name for name, family in CATALOGUE.items() if [*family.stacks] == ["encoder"] and name not in ("unilm", "xlnet")
}
ENCODER_DECODERS = {name for name, family in CATALOGUE.items() if len(family.stacks) == 2 and not family.drawn}


class Mine(CausalLM):
    name = "mine"


def fits(family: str, objective: object) -> bool:
    task = objective_of(objective) if isinstance(objective, (str, dict)) else objective
    return not [*objective_mismatch(task, task.batch(128, False), CATALOGUE[family], task.name)]


def test_each_family_learns_by_what_its_paper_did() -> None:
    for family in CATALOGUE.values():
        assert family.objectives
        assert all(fits(family.name, name) for name in family.objectives), family.name


@pytest.mark.parametrize("family", FITTING)
def test_a_family_of_its_own_kind_learns_by_its_own_alone(family: str) -> None:
    assert {name for name in OBJECTIVES if fits(family, name)} == FITTING[family]


def test_encoders_learn_by_every_objective_that_hides_and_asks() -> None:
    found = {family: {name for name in OBJECTIVES if fits(family, name)} for family in ENCODERS}
    common = set.intersection(*found.values())
    assert common == {name for name in OBJECTIVES if name.startswith("masked-lm") or name in ("infomax", "ernie-2")}
    # Two texts that both begin at place 0 are told from one by places alone: not by distances.
    restarted = {family for family, names in found.items() if "translation-lm" in names}
    assert restarted == {family for family in ENCODERS if not family.startswith("deberta")}
    assert all(fits(family, {"translation-lm": {"places": "continued"}}) for family in ENCODERS)


def test_tokens_see_all_where_others_do_not() -> None:
    marking = {"masked-lm": {"global_tokens": 1}}
    assert {family for family in ENCODERS if fits(family, marking)} == {"longformer", "bigbird"}
    for name, task in (("bert", "masked-lm"), ("bart", "text-to-text")):
        with pytest.raises(UserError, match="masks no position from any other; remove global_tokens"):
            load(CONFIGS / f"{name}/tiny.yaml", [f"objective={{{task}: {{global_tokens: 1}}}}"])
    for pairs in ("translation", "text-to-text"):
        assert [family for family in ENCODER_DECODERS if fits(family, {pairs: {"global_tokens": 1}})] == ["led"]


def test_encoder_decoders_learn_by_every_objective_that_is_read_and_said() -> None:
    said = {name for name, task in OBJECTIVES.items() if "decoder_" in task.batch(128, False).streams}
    assert len(said) > 10
    for family in ENCODER_DECODERS:
        assert {name for name in OBJECTIVES if fits(family, name)} == said


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("bert", "it predicts the next token, and the encoder attends to it"),
        ("t5", "it provides tokens, and this family reads tokens and decoder_tokens"),
        ("unilm", "it does not provide the attention order that this family needs"),
        ("electra", "it samples no tokens for the second model"),
    ],
)
def test_an_objective_of_the_users_is_asked_the_same(family: str, told: str) -> None:
    task = Mine()
    [said] = objective_mismatch(task, task.batch(128, False), CATALOGUE[family], "mine")
    assert said.startswith(f"objective (mine) does not fit {family}: {told}; ")
    assert fits("gpt2", task)
    with pytest.raises(UserError, match="does not fit"):
        load(CONFIGS / f"{family}/tiny.yaml", [f"objective={__name__}:Mine"])


def test_a_decoder_learns_by_what_is_read_and_said_in_one_row() -> None:
    for task in ("span-corruption", "prefix-lm", "masked-text", "deshuffling", "dropped-tokens"):
        joined = {task: {"joined": True}}
        assert {family for family in CATALOGUE if fits(family, joined)} == {
            name for name, family in CATALOGUE.items() if [*family.stacks] == ["decoder"]
        }


def test_tasks_that_cannot_share_a_batch_are_told_before_a_run() -> None:
    both = "objective={masked-lm: {share: 1}, span-corruption: {share: 1}}"
    with pytest.raises(UserError, match="masked-lm and span-corruption cannot share a batch"):
        load(CONFIGS / "t5/tiny.yaml", [both])
