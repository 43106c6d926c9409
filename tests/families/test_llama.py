"""Llama-like models in Hugging Face's format: parameters of rotary positions, tied tables, windows, and soft caps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from megaptm.config import resolve_model
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import describe_config, from_hugging_face, hugging_face_config
from megaptm.hub.import_run import import_run
from megaptm.inference.generate import enable_key_value_cache
from megaptm.layers.attention import score_scale
from megaptm.layers.layer_costs import sublayers
from megaptm.layers.stack import Stack
from megaptm.spec import ModelSpec, RopeParameters, Size, change, published_spec, with_attention_options
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import assert_close, build_with_weights, convert_inputs, make_random_reference

LLAMA3_ROPE = {"rope_factor": 32.0, "rope_original_context": 12}


def with_options(spec: ModelSpec, **options: Any) -> ModelSpec:
    """Return the spec with other options of attention."""
    stacks = {name: with_attention_options(block, options) for name, block in spec.family.stacks.items()}
    return replace(spec, family=change(spec.family, stacks=stacks))


def tied(spec: ModelSpec) -> ModelSpec:
    size = change(spec.size, tied=True)
    return replace(spec, size=size, family=spec.family.for_size(size))


@pytest.mark.parametrize(
    "spec",
    [
        with_options(tiny_spec("llama"), rope_base=500.0),
        with_options(tiny_spec("llama3"), **LLAMA3_ROPE),
        tied(with_options(tiny_spec("llama3"), rope_factor=4.0)),
        with_options(tiny_spec("gemma3"), rope_base=(100.0, 100.0, 100.0, 100.0, 100.0, 1000.0)),
    ],
    ids=["base", "by wavelength", "tied, all wavelengths", "by kind of layer"],
)
def test_import_continues_with_its_numbers(spec: ModelSpec, tmp_path: Path) -> None:
    """A run that imports the model has them in its config, and equal logits."""
    reference, batch = make_random_reference(spec), tiny_batch(spec.name, rows=1)
    reference.save_pretrained(tmp_path / "theirs")
    options = [f"model.family={spec.name}", "data.mix={corpus: 1}", "data.sequence=16"]
    run = import_run(str(tmp_path / "theirs"), tmp_path / "run", options)
    continued = resolve_model(run.config)
    assert continued.family.stacks == spec.family.stacks
    assert continued.family.output == spec.family.output
    model = build_with_weights(continued, from_hugging_face(tmp_path / "theirs").weights)
    assert_close(model.logits(batch)["lm"], reference(**convert_inputs(spec.name, batch))[0])


@pytest.mark.parametrize(
    ("config", "family", "size"),
    [
        (transformers.LlamaConfig(rms_norm_eps=1e-5), "llama", "7b"),
        (transformers.MistralConfig(rms_norm_eps=1e-5), "mistral", "7b"),
        (transformers.Gemma2Config(), "gemma2", "2b"),
    ],
    ids=["llama", "mistral", "gemma2"],
)
def test_default_configs_are_published_sizes(config: transformers.PretrainedConfig, family: str, size: str) -> None:
    spec, expected = describe_config({**vars(config), **config.to_dict()})[1], published_spec(CATALOGUE[family], size)
    assert spec.family == expected.family
    assert spec.size == change(expected.size, head_width=expected.size.key_width)
    assert spec.vocabulary == expected.vocabulary


def test_config_of_the_released_llama_3_2_1b() -> None:
    """Files of earlier releases of transformers have `rope_theta` and `rope_scaling`."""
    scaling = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128_256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "rope_scaling": {**scaling, "original_max_position_embeddings": 8192},
    }
    spec, expected = describe_config(config, family="llama3")[1], published_spec(CATALOGUE["llama3"], "1b")
    options = {"rope_factor": 32.0, "rope_original_context": 8192}
    assert spec.family == with_options(expected, **options).family
    assert spec.size == change(expected.size, head_width=64)


def test_config_of_the_released_gemma_3_1b() -> None:
    config = {
        "model_type": "gemma3_text",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262_144,
        "rope_theta": 1_000_000,
        "rope_local_base_freq": 10_000,
        "rope_scaling": None,
        "sliding_window": 512,
    }
    spec, expected = describe_config(config)[1], published_spec(CATALOGUE["gemma3"], "1b")
    assert spec.family == with_options(expected, window=512, rope_factor=1.0).family
    assert spec.size == expected.size
    other = describe_config(config | {"rope_local_base_freq": 20_000})[1].family.last_block.attentions
    assert [record.rope_base for record in other] == [*[20_000.0] * 5, 1_000_000.0]
    with pytest.raises(UserError, match=r"sliding_window_pattern is 2 \(gemma3 has 6\)"):
        describe_config(config | {"sliding_window_pattern": 2})


def test_config_of_the_released_eurobert_2_1b() -> None:
    config = {
        "model_type": "eurobert",
        "hidden_size": 2304,
        "intermediate_size": 6144,
        "num_hidden_layers": 32,
        "num_attention_heads": 18,
        "num_key_value_heads": 6,
        "hidden_dropout": 0.0,
        "mask_token_id": 128_002,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 250_000,
        "tie_word_embeddings": False,
        "vocab_size": 128_256,
    }
    spec, expected = describe_config(config)[1], published_spec(CATALOGUE["eurobert"], "2.1b")
    assert spec.family == expected.family
    assert spec.size == change(expected.size, head_width=128)


def test_mistral_without_window_is_imported_as_llama(tmp_path: Path) -> None:
    config = transformers.MistralConfig(
        vocab_size=101,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=None,
    )
    reference, batch = transformers.MistralForCausalLM(config).eval(), tiny_batch("llama", rows=1)
    imported = from_hugging_face(reference)
    assert (imported.spec.name, find_counterpart(imported.spec).model) == ("llama", "LlamaForCausalLM")
    model = build_with_weights(imported.spec, imported.weights)
    assert_close(model.logits(batch)["lm"], reference(**convert_inputs("llama", batch))[0])


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (
            {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 12},
            "rope_type is 'yarn'; it must be one of default, linear, llama3",
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; it must be 1"),
        ({"rope_type": "linear", "factor": 0.5}, "factor is 0.5; it must be a number of at least 1"),
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0},
            "low_freq_factor is 2.0; it must be 1",
        ),
        ({"rope_type": ["linear"]}, "rope_type is \"['linear']\"; it must be one of"),
    ],
    ids=str,
)
def test_other_rotary_positions_are_refused(parameters: dict[str, Any], reason: str) -> None:
    config = hugging_face_config(tiny_spec("llama")).to_dict()
    with pytest.raises(UserError) as error:
        describe_config(config | {"rope_parameters": {"rope_theta": 10_000.0, **parameters}})
    assert f"config.json: rope_parameters.{reason}" in str(error.value)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"rope_base": (100.0, 200.0)}),
        ("mistral", {"window": (4, 6)}),
        ("gemma3", {"rope_base": (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)}),
        ("llama", {"scale_width": 4}),
    ],
    ids=str,
)
def test_options_without_hugging_face_config_are_refused(family: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"model\.attention.*Use `megaptm.load\(RUN\)`"):
        find_counterpart(with_options(tiny_spec(family), **options))


@pytest.mark.parametrize("family", ["llama3", "mistral", "olmo2", "gemma2", "gemma3"])
def test_cached_generation_equals_hugging_face(family: str) -> None:
    """The text is longer than the windows, of 4 positions."""
    reference = make_random_reference(tiny_spec(family))
    reference.generation_config.eos_token_id = None
    imported = from_hugging_face(reference)
    model = build_with_weights(imported.spec, imported.weights)
    prompt = tiny_batch(family, rows=1)["tokens"][:, :6]
    expected = reference.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False)
    text, ids, decoder = prompt, prompt, model.stack("decoder")
    assert isinstance(decoder, Stack)
    with torch.inference_mode(), enable_key_value_cache(decoder):
        for _ in range(10):
            positions = torch.arange(text.shape[1] - ids.shape[1], text.shape[1])[None]
            ids = model.logits({"tokens": ids, "positions": positions})["lm"][:, -1:].argmax(-1)
            text = torch.cat([text, ids], 1)
    assert text.equal(expected)


def test_scale_of_gemma2_27b() -> None:
    """Scores of the 27B model are divided by the square root of width / heads, 144; its heads have 128."""
    spec = with_options(published_spec(CATALOGUE["gemma2"], "27b"), scale_width=144)
    [attention, _] = sublayers(spec.family.last_block.at(0), spec.size)
    assert score_scale(attention.costs) == 1 / 12
    assert hugging_face_config(spec).query_pre_attn_scalar == 144


def test_soft_caps_limit_logits() -> None:
    spec = tiny_spec("gemma2")
    reference = make_random_reference(spec)
    imported = from_hugging_face(reference)
    weights = {
        name: 50 * weight if name == "embed.token.weight" else weight for name, weight in imported.weights.items()
    }
    logits = build_with_weights(imported.spec, weights).logits(tiny_batch("gemma2"))["lm"]
    assert 29 < logits.abs().max() <= 30


def test_tables_of_gemma3() -> None:
    """Five local layers for each global one; the bases are 10,000 and 1,000,000 (arXiv:2503.19786, section 2)."""
    attentions = CATALOGUE["gemma3"].last_block.attentions
    assert [record.kind for record in attentions] == [*["sliding-window"] * 5, "dot"]
    assert [record.rope for record in attentions[4:]] == [
        RopeParameters(1e4, 1.0, None),
        RopeParameters(1e6, 8.0, None),
    ]


def test_heads_of_qwen3_are_wider_than_the_model() -> None:
    size = CATALOGUE["qwen3"].sizes["0.6b"]
    assert isinstance(size, Size)
    assert (size.width, size.heads * size.key_width) == (1024, 2048)
    spec = tiny_spec("qwen3")
    assert spec.size.heads * spec.size.key_width == 2 * spec.width
