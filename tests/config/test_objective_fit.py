"""Objectives that a family can be trained with: they provide its inputs and predict what it does not attend to."""

from __future__ import annotations

import pytest

from megaptm.config import load_config
from megaptm.config.objective_fit import objective_errors
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.objectives import OBJECTIVES, build_objective
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
ENCODER_DECODERS = {name for name, family in CATALOGUE.items() if len(family.stacks) == 2 and not family.sampled}


class OwnObjective(CausalLM):
    name = "mine"


def fits(family: str, objective: object) -> bool:
    task = build_objective(objective) if isinstance(objective, (str, dict)) else objective
    return not [*objective_errors(task, task.batch_spec(128, False), CATALOGUE[family], task.name)]


def test_family_fits_the_objectives_of_its_paper() -> None:
    for family in CATALOGUE.values():
        assert family.objectives
        assert all(fits(family.name, name) for name in family.objectives), family.name


@pytest.mark.parametrize("family", FITTING)
def test_special_family_fits_only_its_own_objectives(family: str) -> None:
    assert {name for name in OBJECTIVES if fits(family, name)} == FITTING[family]


def test_encoders_fit_masked_lm_objectives() -> None:
    fitting = {family: {name for name in OBJECTIVES if fits(family, name)} for family in ENCODERS}
    common = set.intersection(*fitting.values())
    assert common == {name for name in OBJECTIVES if name.startswith("masked-lm") or name == "infomax"}
    # Second texts that restart at position 0 need absolute positions.
    restarted = {family for family, names in fitting.items() if "translation-lm" in names}
    assert restarted == {family for family in ENCODERS if not family.startswith("deberta")}
    assert all(fits(family, {"translation-lm": {"reset_positions": False}}) for family in ENCODERS)


def test_global_tokens_need_partial_attention() -> None:
    marking = {"masked-lm": {"global_tokens": 1}}
    assert {family for family in ENCODERS if fits(family, marking)} == {"longformer", "bigbird"}
    for name, task in (("bert", "masked-lm"), ("bart", "text-to-text")):
        with pytest.raises(UserError, match="masks no position from any other; remove global_tokens"):
            load_config(CONFIGS / f"{name}/tiny.yaml", [f"objective={{{task}: {{global_tokens: 1}}}}"])
    for pairs in ("translation", "text-to-text"):
        assert [family for family in ENCODER_DECODERS if fits(family, {pairs: {"global_tokens": 1}})] == ["led"]


def test_encoder_decoders_fit_every_sequence_to_sequence_objective() -> None:
    with_decoder = {name for name, task in OBJECTIVES.items() if "decoder_" in task.batch_spec(128, False).streams}
    assert len(with_decoder) > 10
    for family in ENCODER_DECODERS:
        assert {name for name in OBJECTIVES if fits(family, name)} == with_decoder


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("bert", "it predicts the next token, and the encoder attends to it"),
        ("t5", "it provides tokens, and this family reads tokens and decoder_tokens"),
        ("unilm", "it does not provide the attention order that this family needs"),
        ("electra", "it samples no tokens for the second model"),
    ],
)
def test_custom_objective_is_checked(family: str, reason: str) -> None:
    task = OwnObjective()
    [message] = objective_errors(task, task.batch_spec(128, False), CATALOGUE[family], "mine")
    assert message.startswith(f"objective (mine) does not fit {family}: {reason}; ")
    assert fits("gpt2", task)
    with pytest.raises(UserError, match="does not fit"):
        load_config(CONFIGS / f"{family}/tiny.yaml", [f"objective={__name__}:OwnObjective"])


def test_decoders_fit_joined_sequence_to_sequence_objectives() -> None:
    for task in ("span-corruption", "prefix-lm", "masked-text", "deshuffling", "dropped-tokens"):
        joined = {task: {"joined": True}}
        assert {family for family in CATALOGUE if fits(family, joined)} == {
            name for name, family in CATALOGUE.items() if [*family.stacks] == ["decoder"]
        }


def test_tasks_that_cannot_share_a_batch_are_rejected() -> None:
    both = "objective={masked-lm: {share: 1}, span-corruption: {share: 1}}"
    with pytest.raises(UserError, match="masked-lm and span-corruption cannot share a batch"):
        load_config(CONFIGS / "t5/tiny.yaml", [both])
