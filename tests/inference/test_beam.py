"""Beam search says what Hugging Face's says, and what trying everything finds."""

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
from megaptm.inference.beam import Beam, answer, search
from megaptm.inference.generate import never_generated
from megaptm.inference.loaded_model import LoadedModel, load_model
from megaptm.inference.prompt import prepare_prompt
from megaptm.models import build_model, fill
from megaptm.tokenizers import train
from tests.models.tiny import tiny_spec
from tests.train.runs import sharpen

TOKENIZERS = {
    "transformer": ("unigram", 120, "marian"),
    "t5": ("unigram", 120, "marian"),
    "bart": ("byte-bpe", 300, "roberta"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family -> an exported model that has opinions."""
    root = tmp_path_factory.mktemp("beams")
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    for family, (kind, vocabulary, specials) in TOKENIZERS.items():
        tokenizer = train(kind, [text], vocabulary=vocabulary, specials=specials)
        tokenizer.save(root / f"{family}-tokenizer")
        spec = replace(tiny_spec(family), vocabulary=tokenizer.vocabulary)
        model = build_model(spec)
        fill(model, seed=2)
        sharpen(model, 2.0)
        weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        to_hugging_face(spec, weights, root / f"{family}-tokenizer", root / family)
    return {family: root / family for family in TOKENIZERS}


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("family", TOKENIZERS)
def test_it_is_that_of_hugging_face_where_lengths_do_not_count(
    folders: dict[str, Path], family: str, width: int
) -> None:
    ours, theirs = load_model(folders[family]), transformers.AutoModelForSeq2SeqLM.from_pretrained(folders[family])
    special = ours.tokenizer.special
    theirs.generation_config.forced_eos_token_id = None  # whose end BART's is made to say, likely or not
    for prompt in ("def wrap(text):", "return the lines", "width"):
        ids = ours.tokenizer.encode(prompt).tolist()
        text, decoder_start, _ = prepare_prompt(ours, "text", ids, 9)
        said = theirs.generate(
            torch.tensor([text]),
            num_beams=width,
            length_penalty=0.0,
            max_new_tokens=len(decoder_start) - 1 + 9,  # all but the first, which it is made to say, are new to it
            do_sample=False,
            bad_words_ids=[[id_] for id_ in never_generated(special)],
        )[0].tolist()
        assert said[: len(decoder_start)] == decoder_start
        best = search(ours, ids, tokens=9, beam=Beam(width=width, length_penalty=0.0))[0]
        assert best.ids == [id_ for id_ in said[len(decoder_start) :] if id_ not in (special.end, special.pad)]


def scored(loaded: LoadedModel, ids: list[int], answer_ids: list[int]) -> float:
    """Logarithm of the probability of an answer with its end, by one whole pass."""
    special = loaded.tokenizer.special
    batch = {
        "tokens": torch.tensor([[*ids, special.end]]),
        "decoder_tokens": torch.tensor([[special.pad, *answer_ids]]),
    }
    logits = loaded.model.logits(batch)["lm"][0, :, : loaded.tokenizer.vocabulary].log_softmax(-1)
    return sum(logits[at, id_].item() for at, id_ in enumerate([*answer_ids, special.end]))


def test_a_beam_as_wide_as_the_vocabulary_finds_the_best_of_all(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["transformer"])
    special, vocabulary = loaded.tokenizer.special, loaded.tokenizer.vocabulary
    ids, beam = loaded.tokenizer.encode("width").tolist(), Beam(width=vocabulary, length_penalty=0.6)
    words = [id_ for id_ in range(vocabulary) if id_ not in (special.pad, special.end)]
    answers = [[], *([id_] for id_ in words)]
    expected = max(answers, key=lambda one: beam.score(scored(loaded, ids, one), len(one) + 1))
    ended = [one for one in search(loaded, ids, tokens=2, beam=beam) if len(one.ids) < 2]
    assert ended[0].ids == expected
    assert ended[0].score == pytest.approx(beam.score(scored(loaded, ids, expected), len(expected) + 1), abs=1e-4)


def test_a_penalty_of_length_prefers_longer_answers() -> None:
    short, long = (-3.0, 4), (-3.6, 9)
    assert Beam(length_penalty=0.0).score(*short) > Beam(length_penalty=0.0).score(*long)
    assert Beam(length_penalty=1.0).score(*short) < Beam(length_penalty=1.0).score(*long)
    assert Beam(length_penalty=0.6).score(-6.0, 7) == pytest.approx(-6.0 / 2**0.6)


def test_what_cannot_be_searched_is_told(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["transformer"])
    with pytest.raises(UserError, match="prompt is empty"):
        answer(loaded, "", tokens=3, beam=Beam())
    for width in (0, 10**12):
        with pytest.raises(UserError, match=r"beams \(\d+\) must be from 1 to 1,024"):
            Beam(width=width)
    for penalty in (-1.0, 1e308, math.nan):
        with pytest.raises(UserError, match=r"length-penalty \(\S+\) must be from 0 to 10"):
            Beam(length_penalty=penalty)


def test_it_leaves_the_model_as_it_was(folders: dict[str, Path]) -> None:
    loaded = load_model(folders["transformer"])
    before = [type(module) for module in loaded.model.modules()]
    first, second = (answer(loaded, "return the lines", tokens=5, beam=Beam()) for _ in range(2))
    assert first == second
    assert [type(module) for module in loaded.model.modules()] == before
