"""What `megaptm import hf` says of a model: how its training was another than it would be here."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from megaptm.commands.imports import imports
from megaptm.config import load
from megaptm.errors import UserError
from megaptm.hub.huggingface import to_hugging_face
from megaptm.hub.import_run import import_run
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


def test_a_model_of_regions_begins_with_a_roberta(tmp_path: Path) -> None:
    """As one of a text alone; the detector is said at the import, since no config of theirs knows of any."""
    text = Path(textwrap.__file__).read_text(encoding="utf-8")
    tokenizer = train("byte-bpe", [text], vocabulary=300, specials="roberta")
    tokenizer.save(tmp_path / "tokenizer")
    spec = replace(tiny_spec("roberta"), vocabulary=tokenizer.vocabulary)
    fill(model := build_model(spec), seed=0)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(spec, weights, tmp_path / "tokenizer", tmp_path / "theirs")
    words = ["model.family=unimo", "model.detector=[24, 17]", "data.sequence=33", f"data.mix={{{tmp_path}: 1}}"]
    words.append("objective={cross-modal-contrast: {regions: 9, features: 24, classes: 17}}")
    first, second, *_ = run_command(imports, "hf", tmp_path / "theirs", tmp_path / "run", *words).splitlines()
    assert "came without embed.region.project, embed.region.box, embed.region.norm, head.mrfr" in first
    assert second.startswith(f"{tmp_path}/theirs is step 0 of {tmp_path}/run (unimo/custom")
    config = load(tmp_path / "run/config.yaml")
    assert (config.model.detector, config.model.context, config.data.document_mask) == ((24, 17), 24, False)
    for said in ("24", "[0, 17]"):
        with pytest.raises(UserError, match=r"is no \[FEATURES,CLASSES\]: give two whole numbers from 1 on"):
            import_run(str(tmp_path / "theirs"), tmp_path / "other", ["model.family=unimo", f"model.detector={said}"])
