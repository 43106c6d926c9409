"""A student that hears its teacher, beside the same student alone: real text, the same start, rows and steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from megaptm.track import read_metrics
from tests.drills.lives import THREADS
from tests.drills.program import checkpoints, finish
from tests.drills.tiny_corpora import tiny_config

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]
CLEARLY = 0.1
"""Nats for each masked token of held-out text."""
ALONE = ("distill=null",)
TAUGHT = ("distill.initial_layers=[]", "distill.objective=1")
"""From a start of its own, which is the other's, too."""


def held_out(run: Path, *words: str) -> float:
    done = finish("train", str(tiny_config("distilbert")), f"run={run}", THREADS, "track.enabled=false", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    last = [one for one in read_metrics(run) if "validation/loss" in one][-1]
    return float(last.get("validation/mlm", last["validation/loss"]))


def test_a_student_learns_more_than_alone(
    documented_corpora: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = documented_corpora("distilbert")
    monkeypatch.chdir(folder)
    if not checkpoints(folder / "runs/bert-tiny"):
        assert finish("train", str(tiny_config("bert")), THREADS).returncode == 0
    alone, taught = (
        held_out(folder / f"runs/{name}", *words) for name, words in (("alone", ALONE), ("taught", TAUGHT))
    )
    assert taught < alone - CLEARLY
