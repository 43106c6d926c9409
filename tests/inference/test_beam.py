"""Beam search matches Hugging Face and exhaustive search."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from megaptm.errors import UserError
from megaptm.hub.huggingface import to_hugging_face
from megaptm.inference.beam import Beam, beam_search, generate_by_beam
from megaptm.inference.generate import never_generated_ids
from megaptm.inference.loaded_model import LoadedModel, load_model
from megaptm.inference.prompt import prepare_prompt
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.tokenizers import train_tokenizer_on_texts
from tests.models.tiny import tiny_spec
from tests.train.runs import sharpen

TOKENIZERS = {
    "transformer": ("unigram", 120, "marian"),
    "t5": ("unigram", 120, "marian"),
    "bart": ("byte-bpe", 300, "roberta"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return family -> folder of an exported model with sharp predictions."""
    root = tmp_path_factory.mktemp("beams")
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    for family, (kind, vocabulary, specials) in TOKENIZERS.items():
        tokenizer = train_tokenizer_on_texts(kind, [text], vocabulary=vocabulary, specials=specials)
        tokenizer.save(root / f"{family}-tokenizer")
        spec = replace(tiny_spec(family), vocabulary=tokenizer.vocabulary)
        model = Model(spec)
        init_weights(model, seed=2)
        sharpen(model, 2.0)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        to_hugging_face(spec, weights, root / f"{family}-tokenizer", root / family)
    return {family: root / family for family in TOKENIZERS}


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("family", TOKENIZERS)
def test_beam_search_matches_hugging_face(folders: dict[str, Path], family: str, width: int) -> None:
    loaded, reference = load_model(folders[family]), transformers.AutoModelForSeq2SeqLM.from_pretrained(folders[family])
    special = loaded.tokenizer.special
    reference.generation_config.forced_eos_token_id = None  # BART's would be forced at the maximum length
    for prompt in ("def wrap(text):", "return the lines", "width"):
        ids = loaded.tokenizer.encode(prompt).tolist()
        text, decoder_start, _ = prepare_prompt(loaded, "text", ids, 9)
        output = reference.generate(
            torch.tensor([text]),
            num_beams=width,
            length_penalty=0.0,
            max_new_tokens=len(decoder_start) - 1 + 9,  # Hugging Face counts all but the first
            do_sample=False,
            bad_words_ids=[[id_] for id_ in never_generated_ids(special)],
        )[0].tolist()
        assert output[: len(decoder_start)] == decoder_start
        best = beam_search(loaded, ids, tokens=9, beam=Beam(width=width, length_penalty=0.0))[0]
        assert best.ids == [id_ for id_ in output[len(decoder_start) :] if id_ not in (special.end, special.pad)]


def log_probability(loaded: LoadedModel, ids: list[int], output_ids: list[int]) -> float:
    """Return the log-probability of an output with its end token, by one forward pass."""
    special = loaded.tokenizer.special
    batch = {
        "tokens": torch.tensor([[*ids, special.end]]),
        "decoder_tokens": torch.tensor([[special.pad, *output_ids]]),
    }
    logits = loaded.model.logits(batch)["lm"][0, :, : loaded.tokenizer.vocabulary].log_softmax(-1)
    return sum(logits[index, id_].item() for index, id_ in enumerate([*output_ids, special.end]))


def test_beam_as_wide_as_the_vocabulary_is_exhaustive(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["transformer"])
    special, vocabulary = loaded.tokenizer.special, loaded.tokenizer.vocabulary
    ids, beam = loaded.tokenizer.encode("width").tolist(), Beam(width=vocabulary, length_penalty=0.6)
    words = [id_ for id_ in range(vocabulary) if id_ not in (special.pad, special.end)]
    outputs = [[], *([id_] for id_ in words)]
    expected = max(outputs, key=lambda output: beam.score(log_probability(loaded, ids, output), len(output) + 1))
    ended = [result for result in beam_search(loaded, ids, tokens=2, beam=beam) if len(result.ids) < 2]
    assert ended[0].ids == expected
    assert ended[0].score == pytest.approx(
        beam.score(log_probability(loaded, ids, expected), len(expected) + 1), abs=1e-4
    )


def test_length_penalty_favors_longer_outputs() -> None:
    short, long = (-3.0, 4), (-3.6, 9)
    assert Beam(length_penalty=0.0).score(*short) > Beam(length_penalty=0.0).score(*long)
    assert Beam(length_penalty=1.0).score(*short) < Beam(length_penalty=1.0).score(*long)
    assert Beam(length_penalty=0.6).score(-6.0, 7) == pytest.approx(-6.0 / 2**0.6)


def test_invalid_beam_and_empty_prompt_are_errors(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["transformer"])
    with pytest.raises(UserError, match="prompt is empty"):
        generate_by_beam(loaded, "", tokens=3, beam=Beam())
    for width in (0, 10**12):
        with pytest.raises(UserError, match=r"beams \(\d+\) must be from 1 to 1,024"):
            Beam(width=width)
    for penalty in (-1.0, 1e308, math.nan):
        with pytest.raises(UserError, match=r"length-penalty \(\S+\) must be from 0 to 10"):
            Beam(length_penalty=penalty)


def test_beam_search_leaves_the_model_unchanged(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["transformer"])
    before = [type(module) for module in loaded.model.modules()]
    first, second = (generate_by_beam(loaded, "return the lines", tokens=5, beam=Beam()) for _ in range(2))
    assert first == second
    assert [type(module) for module in loaded.model.modules()] == before
