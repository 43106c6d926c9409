"""Model cards of exported folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from megaptm.commands.export import export_group
from megaptm.hub.import_run import import_run
from megaptm.hub.model_card import model_card
from megaptm.run.checkpoint import open_checkpoint
from tests.bad_input.commands import user_error
from tests.commands import run_command
from tests.hub.exported import export_tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Import an exported model as a run."""
    folder = tmp_path_factory.mktemp("card")
    import_run(str(export_tiny("gpt2", folder, vocabulary=300).folder), folder / "run")
    return folder / "run"


def test_export_has_a_model_card(run: Path, tmp_path: Path) -> None:
    run_command(export_group, "hf", run, tmp_path / "again")
    card = (tmp_path / "again/README.md").read_text()
    assert 'transformers.GPT2LMHeadModel.from_pretrained(".")' in card
    assert "before its first step" in card
    assert "| weights |" not in card
    assert "| weights | mean of 3 checkpoints" in model_card(open_checkpoint(run), {}, average=3)


def test_export_overwrites_no_readme_of_the_user(run: Path, tmp_path: Path) -> None:
    card = tmp_path / "model/README.md"
    card.parent.mkdir()
    card.write_text("my model")
    assert "model exists and is not empty" in user_error("export", "hf", run, card.parent)
    assert card.read_text() == "my model"


@pytest.mark.parametrize(
    "held_out", [{"losses": {"loss": {"0": "2.5"}}}, {"losses": [1]}, {"losses": {"loss": [2.5]}}, {}], ids=str
)
def test_model_card_of_a_state_with_wrong_types(held_out: dict[str, Any], run: Path) -> None:
    checkpoint = open_checkpoint(run)
    state = {**checkpoint.checkpoint.state, "held_out": held_out, "samples": "many"}
    checkpoint = replace(checkpoint, checkpoint=replace(checkpoint.checkpoint, state=state))
    card = model_card(checkpoint, {".": "GPT2LMHeadModel"})
    assert "| validation loss | not measured |" in card
    assert "| sequences | unknown |" in card
