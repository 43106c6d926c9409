"""A student that hears its teacher, beside the same student alone: real text, the same start, rows and steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from megaptm.track import read_metrics
from tests.drills.lives import THREADS
from tests.drills.program import checkpoints, finish
from tests.drills.tiny_corpora import tiny_config

pytestmark = [pytest.mark.drill, pytest.mark.timeout(3600)]
CLEARLY = 0.1
"""Nats for each masked token of held-out text, and for each answer."""
STEPS = 150
SECONDS = 1200.0
"""Of a run: a minute where nobody else computes."""
ALONE = ("distill=null",)
TAUGHT = ("distill.initial_layers=[]", "distill.objective=1")
"""From a start of its own, which is the other's, too."""


def held_out(config: Path, run: Path, loss: str, *words: str) -> float:
    """What is found at the end of a run."""
    few = (f"train.steps={STEPS}", f"train.validate_every={STEPS}", THREADS, "track.enabled=false")
    done = finish("train", str(config), f"run={run}", *few, *words, seconds=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    last = [one for one in read_metrics(run) if "validation/loss" in one][-1]
    return float(last.get(f"validation/{loss}", last["validation/loss"]))


@pytest.fixture
def folder(documented_corpora: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where a teacher is."""
    found = documented_corpora("distilbert")
    monkeypatch.chdir(found)
    if not checkpoints(found / "runs/bert-tiny"):
        assert finish("train", str(tiny_config("bert")), THREADS, seconds=SECONDS).returncode == 0
    return found


def test_a_student_learns_more_than_alone(folder: Path) -> None:
    alone, taught = (
        held_out(tiny_config("distilbert"), folder / f"runs/{name}", "mlm", *words)
        for name, words in (("alone", ALONE), ("taught", TAUGHT))
    )
    assert taught < alone - CLEARLY


def test_tinyberts_two_stages_teach_a_task_that_the_student_alone_does_not_learn(folder: Path) -> None:
    """Whether two texts follow each other: layers of text, layers of the task, its answers; beside as many steps of the
    answers that are true."""
    general, *task = (tiny_config("tinybert").with_name(f"tiny{of}.yaml") for of in ("", "-task", "-task-prediction"))
    runs = [folder / f"runs/{name}" for name in ("general", "layers", "answers")]
    held_out(general, runs[0], "loss")
    for config, (before, run) in zip(task, pairwise(runs), strict=True):
        taught = held_out(config, run, "next-sentence", f"train.init_from={before}")
    alone = (*ALONE, "train.init_from=null", f"train.steps={3 * STEPS}", "objective=masked-lm-next-sentence")
    assert taught < held_out(task[1], folder / "runs/answers-alone", "next-sentence", *alone) - CLEARLY
