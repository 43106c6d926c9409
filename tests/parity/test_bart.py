"""BART and T5 in Hugging Face's format: stacks of unequal size, the bias on the logits, and generation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from megaptm.errors import UserError
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import describe_config, from_hugging_face, to_hugging_face
from megaptm.inference.generate import Sampler, Sampling, generate_ids
from megaptm.inference.loaded_model import load_model
from megaptm.spec import ModelSpec, Size, change
from tests.hub.exported import export_tiny
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import assert_close, build_with_weights, convert_inputs, make_random_reference


def with_decoder_size(family: str, **changes: int) -> ModelSpec:
    """Return a tiny spec whose decoder has another size than the encoder."""
    spec = tiny_spec(family)
    return replace(spec, size=change(spec.size, stacks={"decoder": change(spec.size, **changes)}))


@pytest.mark.parametrize(("family", "changes"), [("bart", {"layers": 1, "heads": 2, "ffn": 96}), ("t5", {"layers": 3})])
def test_stacks_of_unequal_size_are_imported_and_exported(family: str, changes: dict[str, int], tmp_path: Path) -> None:
    spec, batch = with_decoder_size(family, **changes), tiny_batch(family, rows=1)
    reference = make_random_reference(spec)
    reference.save_pretrained(tmp_path / "reference")
    imported = from_hugging_face(tmp_path / "reference")
    layers = {name: size.layers for name, size in spec.size.stacks.items()}
    assert {name: size.layers for name, size in imported.spec.size.stacks.items()} == layers
    model = build_with_weights(imported.spec, imported.weights)
    assert_close(model.logits(batch)["lm"], reference(**convert_inputs(family, batch))[0])

    to_hugging_face(imported.spec, imported.weights, None, tmp_path / "exported")
    exported = getattr(transformers, find_counterpart(spec).model).from_pretrained(tmp_path / "exported")
    assert exported.state_dict().keys() == reference.state_dict().keys()
    assert all(exported.state_dict()[name].equal(tensor) for name, tensor in reference.state_dict().items())


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("t5", {"heads": 2}, r"model.stacks.decoder.heads \(2\): T5ForConditionalGeneration has one heads"),
        ("t5", {"ffn": 32}, r"model.stacks.decoder.ffn \(32\): .* that of the encoder is 64"),
        ("bart", {"width": 64}, r"model.stacks.decoder.width \(64\): BartForConditionalGeneration has one width"),
        ("bart", {"kv_heads": 1}, "as many key-value heads as query heads, but has 1 and 4"),
    ],
)
def test_size_without_hugging_face_config_is_rejected(family: str, changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_counterpart(with_decoder_size(family, **changes))


def test_nonzero_bias_on_the_logits_is_rejected() -> None:
    reference = make_random_reference(tiny_spec("bart"))
    from_hugging_face(reference)
    reference.final_logits_bias[0, 3] = 1.0
    with pytest.raises(UserError, match="final_logits_bias must be 0, since megaptm's bart has no such parameters"):
        from_hugging_face(reference)


def test_config_of_released_large_model_is_read() -> None:
    """The default config of transformers, except for two dropout rates."""
    spec = describe_config(transformers.BartConfig().to_dict())[1]
    assert spec.size == Size(layers=12, width=1024, heads=16, ffn=4096)
    assert spec.vocabulary == 50265
    assert spec.context == 1024
    assert spec.dropout == 0.1
    small = describe_config({**transformers.BartConfig().to_dict(), "decoder_layers": 6})[1]
    assert small.size == change(spec.size, stacks={"decoder": change(spec.size, layers=6)})


def test_generation_equals_hugging_face(tmp_path: Path) -> None:
    """The decoder input starts with `</s>`; generation is forced to start with `<s>` and to end with `</s>`."""
    folder, model, tokenizer = export_tiny("bart", tmp_path)
    reference = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    special, generation = tokenizer.special, reference.generation_config
    assert special.begin == 0
    assert special.pad == generation.pad_token_id == 1
    assert special.end == generation.eos_token_id == 2
    assert generation.forced_bos_token_id == special.begin
    assert generation.forced_eos_token_id == special.end
    assert generation.decoder_start_token_id == reference.config.decoder_start_token_id == special.end
    assert generation.max_length == model.spec.context
    ids = transformers.AutoTokenizer.from_pretrained(folder)("def wrap")["input_ids"]
    assert ids == [special.begin, *tokenizer.encode("def wrap").tolist(), special.end]
    expected = reference.generate(torch.tensor([ids]), do_sample=False)[0].tolist()
    assert expected[:2] == [special.end, special.begin]
    assert expected[-1] == special.end
    assert len(expected) == model.spec.context
    loaded, sampler = load_model(folder), Sampler(Sampling(temperature=0), tokenizer)
    generated = [*generate_ids(loaded, ids[1:-1], tokens=100, sampler=sampler)]
    assert generated[: len(expected) - 3] == expected[2:-1]
    assert loaded.fill("def<mask>(text)", tokens=3, temperature=0)
    with pytest.raises(UserError, match="26 tokens, more than the 24 that the model reads"):
        loaded.fill("<mask>" * 24)
