"""Exported tokenizers give the model the same inputs as training."""

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
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES
from megaptm.objectives.objective import DocumentSlice, SampleContext, SentenceGroup
from megaptm.tokenizers import load_tokenizer, train_tokenizer_on_texts
from tests.hub.exported import export_tiny
from tests.models.tiny import has_counterpart, tiny_spec

KINDS = {name: family.tokenizer.kind for name, family in CATALOGUE.items() if has_counterpart(name)}
CLASSES = {
    ("encoder",): "AutoModelForPreTraining",
    ("decoder",): "AutoModelForCausalLM",
    ("encoder", "decoder"): "AutoModelForSeq2SeqLM",
}
"""Class of transformers by stacks."""
OTHER_CLASSES = dict.fromkeys(("modernbert", "ettin", "mmbert", "eurobert", "nomic-bert"), "AutoModelForMaskedLM")
TYPES = dict.fromkeys(("gemma2", "t5gemma"), torch.float32)
"""Type of the weights where transformers' scores of padding are NaN in float64."""
SEQUENCE = 20
"""Sequence length in training; the models have 24 positions."""
FIRST, SECOND = "Wrap the Text.", "Return a list of lines"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a folder for each family, with a tokenizer trained for it."""
    return {
        family: export_tiny(family, tmp_path_factory.mktemp(family), factor=3.0, sequence=SEQUENCE).folder
        for family in KINDS
    }


def load_hf_tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("family", KINDS)
def test_texts_are_truncated_as_in_training(family: str, exported: dict[str, Path]) -> None:
    tokenizer = load_hf_tokenizer(exported[family])
    assert tokenizer.model_max_length == SEQUENCE
    assert len(tokenizer("a " * 100, truncation=True).input_ids) == SEQUENCE


@pytest.mark.parametrize("family", KINDS)
def test_padding_changes_no_logits(family: str, exported: dict[str, Path]) -> None:
    tokenizer = load_hf_tokenizer(exported[family])
    name = OTHER_CLASSES.get(family, CLASSES[(*CATALOGUE[family].stacks,)])
    model = getattr(transformers, name).from_pretrained(exported[family]).to(TYPES.get(family, torch.float64)).eval()
    decoder_inputs = {"decoder_input_ids": torch.tensor([[0, 5, 6]])} if len(CATALOGUE[family].stacks) == 2 else {}

    def logits(texts: list[str]) -> torch.Tensor:
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            return model(**inputs, **{key: value.expand(len(texts), -1) for key, value in decoder_inputs.items()})[0]

    both = logits([FIRST, SECOND])
    for index, text in enumerate((FIRST, SECOND)):
        alone = logits([text])[0]
        tolerance = 1e-9 if alone.dtype == torch.float64 else 1e-5
        torch.testing.assert_close(both[index, : len(alone)], alone, rtol=tolerance, atol=tolerance)


def make_sample(objective: str, texts: list[str], tokenizer: Any) -> dict[str, np.ndarray]:
    """Return a training sample without masked tokens."""
    ids = [tokenizer.encode(text) for text in texts]
    piece: Any = SentenceGroup(ids, lambda rng: ids[1:])
    if len(texts) == 1:
        piece = [DocumentSlice(ids[0], OBJECTIVES[objective].sequence_window(SEQUENCE, True).slots)]
    return OBJECTIVES[objective].make_sample(
        piece, SampleContext(tokenizer.special, np.random.default_rng(1), 40, True)
    )


@pytest.mark.parametrize(
    ("objective", "second"), [("masked-lm-next-sentence", SECOND), ("masked-lm", None), ("causal-lm", None)]
)
def test_special_tokens_are_added_as_in_training(
    objective: str, second: str | None, exported: dict[str, Path], tmp_path: Path
) -> None:
    """Special tokens and segments are equal; masked tokens differ."""
    family = "gpt2" if objective == "causal-lm" else "bert"
    imported = from_hugging_face(exported[family])
    to_hugging_face(
        imported.spec, imported.weights, exported[family], tmp_path / "out", objective=OBJECTIVES[objective]
    )
    encoded = load_hf_tokenizer(tmp_path / "out")(FIRST, second)
    tokenizer = load_tokenizer(exported[family])
    row = make_sample(objective, [FIRST, second] if second else [FIRST], tokenizer)
    length = len(encoded["input_ids"])
    special = tokenizer.special.is_special & (np.arange(tokenizer.vocabulary) != tokenizer.special.mask)
    expected_ids = row["tokens"][:length]
    assert [i if special[i] else -1 for i in encoded["input_ids"]] == [i if special[i] else -1 for i in expected_ids]
    assert set(row["tokens"][length:]) <= {tokenizer.special.pad}
    if family == "bert":
        assert encoded["token_type_ids"] == row["segments"][:length].tolist()
        assert max(encoded["token_type_ids"]) == (1 if second else 0)
    else:
        assert "token_type_ids" not in encoded
    # Two texts of masked-lm are one document with one segment.
    pair = load_hf_tokenizer(tmp_path / "out")(FIRST, SECOND)
    assert max(pair.get("token_type_ids", [0])) == (1 if objective == "masked-lm-next-sentence" else 0)


def test_pairs_without_pair_training(tmp_path: Path) -> None:
    """RoBERTa's tokenizer puts two `</s>` between texts."""
    folder, _, tokenizer = export_tiny("roberta", tmp_path, objective=OBJECTIVES["masked-lm"])
    first, second, end = tokenizer.encode(FIRST).tolist(), tokenizer.encode(SECOND).tolist(), tokenizer.special.end
    expected = [tokenizer.special.begin, *first, end, end, *second, end]
    assert load_hf_tokenizer(folder)(FIRST, SECOND).input_ids == expected
    assert transformers.RobertaTokenizer.from_pretrained(folder)(FIRST, SECOND).input_ids == expected


def test_offsets_equal_those_of_roberta(tmp_path: Path) -> None:
    """Answers of extractive questions are cut from the text by offsets, without the space before a word."""
    folder, _, _ = export_tiny("roberta", tmp_path, objective=OBJECTIVES["masked-lm"])
    reference = transformers.RobertaTokenizer.from_pretrained(folder)
    actual, expected = (
        tokenizer("many words", return_offsets_mapping=True)["offset_mapping"]
        for tokenizer in (load_hf_tokenizer(folder), reference)
    )
    assert actual == expected


def test_decoder_input_has_no_end_token(tmp_path: Path) -> None:
    """T5's tokenizer adds an end token, after which a decoder could not continue."""
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train_tokenizer_on_texts("unigram", [text], vocabulary=400)
    tokenizer.save(tmp_path / "tokenizer")
    model = Model(replace(tiny_spec("gpt2"), vocabulary=400))
    init_weights(model, seed=0)
    to_hugging_face(model.spec, dict(model.named_parameters()), tmp_path / "tokenizer", tmp_path / "out")
    assert load_hf_tokenizer(tmp_path / "out")(FIRST)["input_ids"] == tokenizer.encode(FIRST).tolist()


def test_missing_special_token_is_refused(tmp_path: Path) -> None:
    train_tokenizer_on_texts("unigram", [Path(textwrap.__file__).read_text(encoding="utf-8")], vocabulary=400).save(
        tmp_path / "tokenizer"
    )
    model = Model(replace(tiny_spec("bert"), vocabulary=400))
    with pytest.raises(UserError, match="no cls token, which masked-lm-next-sentence adds to texts"):
        to_hugging_face(model.spec, dict(model.named_parameters()), tmp_path / "tokenizer", tmp_path / "out")


def test_fill_mask_pipeline(exported: dict[str, Path]) -> None:
    fill_mask = transformers.pipeline("fill-mask", model=str(exported["bert"]))
    guesses = fill_mask("wrap the [MASK] .", top_k=3)
    tokenizer = load_hf_tokenizer(exported["bert"])
    model = transformers.AutoModelForMaskedLM.from_pretrained(exported["bert"]).eval()
    inputs = tokenizer("wrap the [MASK] .", return_tensors="pt")
    with torch.no_grad():
        scores = model(**inputs).logits[0, inputs.input_ids[0].tolist().index(tokenizer.mask_token_id)]
    assert [guess["token"] for guess in guesses] == scores.topk(3).indices.tolist()


@pytest.mark.parametrize("family", ["gpt2", "gpt3"])
def test_text_generation_pipeline(family: str, exported: dict[str, Path]) -> None:
    generate = transformers.pipeline("text-generation", model=str(exported[family]))
    options = {"max_new_tokens": 6, "do_sample": False}
    prompts = ["wrap", "return the lines"]
    alone = [generate(prompt, **options)[0]["generated_text"] for prompt in prompts]
    together = [text[0]["generated_text"] for text in generate(prompts, batch_size=2, **options)]
    assert together == alone
    assert all(text.startswith(prompt) for text, prompt in zip(alone, prompts, strict=True))
    # Without a length option, the model's context is the limit.
    assert generate("wrap")[0]["generated_text"].startswith("wrap")


def test_t5_sentinels(exported: dict[str, Path]) -> None:
    """The decoder predicts after its start token; sentinels have the tokenizer's own ids."""
    tokenizer = load_hf_tokenizer(exported["t5"])
    inputs = tokenizer("Wrap <extra_id_0> text <extra_id_1>.", return_tensors="pt")
    special = load_tokenizer(exported["t5"]).special
    special_ids = [id_ for id_ in inputs.input_ids[0].tolist() if id_ in special.specials]
    assert special_ids == [*special.sentinels[:2], special.end]
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(exported["t5"]).eval()
    generated = model.generate(**inputs, max_new_tokens=4, do_sample=False)[0]
    assert generated[0] == special.pad
    with torch.no_grad():
        first = model(**inputs, decoder_input_ids=torch.tensor([[special.pad]])).logits[0, -1].argmax()
    assert generated[1] == first


@pytest.mark.parametrize("family", KINDS)
def test_tokenizer_round_trip(family: str, exported: dict[str, Path]) -> None:
    again, before = read_tokenizer(exported[family]), load_tokenizer(exported[family].parent / "tokenizer")
    assert again.fingerprint == before.fingerprint
    assert (again.special.end, again.special.mask) == (before.special.end, before.special.mask)


def test_trust_remote_code_is_always_false() -> None:
    """Without the argument, transformers asks on the terminal."""
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
        arguments = {argument.arg: argument.value for argument in call.keywords}
        trust = arguments.get("trust_remote_code")
        assert isinstance(trust, ast.Constant), f"{path}:{call.lineno}"
        assert trust.value is False, f"{path}:{call.lineno}"
