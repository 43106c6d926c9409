"""Every family of the catalogue encodes texts and supports the uses of its heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from megaptm.config import load_config, resolve_model
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.inference.generate import Sampler, Sampling, generate_ids
from megaptm.inference.loaded_model import LoadedModel
from megaptm.inference.prompt import model_uses, prepare_prompt, read_prompt, require_use, select_use, text_batch
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.training import train_tokenizer_on_texts
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
    "llama",
    "llama3",
    "qwen3",
    "olmo2",
    "mistral",
    "gemma2",
    "gemma3",
    "ettin-decoder",
    "transformer-xl",
    "transformer-xl-bytes",
    "reformer",
    "reformer-novel",
}
ENCODER_DECODERS = {"transformer", "t5", "t5-v1.1", "mt5", "t5gemma", "bart", "led"}
GREEDY = Sampling(temperature=0)


@cache
def train_tokenizer(kind: str, specials: str | None, sentinels: int | None) -> Tokenizer:
    vocabulary = 400 if "byte" in kind or kind == "bpe" else 120
    return train_tokenizer_on_texts(kind, TEXTS * 4, vocabulary=vocabulary, specials=specials, sentinels=sentinels)


def tiny(family: str, *overrides: str, sentinels: int | None = None) -> LoadedModel:
    """Return a smaller model than the family's tiny config, with initial weights scaled up."""
    table = CATALOGUE[family]
    sentinels = 20 if table.name in ("t5", "t5-v1.1", "mt5", "t5gemma") else sentinels
    tokenizer = train_tokenizer(table.tokenizer.kind, table.tokenizer.specials, sentinels)
    clusters = ["model.cutoffs=[12, 18]"] if family == "transformer-xl" else []
    options = [*SHAPE, "distill=null", f"model.vocabulary={tokenizer.vocabulary}", *clusters, *overrides]
    config = load_config(CONFIGS / family / "tiny.yaml", options)
    model = Model(resolve_model(config)).eval().requires_grad_(False)
    init_weights(model, seed=3)
    sharpen(model, 10.0)
    folder = Path("run")
    return LoadedModel(
        folder=folder, config=config, step=0, model=model, tokenizer=tokenizer, tokenizer_folder=folder / "tokenizer"
    )


@pytest.fixture(scope="module", params=CATALOGUE)
def loaded(request: pytest.FixtureRequest) -> LoadedModel:
    return tiny(request.param)


def test_text_vectors_do_not_depend_on_the_batch(loaded: LoadedModel) -> None:
    batched = loaded.encode(TEXTS)
    assert batched.isfinite().all()
    if loaded.spec.name == "bigbird":  # its random blocks depend on the length of the longest text
        return
    separate = torch.cat([loaded.encode(text) for text in TEXTS])
    torch.testing.assert_close(batched, separate, rtol=1e-3, atol=1e-4)
    assert (batched[0] - batched[1]).abs().max() > 1e-2
    assert loaded.encode(TEXTS, pool="none").shape[1] == max(
        len(
            loaded.config.built_objective.add_special_tokens(
                loaded.tokenizer.encode(text).tolist(), loaded.tokenizer.special
            )
        )
        for text in TEXTS
    )


def test_family_supports_the_uses_of_its_heads(loaded: LoadedModel) -> None:
    family = loaded.spec.family
    assert CATALOGUE.keys() > DECODERS | ENCODER_DECODERS
    if family.name == "xlnet":  # its predictions need an order of positions
        assert model_uses(loaded) == ()
        return
    use = "generate" if family.name in DECODERS else "fill" if family.name in ENCODER_DECODERS else "guess"
    assert model_uses(loaded) == (use,)
    calls: dict[str, Callable[[], object]] = {
        # Untrained models may generate part of a character, which is no text yet.
        "generate": lambda: "".join(loaded.generate(text, tokens=5, temperature=0) for text in ("The cat", "The dog")),
        "fill": lambda: loaded.fill(example_prompt(loaded), tokens=5, temperature=0),
        "guess": lambda: loaded.guess(example_prompt(loaded)),
    }
    assert calls.pop(use)()
    for other in calls:
        with pytest.raises(UserError, match=rf"\) cannot {other}: use {use}"):
            calls[other]()


def test_encoder_without_heads_suggests_encode():
    loaded = tiny("xlnet")
    with pytest.raises(UserError, match=r"cannot guess: use encode \(`megaptm.load"):
        require_use(loaded, "guess")


def example_prompt(loaded: LoadedModel) -> str:
    task, special = loaded.config.built_objective, loaded.tokenizer.special
    if task.prompts[0] == "text":
        return "The cat"
    hole = special.sentinels[0] if task.prompts[0] == "sentinels" else special.mask_or_sentinel
    return f"The {loaded.tokenizer.name(special.pad if hole is None else hole)} saw the dog."


@pytest.mark.parametrize(
    ("objective", "segment", "attended"),
    [
        ("unilm", 0, "both"),
        ("{ordered-masked-lm: {context: left-to-right}}", 2, "left"),
        ("{ordered-masked-lm: {context: right-to-left}}", 3, "right"),
        ("{ordered-masked-lm: {context: sequence-to-sequence}}", 4, "both"),
    ],
)
def test_text_is_encoded_in_the_trained_context(objective: str, segment: int, attended: str) -> None:
    unilm = tiny("unilm", f"objective={objective}")
    assert text_batch(unilm, [[2, 7, 3]])["segments"].tolist() == [[segment] * 3]
    special = unilm.tokenizer.special
    row = [special.cls, 20, 21, 22, special.sep]
    changed = {"left": [special.cls, 30, *row[2:]], "right": [*row[:3], 30, special.sep]}
    middle = {side: unilm.model.encode(text_batch(unilm, [other]))[0, 2] for side, other in changed.items()}
    unchanged = unilm.model.encode(text_batch(unilm, [row]))[0, 2]
    sides = {side for side, vector in middle.items() if not torch.allclose(vector, unchanged, atol=1e-6)}
    assert sides == ({"left", "right"} if attended == "both" else {attended})
    assert len(unilm.guess("The [MASK] saw the dog.", guesses=3)[0]) == 3


def test_text_has_the_task_id_of_its_objective() -> None:
    objective = "objective={capitalization: {task_id: 1, share: 1}, masked-lm: {task_id: 2, share: 1}}"
    assert text_batch(tiny("ernie-2", objective), [[2, 7, 3], [2, 3]])["task_ids"].tolist() == [2, 2]


def test_questions_alone_leave_nothing_to_ask_in_words() -> None:
    bert = tiny("bert", "objective={token-document: {}}")
    assert bert.config.built_objective.prompts == ()
    assert bert.encode(TEXTS).isfinite().all()


def output_by_full_passes(loaded: LoadedModel, read: list[int], tokens: int) -> list[int]:
    output: list[int] = []
    while len(output) < tokens:
        logits = loaded.model.logits({"tokens": torch.tensor([[*read, *output]])})["lm"][0, -1]
        if (id_ := Sampler(GREEDY, loaded.tokenizer)(logits)) == loaded.tokenizer.special.end:
            break
        output.append(id_)
    return output


@pytest.mark.parametrize(
    ("objective", "prompt", "use", "ends"),
    [
        ("causal-lm", "The cat", "generate", False),
        ("{prefix-lm: {joined: true}}", "The cat", "generate", True),
        ("{span-corruption: {joined: true}}", "The <extra_id_0> saw", "fill", True),
        ("{span-corruption: {joined: true, share: 1}, causal-lm: {share: 1}}", "The <extra_id_0> saw", "fill", True),
        ("{span-corruption: {joined: true, share: 1}, causal-lm: {share: 1}}", "The cat", "generate", False),
    ],
)
def test_decoder_prompt_follows_its_task(objective: str, prompt: str, use: str, ends: bool) -> None:
    gpt = tiny("gpt2", f"objective={objective}", sentinels=5)
    kind, ids = read_prompt(gpt, prompt)
    assert select_use(gpt, prompt) == use
    read = [*ids, gpt.tokenizer.special.end] if ends else ids
    expected = output_by_full_passes(gpt, read, 12)
    assert expected
    assert [*generate_ids(gpt, ids, kind=kind, tokens=12, sampler=Sampler(GREEDY, gpt.tokenizer))] == expected
    if use == "generate":
        assert gpt.generate(prompt, tokens=12, temperature=0) == gpt.tokenizer.decode([*ids, *expected])[len(prompt) :]
    else:
        assert gpt.fill(prompt, tokens=12, temperature=0).startswith("The")
        with pytest.raises(UserError, match="gpt2 has no encoder"):
            gpt.answer(prompt)


def test_decoder_trained_on_holes_requires_them() -> None:
    gpt = tiny("gpt2", "objective={span-corruption: {joined: true}}", sentinels=5)
    assert model_uses(gpt) == ("fill",)
    with pytest.raises(UserError, match="the prompt needs holes"):
        gpt.fill("The cat")


def test_prompt_has_the_special_tokens_of_its_task() -> None:
    """Denoising adds begin tokens to the text and to the output; prefix-lm adds only an end token."""
    bart = tiny("bart", "objective={denoising: {share: 1}, prefix-lm: {share: 1}}")
    special = bart.tokenizer.special
    assert prepare_prompt(bart, "masks", [9], 5)[:2] == ([special.begin, 9, special.end], [special.end, special.begin])
    assert prepare_prompt(bart, "text", [9], 5)[:2] == ([9, special.end], [special.pad])
