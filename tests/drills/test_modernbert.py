"""The tiny ModernBERT learns from real text within a minute of two cores, and the auto classes of `transformers` load
its export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import megaptm
from megaptm.commands.evaluate import evaluate_command
from megaptm.commands.export import export_group
from tests.drills.killed_runs import children_seconds, command
from tests.drills.program import finish
from tests.drills.tiny_corpora import tiny_config

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(900), pytest.mark.usefixtures("one_thread")]

CPU_SECONDS = 120.0
"""A minute of two cores."""


def test_run_learns_in_a_minute_and_auto_classes_load_its_export(
    documented_corpora: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(documented_corpora("modernbert"))
    run, out, before = tmp_path / "run", tmp_path / "exported", children_seconds()
    done = finish("train", str(tiny_config("modernbert")), f"run={run}", "train.threads=1", seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert children_seconds() - before < CPU_SECONDS
    loss = json.loads(command(evaluate_command, str(run), "--rows", "512", "--json"))["losses"]["mlm"]
    assert loss["model"] < loss["unigram"] - 1.0

    command(export_group, "hf", str(run), str(out))
    model, tokenizer = transformers.AutoModelForMaskedLM.from_pretrained(out), transformers.AutoTokenizer
    ids = tokenizer.from_pretrained(out)("import [MASK]\n\ndef function(self):\n    return self", return_tensors="pt")
    with torch.inference_mode():
        expected = megaptm.load(run).model.logits({"tokens": ids["input_ids"]})["mlm"]
        assert (model.eval()(**ids).logits - expected).abs().max() < 1e-4
