"""T5Gemma in Hugging Face's format: released configs, windows and ids of both sides, and stacks of unequal width."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import describe_config, from_hugging_face, hugging_face_config
from megaptm.spec import Size, change, published_spec, with_attention_options
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import assert_close, build_with_weights, convert_inputs, make_random_reference

SIDE = {
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
    "max_position_embeddings": 8192,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_key_value_heads": 12,
    "query_pre_attn_scalar": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "sliding_window": 4096,
    "vocab_size": 256_000,
}
B_B = {"model_type": "t5gemma", "encoder": SIDE, "decoder": SIDE, "dropout_rate": 0.0, "vocab_size": 256_000}
"""Fields of the released config of B-B, which an earlier release of transformers wrote."""


def with_decoder(**fields: Any) -> dict[str, Any]:
    return B_B | {"decoder": SIDE | fields}


def test_released_config_is_the_published_size() -> None:
    spec, expected = describe_config(B_B)[1], published_spec(CATALOGUE["t5gemma"], "b-b")
    assert spec.family == expected.family
    assert spec.size == change(expected.size, head_width=64)


def test_default_config_is_2b_2b() -> None:
    spec, expected = describe_config(transformers.T5GemmaConfig().to_dict())[1], CATALOGUE["t5gemma"]
    assert spec.family == expected
    assert spec.size == expected.sizes["2b-2b"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_decoder(final_logit_softcapping=None), r"decoder\.final_logit_softcapping is None"),
        (with_decoder(layer_types=["full_attention"] * 12), r"decoder\.layer_types is"),
        (with_decoder(rope_theta=500.0), r"encoder\.rope_parameters is .* and decoder\.rope_parameters is"),
        (B_B | {"tie_word_embeddings": False}, r"tie_word_embeddings is False"),
    ],
)
def test_other_fields_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        describe_config(config)


def test_window_of_the_encoder_is_on_each_side() -> None:
    """A position of the encoder attends to 2 x 4,096 others, one of the decoder to 4,096, its own included."""
    config = hugging_face_config(published_spec(CATALOGUE["t5gemma"], "b-b"))
    assert (config.encoder.sliding_window, config.decoder.sliding_window) == (4096, 4096)
    windows = {name: block.attentions[0].window for name, block in CATALOGUE["t5gemma"].stacks.items()}
    assert windows == {"encoder": 8192, "decoder": 4096}


def test_texts_of_the_decoder_start_with_the_token_of_training() -> None:
    ids = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 0}
    config = hugging_face_config(tiny_spec("t5gemma"), **ids)
    reference = transformers.T5GemmaForConditionalGeneration(config)
    start = reference.prepare_decoder_input_ids_from_labels(torch.tensor([[5, 6, 1]]))
    assert start.tolist() == [[0, 5, 6]]


def test_options_that_differ_among_layers_are_not_exported() -> None:
    spec = tiny_spec("t5gemma")
    stacks = {
        name: with_attention_options(block, {"rope_base": (100.0, 200.0)}) for name, block in spec.family.stacks.items()
    }
    with pytest.raises(UserError, match=r"rotary parameters that differ among layers"):
        hugging_face_config(replace(spec, family=change(spec.family, stacks=stacks)))


def test_stacks_of_unequal_width() -> None:
    """The sizes 9B-2B have them."""
    spec = tiny_spec("t5gemma")
    decoder = Size(layers=1, width=16, heads=2, ffn=24, head_width=8, kv_heads=1)
    spec = replace(spec, size=change(spec.size, stacks={"decoder": decoder}))
    reference, batch = make_random_reference(spec), tiny_batch("t5gemma", rows=1)
    imported = from_hugging_face(reference)
    assert imported.spec.size_of("decoder") == change(decoder, kv_heads=1)
    model = build_with_weights(imported.spec, imported.weights)
    assert_close(model.logits(batch)["lm"], reference(**convert_inputs("t5gemma", batch))[0])
