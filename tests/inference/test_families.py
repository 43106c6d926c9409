"""Every family of the catalogue encodes texts, and can be asked all that its heads can answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from megaptm.config import load, resolve_model
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.inference.generate import Draw, Sampling, answer_ids
from megaptm.inference.loaded_model import LoadedModel
from megaptm.inference.prompt import fields_of_texts, prepare_prompt, read_prompt, require, use_of, uses_of
from megaptm.models import build_model, fill
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.training import train
from tests.train.runs import CONFIGS, SHAPE, sharpen

TEXTS = [
    "The cat saw the dog by the river.",
    "A dog took the hat.",
    "The queen kept the letter in the garden by the window, and the king lost it.",
]
DECODERS = {
    "gpt1",
    "gpt2",
    "gpt3",
    "gpt3-banded",
    "palm",
    "transformer-xl",
    "transformer-xl-bytes",
    "reformer",
    "reformer-novel",
}
ENCODER_DECODERS = {"transformer", "t5", "t5-v1.1", "mt5", "bart", "led"}
GREEDY = Sampling(temperature=0)


@cache
def tokenizer_of(kind: str, specials: str | None, sentinels: int | None) -> Tokenizer:
    vocabulary = 400 if "byte" in kind or kind == "bpe" else 120
    return train(kind, TEXTS * 4, vocabulary=vocabulary, specials=specials, sentinels=sentinels)


def tiny(family: str, *overrides: str, sentinels: int | None = None) -> LoadedModel:
    """Its tiny config, smaller still, with initial weights that were made large."""
    table = CATALOGUE[family]
    sentinels = 20 if table.name in ("t5", "t5-v1.1", "mt5") else sentinels
    tokenizer = tokenizer_of(table.tokenizer, table.specials, sentinels)
    clusters = ["model.cutoffs=[12, 18]"] if family == "transformer-xl" else []
    said = [*SHAPE, "distill=null", f"model.vocabulary={tokenizer.vocabulary}", *clusters, *overrides]
    config = load(CONFIGS / family / "tiny.yaml", said)
    model = build_model(resolve_model(config)).eval().requires_grad_(False)
    fill(model, seed=3)
    sharpen(model, 10.0)
    where = Path("run")
    return LoadedModel(
        folder=where, config=config, step=0, model=model, tokenizer=tokenizer, tokenizer_folder=where / "tokenizer"
    )


@pytest.fixture(scope="module", params=CATALOGUE)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny(request.param)


def test_a_text_has_one_vector_whatever_is_read_beside_it(loaded: LoadedModel) -> None:
    together = loaded.encode(TEXTS)
    assert together.isfinite().all()
    if loaded.spec.name == "bigbird":  # its drawn blocks, and the last one, depend on how long the longest text is
        return
    apart = torch.cat([loaded.encode(text) for text in TEXTS])
    torch.testing.assert_close(together, apart, rtol=1e-3, atol=1e-4)
    assert (together[0] - together[1]).abs().max() > 1e-2
    assert loaded.encode(TEXTS, pool="none").shape[1] == max(
        len(
            loaded.config.built_objective.with_special_tokens(
                loaded.tokenizer.encode(text).tolist(), loaded.tokenizer.special
            )
        )
        for text in TEXTS
    )


def test_it_can_be_asked_what_its_heads_answer(loaded: LoadedModel) -> None:
    family = loaded.spec.family
    assert CATALOGUE.keys() > DECODERS | ENCODER_DECODERS
    if family.name == "xlnet":  # it says what stands at places that see one another in some order
        assert uses_of(loaded) == ()
        return
    way = "generate" if family.name in DECODERS else "fill" if family.name in ENCODER_DECODERS else "guess"
    assert uses_of(loaded) == (way,)
    ask: dict[str, Callable[[], object]] = {
        "generate": lambda: loaded.generate("The cat", tokens=5, temperature=0),
        "fill": lambda: loaded.fill(prompt_of(loaded), tokens=5, temperature=0),
        "guess": lambda: loaded.guess(prompt_of(loaded)),
    }
    assert ask.pop(way)()
    for other in ask:
        with pytest.raises(UserError, match=f"which cannot {other}: let it {way}"):
            ask[other]()


def test_a_model_that_gives_vectors_alone_says_how_they_are_had():
    loaded = tiny("xlnet")
    with pytest.raises(UserError, match=r"which cannot guess: let it encode \(`megaptm.load"):
        require(loaded, "guess")


def prompt_of(loaded: LoadedModel) -> str:
    task, special = loaded.config.built_objective, loaded.tokenizer.special
    if task.prompts[0] == "text":
        return "The cat"
    hole = special.sentinels[0] if task.prompts[0] == "sentinels" else special.blank
    return f"The {loaded.tokenizer.name(special.pad if hole is None else hole)} saw the dog."


@pytest.mark.parametrize(
    ("objective", "segment", "sees"),
    [
        ("unilm", 0, "both"),
        ("{ordered-masked-lm: {context: left-to-right}}", 2, "left"),
        ("{ordered-masked-lm: {context: right-to-left}}", 3, "right"),
        ("{ordered-masked-lm: {context: sequence-to-sequence}}", 4, "both"),
    ],
)
def test_a_text_is_read_in_the_context_that_was_learned(objective: str, segment: int, sees: str) -> None:
    unilm = tiny("unilm", f"objective={objective}")
    assert fields_of_texts(unilm, [[2, 7, 3]])["segments"].tolist() == [[segment] * 3]
    special = unilm.tokenizer.special
    row = [special.cls, 20, 21, 22, special.sep]
    changed = {"left": [special.cls, 30, *row[2:]], "right": [*row[:3], 30, special.sep]}
    middle = {side: unilm.model.encode(fields_of_texts(unilm, [other]))[0, 2] for side, other in changed.items()}
    as_it_is = unilm.model.encode(fields_of_texts(unilm, [row]))[0, 2]
    seen = {side for side, vector in middle.items() if not torch.allclose(vector, as_it_is, atol=1e-6)}
    assert seen == ({"left", "right"} if sees == "both" else {sees})
    assert len(unilm.guess("The [MASK] saw the dog.", guesses=3)[0]) == 3


def test_a_text_is_told_the_task_that_hides_in_it() -> None:
    said = "objective={capitalization: {task_id: 1, share: 1}, masked-lm: {task_id: 2, share: 1}}"
    assert fields_of_texts(tiny("ernie-2", said), [[2, 7, 3], [2, 3]])["task_ids"].tolist() == [2, 2]


def test_questions_alone_leave_nothing_to_ask_in_words() -> None:
    bert = tiny("bert", "objective={token-document: {}}")
    assert bert.config.built_objective.prompts == ()
    assert bert.encode(TEXTS).isfinite().all()


def by_whole_passes(loaded: LoadedModel, read: list[int], tokens: int) -> list[int]:
    said: list[int] = []
    while len(said) < tokens:
        logits = loaded.model.logits({"tokens": torch.tensor([[*read, *said]])})["lm"][0, -1]
        if (id_ := Draw(GREEDY, loaded.tokenizer)(logits)) == loaded.tokenizer.special.end:
            break
        said.append(id_)
    return said


@pytest.mark.parametrize(
    ("objective", "prompt", "way", "ends"),
    [
        ("causal-lm", "The cat", "generate", False),
        ("{prefix-lm: {joined: true}}", "The cat", "generate", True),
        ("{span-corruption: {joined: true}}", "The <extra_id_0> saw", "fill", True),
        ("{span-corruption: {joined: true, share: 1}, causal-lm: {share: 1}}", "The <extra_id_0> saw", "fill", True),
        ("{span-corruption: {joined: true, share: 1}, causal-lm: {share: 1}}", "The cat", "generate", False),
    ],
)
def test_a_decoder_is_asked_as_the_task_of_the_prompt_showed_it(
    objective: str, prompt: str, way: str, ends: bool
) -> None:
    gpt = tiny("gpt2", f"objective={objective}", sentinels=5)
    kind, ids = read_prompt(gpt, prompt)
    assert use_of(gpt, prompt) == way
    read = [*ids, gpt.tokenizer.special.end] if ends else ids
    expected = by_whole_passes(gpt, read, 12)
    assert expected
    assert [*answer_ids(gpt, ids, kind=kind, tokens=12, draw=Draw(GREEDY, gpt.tokenizer))] == expected
    if way == "generate":
        assert gpt.generate(prompt, tokens=12, temperature=0) == gpt.tokenizer.decode([*ids, *expected])[len(prompt) :]
    else:
        assert gpt.fill(prompt, tokens=12, temperature=0).startswith("The")
        with pytest.raises(UserError, match="gpt2 has no encoder"):
            gpt.answer(prompt)


def test_a_decoder_that_learned_of_holes_alone_asks_for_them() -> None:
    gpt = tiny("gpt2", "objective={span-corruption: {joined: true}}", sentinels=5)
    assert uses_of(gpt) == ("fill",)
    with pytest.raises(UserError, match="the prompt needs holes"):
        gpt.fill("The cat")


def test_a_prompt_of_several_tasks_stands_among_the_tokens_of_its_own() -> None:
    """BART's denoising begins a text, and what is said of it; a text that is continued has an end only."""
    bart = tiny("bart", "objective={denoising: {share: 1}, prefix-lm: {share: 1}}")
    special = bart.tokenizer.special
    assert prepare_prompt(bart, "masks", [9], 5)[:2] == ([special.begin, 9, special.end], [special.end, special.begin])
    assert prepare_prompt(bart, "text", [9], 5)[:2] == ([9, special.end], [special.pad])
