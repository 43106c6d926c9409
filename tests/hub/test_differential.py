"""Imports with one other value in config.json give equal logits, or a refusal that names the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megaptm.errors import UserError
from megaptm.hub.huggingface import describe_config
from tests.hub.differential import (
    ARCHITECTURES,
    UNDECLARED,
    Case,
    compare,
    find_fault,
    generate_cases,
    list_declared_fields,
    list_read_fields,
    tiny_config,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.drill
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_fields_are_equal_or_refused_by_name(name: str, tmp_path: Path) -> None:
    outcomes = [(case, compare(name, case, tmp_path / str(index))) for index, case in enumerate(generate_cases(name))]
    assert {str(case): text for case, text in outcomes if find_fault(case, text)} == {}
    assert "equal" in [text for _, text in outcomes]


@pytest.mark.parametrize(
    ("name", "field", "value", "reason"),
    [
        ("t5-v1.1", "scale_decoder_outputs", True, "scale_decoder_outputs is True (t5-v1.1 has False)"),
        ("t5", "dense_act_fn", "silu", "dense_act_fn is 'silu' (t5 has 'relu')"),
        ("t5", "is_encoder_decoder", False, "is_encoder_decoder is False (t5 has True)"),
        ("deberta-v2", "conv_groups", 4, "conv_groups is 4 (deberta-v2 has 1)"),
        ("deberta-v2", "position_buckets", 16, "position_buckets is 16 (deberta-v2 has 256)"),
        ("deberta", "talking_head", True, "talking_head is True (deberta has False)"),
        ("deberta", "embedding_size", 16, "embedding_size is 16 (deberta has 32)"),
        ("albert", "id2label", {"0": "a"}, "id2label is {'0': 'a'} (albert has 2)"),
        ("albert", "embedding_size", 32, "embedding_size and hidden_size are both 32"),
        ("bert", "position_embedding_type", "relative_key", "position_embedding_type is 'relative_key' (bert has"),
        ("gpt2", "resid_pdrop", 0.25, "resid_pdrop is 0.25 and embd_pdrop is 0.0 (gpt2 has one value for these"),
        ("reformer", "num_hidden_layers", 3, "num_hidden_layers is 3, but attn_layers has 2 entries"),
        ("vit", "head_dim", 4, "head_dim is 4 (vit has 8)"),
        ("vit", "patch_size", 4, "patch_size (4) does not divide image_size (6)"),
        (
            "roberta",
            "pad_token_id",
            3,
            "pad_token_id is 3, but roberta has 1, and RobertaForMaskedLM counts positions from it",
        ),
    ],
    ids=str,
)
def test_refusal_names_the_field(name: str, field: str, value: Any, reason: str, tmp_path: Path) -> None:
    assert reason in compare(name, Case(field, value), tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("palm", "num_key_value_heads", 4),  # as many as query heads
        ("deberta", "hidden_size", 64),
        ("t5", "dense_act_fn", "absent"),
        ("bigbird", "num_random_blocks", 1),
    ],
)
def test_supported_field_gives_equal_logits(name: str, field: str, value: Any, tmp_path: Path) -> None:
    assert compare(name, Case(field, value), tmp_path / "model") == "equal"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_fields_of_transformers_are_tested(name: str) -> None:
    """If a release of transformers reads another field, add it to `UNDECLARED`."""
    assert list_read_fields(name) <= list_declared_fields(name) | {*UNDECLARED}


def test_refusal_names_both_t5_versions() -> None:
    with pytest.raises(UserError) as error:
        describe_config({"model_type": "t5", "feed_forward_proj": "gated-gelu", "tie_word_embeddings": True})
    assert str(error.value) == (
        "config.json: feed_forward_proj is 'gated-gelu' (t5 has 'relu'); tie_word_embeddings is True, so that "
        "scale_decoder_outputs is True (t5-v1.1 has False); such a model cannot be imported."
    )


def test_refusal_names_all_fields() -> None:
    with pytest.raises(UserError, match=r"conv_groups is 4 .*; position_buckets is 16 |position_buckets .*conv_groups"):
        describe_config({**tiny_config("deberta-v2"), "conv_groups": 4, "position_buckets": 16})
