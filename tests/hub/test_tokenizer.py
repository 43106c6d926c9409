"""An exported folder, used as people use one: the tokenizer gives the model what training gave it."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.tokenizer import read_tokenizer
from megaptm.models import build_model, fill
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import DocumentSlice, SampleContext, SentenceGroup
from megaptm.tokenizers import load, train
from tests.hub.exported import export_tiny
from tests.models.tiny import has_counterpart, tiny_spec

KINDS = {name: family.tokenizer for name, family in CATALOGUE.items() if has_counterpart(name)}
CLASSES = {
    ("encoder",): "AutoModelForPreTraining",
    ("decoder",): "AutoModelForCausalLM",
    ("encoder", "decoder"): "AutoModelForSeq2SeqLM",
}
"""By stacks."""
LONGEST = 20
"""Tokens of a row of the training; the models have room for 24."""
FIRST, SECOND = "Wrap the Text.", "Return a list of lines"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each family, with the tokenizer that our trainer makes for it."""
    return {
        family: export_tiny(family, tmp_path_factory.mktemp(family), factor=3.0, sequence=LONGEST).folder
        for family in KINDS
    }


def tokenizer_of(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("family", KINDS)
def test_a_text_is_cut_where_training_cut_it(family: str, exported: dict[str, Path]) -> None:
    tokenizer = tokenizer_of(exported[family])
    assert tokenizer.model_max_length == LONGEST
    assert len(tokenizer("a " * 100, truncation=True).input_ids) == LONGEST


@pytest.mark.parametrize("family", KINDS)
def test_a_batch_that_is_filled_up_says_what_each_text_says_alone(family: str, exported: dict[str, Path]) -> None:
    tokenizer = tokenizer_of(exported[family])
    model = (
        getattr(transformers, CLASSES[(*CATALOGUE[family].stacks,)]).from_pretrained(exported[family]).double().eval()
    )
    more = {"decoder_input_ids": torch.tensor([[0, 5, 6]])} if len(CATALOGUE[family].stacks) == 2 else {}

    def logits(texts: list[str]) -> torch.Tensor:
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            return model(**inputs, **{key: value.expand(len(texts), -1) for key, value in more.items()})[0]

    both = logits([FIRST, SECOND])
    for number, text in enumerate((FIRST, SECOND)):
        alone = logits([text])[0]
        torch.testing.assert_close(both[number, : len(alone)], alone, rtol=1e-9, atol=1e-9)


def row_of(objective: str, texts: list[str], tokenizer: Any) -> dict[str, np.ndarray]:
    """A row of the training that nothing is hidden in."""
    ids = [tokenizer.encode(text) for text in texts]
    piece: Any = SentenceGroup(ids, lambda rng: ids[1:])
    if len(texts) == 1:
        piece = [DocumentSlice(ids[0], OBJECTIVES[objective].cut(LONGEST, True).slots)]
    return OBJECTIVES[objective].make(piece, SampleContext(tokenizer.special, np.random.default_rng(1), 40, True))


@pytest.mark.parametrize(
    ("objective", "second"), [("masked-lm-next-sentence", SECOND), ("masked-lm", None), ("causal-lm", None)]
)
def test_texts_are_laid_out_as_in_training(
    objective: str, second: str | None, exported: dict[str, Path], tmp_path: Path
) -> None:
    """Special tokens and segments; the words that are masked differ."""
    family = "gpt2" if objective == "causal-lm" else "bert"
    found = from_hugging_face(exported[family])
    to_hugging_face(found.spec, found.weights, exported[family], tmp_path / "out", objective=OBJECTIVES[objective])
    theirs = tokenizer_of(tmp_path / "out")(FIRST, second)
    tokenizer = load(exported[family])
    row = row_of(objective, [FIRST, second] if second else [FIRST], tokenizer)
    length = len(theirs["input_ids"])
    special = tokenizer.special.is_special & (np.arange(tokenizer.vocabulary) != tokenizer.special.mask)
    ours = row["tokens"][:length]
    assert [i if special[i] else -1 for i in theirs["input_ids"]] == [i if special[i] else -1 for i in ours]
    assert set(row["tokens"][length:]) <= {tokenizer.special.pad}
    if family == "bert":
        assert theirs["token_type_ids"] == row["segments"][:length].tolist()
        assert max(theirs["token_type_ids"]) == (1 if second else 0)
    else:
        assert "token_type_ids" not in theirs
    # One document of many: its texts have one segment, also where there are two.
    pair = tokenizer_of(tmp_path / "out")(FIRST, SECOND)
    assert max(pair.get("token_type_ids", [0])) == (1 if objective == "masked-lm-next-sentence" else 0)


def test_two_texts_that_training_never_showed_are_laid_out_by_the_tokenizer(tmp_path: Path) -> None:
    """RoBERTa's puts two `</s>` between them."""
    folder, _, tokenizer = export_tiny("roberta", tmp_path, objective=OBJECTIVES["masked-lm"])
    first, second, end = tokenizer.encode(FIRST).tolist(), tokenizer.encode(SECOND).tolist(), tokenizer.special.end
    expected = [tokenizer.special.begin, *first, end, end, *second, end]
    assert tokenizer_of(folder)(FIRST, SECOND).input_ids == expected
    assert transformers.RobertaTokenizer.from_pretrained(folder)(FIRST, SECOND).input_ids == expected


def test_a_decoder_with_another_familys_tokenizer_is_shown_no_end(tmp_path: Path) -> None:
    """T5's tokenizer closes a text; a decoder trained with it must go on."""
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train("unigram", [text], vocabulary=400)
    tokenizer.save(tmp_path / "tokenizer")
    model = build_model(replace(tiny_spec("gpt2"), vocabulary=400))
    fill(model, seed=0)
    to_hugging_face(model.spec, dict(model.named_parameters()), tmp_path / "tokenizer", tmp_path / "out")
    assert tokenizer_of(tmp_path / "out")(FIRST)["input_ids"] == tokenizer.encode(FIRST).tolist()


def test_a_tokenizer_without_what_is_put_around_a_text_is_refused(tmp_path: Path) -> None:
    train("unigram", [Path(textwrap.__file__).read_text(encoding="utf-8")], vocabulary=400).save(tmp_path / "tokenizer")
    model = build_model(replace(tiny_spec("bert"), vocabulary=400))
    with pytest.raises(UserError, match="no cls token, which masked-lm-next-sentence adds to texts"):
        to_hugging_face(model.spec, dict(model.named_parameters()), tmp_path / "tokenizer", tmp_path / "out")


def test_a_mask_is_filled(exported: dict[str, Path]) -> None:
    fill_mask = transformers.pipeline("fill-mask", model=str(exported["bert"]))
    guesses = fill_mask("wrap the [MASK] .", top_k=3)
    tokenizer = tokenizer_of(exported["bert"])
    model = transformers.AutoModelForMaskedLM.from_pretrained(exported["bert"]).eval()
    inputs = tokenizer("wrap the [MASK] .", return_tensors="pt")
    with torch.no_grad():
        scores = model(**inputs).logits[0, inputs.input_ids[0].tolist().index(tokenizer.mask_token_id)]
    assert [guess["token"] for guess in guesses] == scores.topk(3).indices.tolist()


@pytest.mark.parametrize("family", ["gpt2", "gpt3"])
def test_text_is_continued_also_in_batches(family: str, exported: dict[str, Path]) -> None:
    write = transformers.pipeline("text-generation", model=str(exported[family]))
    options = {"max_new_tokens": 6, "do_sample": False}
    prompts = ["wrap", "return the lines"]
    alone = [write(prompt, **options)[0]["generated_text"] for prompt in prompts]
    together = [said[0]["generated_text"] for said in write(prompts, batch_size=2, **options)]
    assert together == alone
    assert all(said.startswith(prompt) for said, prompt in zip(alone, prompts, strict=True))
    # Without a word about length it ends with the room that the model has.
    assert write("wrap")[0]["generated_text"].startswith("wrap")


def test_holes_are_filled(exported: dict[str, Path]) -> None:
    """T5's first answer is what the decoder says after the start; holes are the tokenizer's own ids."""
    tokenizer = tokenizer_of(exported["t5"])
    inputs = tokenizer("Wrap <extra_id_0> text <extra_id_1>.", return_tensors="pt")
    special = load(exported["t5"]).special
    held = [id_ for id_ in inputs.input_ids[0].tolist() if id_ in special.specials]
    assert held == [*special.sentinels[:2], special.end]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported["t5"]).eval()
    written = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0]
    assert written[0] == special.pad
    with torch.no_grad():
        first = model(**inputs, decoder_input_ids=torch.tensor([[special.pad]])).logits[0, -1].argmax()
    assert written[1] == first


@pytest.mark.parametrize("family", KINDS)
def test_an_exported_tokenizer_comes_back_as_the_one_its_corpora_name(family: str, exported: dict[str, Path]) -> None:
    again, before = read_tokenizer(exported[family]), load(exported[family].parent / "tokenizer")
    assert again.fingerprint == before.fingerprint
    assert (again.special.end, again.special.mask) == (before.special.end, before.special.mask)


def test_code_of_a_models_own_is_never_run_by_a_default() -> None:
    """transformers asks the user, on the terminal, where a call does not say."""
    import ast

    import megaptm

    calls = [
        (path, node)
        for path in Path(megaptm.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("from_pretrained", "from_config", "pipeline")
    ]
    assert calls
    for path, call in calls:
        said = {word.arg: word.value for word in call.keywords}
        trust = said.get("trust_remote_code")
        assert isinstance(trust, ast.Constant), f"{path}:{call.lineno}"
        assert trust.value is False, f"{path}:{call.lineno}"
