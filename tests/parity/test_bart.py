"""What is BART's own at Hugging Face: stacks of unequal size, the bias on its logits, how it begins to write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from megaptm.errors import UserError
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import describe_config, from_hugging_face, to_hugging_face
from megaptm.inference.generate import Sampler, Sampling, output_ids
from megaptm.inference.loaded_model import load_model
from megaptm.spec import ModelSpec, Size, change
from tests.hub.exported import export_tiny
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import assert_close, inputs_of, model_of, random_reference


def unequal(family: str, **numbers: int) -> ModelSpec:
    """A decoder that has other numbers than the encoder."""
    spec = tiny_spec(family)
    return replace(spec, size=change(spec.size, stacks={"decoder": change(spec.size, **numbers)}))


@pytest.mark.parametrize(("family", "numbers"), [("bart", {"layers": 1, "heads": 2, "ffn": 96}), ("t5", {"layers": 3})])
def test_stacks_of_unequal_size_come_in_and_go_out(family: str, numbers: dict[str, int], tmp_path: Path) -> None:
    spec, batch = unequal(family, **numbers), tiny_batch(family, rows=1)
    theirs = random_reference(spec)
    theirs.save_pretrained(tmp_path / "theirs")
    found = from_hugging_face(tmp_path / "theirs")
    wanted = {name: size.layers for name, size in spec.size.stacks.items()}
    assert {name: size.layers for name, size in found.spec.size.stacks.items()} == wanted
    ours = model_of(found.spec, found.weights)
    assert_close(ours.logits(batch)["lm"], theirs(**inputs_of(family, batch))[0])

    to_hugging_face(found.spec, found.weights, None, tmp_path / "ours")
    again = getattr(transformers, find_counterpart(spec).model).from_pretrained(tmp_path / "ours")
    assert again.state_dict().keys() == theirs.state_dict().keys()
    assert all(again.state_dict()[name].equal(tensor) for name, tensor in theirs.state_dict().items())


@pytest.mark.parametrize(
    ("family", "numbers", "told"),
    [
        ("t5", {"heads": 2}, r"model.stacks.decoder.heads \(2\): T5ForConditionalGeneration has one heads"),
        ("t5", {"ffn": 32}, r"model.stacks.decoder.ffn \(32\): .* that of the encoder is 64"),
        ("bart", {"width": 64}, r"model.stacks.decoder.width \(64\): BartForConditionalGeneration has one width"),
        ("bart", {"kv_heads": 1}, "as many key-value heads as query heads, but has 1 and 4"),
    ],
)
def test_what_theirs_has_one_number_for_is_told(family: str, numbers: dict[str, int], told: str) -> None:
    with pytest.raises(UserError, match=told):
        find_counterpart(unequal(family, **numbers))


def test_a_bias_on_the_logits_is_refused_unless_it_is_zero() -> None:
    theirs = random_reference(tiny_spec("bart"))
    from_hugging_face(theirs)
    theirs.final_logits_bias[0, 3] = 1.0
    with pytest.raises(UserError, match="final_logits_bias must be 0, since megaptm's bart has no such parameters"):
        from_hugging_face(theirs)


def test_the_released_large_model_is_the_table() -> None:
    """Whose config is their default but for two rates of dropout; a smaller decoder is a size of it."""
    spec = describe_config(transformers.BartConfig().to_dict())[1]
    assert spec.size == Size(layers=12, width=1024, heads=16, ffn=4096)
    assert (spec.vocabulary, spec.context, spec.dropout) == (50265, 1024, 0.1)
    small = describe_config({**transformers.BartConfig().to_dict(), "decoder_layers": 6})[1]
    assert small.size == change(spec.size, stacks={"decoder": change(spec.size, layers=6)})


def test_it_begins_to_write_as_it_was_trained(tmp_path: Path) -> None:
    """The decoder starts with `</s>`, is made to say `<s>` first and `</s>` last; texts are laid out as RoBERTa's."""
    folder, model, tokenizer = export_tiny("bart", tmp_path)
    theirs = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    reading = transformers.AutoTokenizer.from_pretrained(folder)
    special, generation = tokenizer.special, theirs.generation_config
    assert (special.begin, special.pad, special.end) == (0, 1, 2)
    assert (generation.decoder_start_token_id, generation.forced_bos_token_id) == (special.end, special.begin)
    assert (generation.forced_eos_token_id, generation.eos_token_id, generation.pad_token_id) == (2, 2, 1)
    assert (theirs.config.decoder_start_token_id, generation.max_length) == (2, model.spec.context)
    ids = reading("def wrap")["input_ids"]
    assert ids == [special.begin, *tokenizer.encode("def wrap").tolist(), special.end]
    written = theirs.generate(torch.tensor([ids]), do_sample=False)[0].tolist()
    assert written[:2] == [special.end, special.begin]
    assert (len(written), written[-1]) == (model.spec.context, special.end)
    ours, sampler = load_model(folder), Sampler(Sampling(temperature=0), tokenizer)
    said = [*output_ids(ours, ids[1:-1], tokens=100, sampler=sampler)]
    assert said[: len(written) - 3] == written[2:-1]
    assert ours.fill("def<mask>(text)", tokens=3, temperature=0)
    with pytest.raises(UserError, match="26 tokens, more than the 24 that the model reads"):
        ours.fill("<mask>" * 24)
