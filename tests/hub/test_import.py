"""What `megaptm import hf` says of a model: how its training was another than it would be here."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from megaptm.commands.imports import imports
from megaptm.hub.huggingface import to_hugging_face
from megaptm.models import build_model, fill
from megaptm.tokenizers import train
from tests.commands import run_command
from tests.models.tiny import tiny_spec


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Hugging Face's, exported from a BART whose every dropout is 0.1."""
    folder = tmp_path_factory.mktemp("bart")
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train("byte-bpe", [text], vocabulary=300, specials="roberta")
    tokenizer.save(folder / "tokenizer")
    spec = replace(tiny_spec("bart"), vocabulary=tokenizer.vocabulary, dropout=0.1)
    fill(model := build_model(spec), seed=0)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(spec, weights, folder / "tokenizer", folder / "out")
    return folder / "out"


def trained_with(folder: Path, **rates: float) -> None:
    """As if it had been trained with other rates than its table's."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **rates}))


@pytest.mark.parametrize(
    ("rates", "more", "told"),
    [
        ({"attention_dropout": 0.0, "activation_dropout": 0.1}, [], "attention_dropout 0.0: {here}0.1"),
        (
            {"attention_dropout": 0.0, "activation_dropout": 0.05},
            ["model.dropout=0.2"],
            "attention_dropout 0.0 and activation_dropout 0.05: {here}0.2",
        ),
        ({"attention_dropout": 0.1, "activation_dropout": 0.1}, [], None),
    ],
)
def test_dropouts_that_are_others_here_are_told(
    bart: Path, tmp_path: Path, rates: dict[str, float], more: list[str], told: str | None
) -> None:
    trained_with(bart, **rates)
    first, *_ = run_command(imports, "hf", bart, tmp_path / "run", *more).splitlines()
    if told is None:
        assert first.startswith(f"{bart} is step 0 of {tmp_path}/run")
    else:
        here = "here one rate is for all, model.dropout="
        assert first == f"{bart} was trained with {told.format(here=here)}"
