"""Continual multi-task learning (ERNIE 2.0, arXiv:1907.12412, 3.1): a new task does not replace the old one."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

from data_pipeline.annotate import Annotations
from megaptm.inference.evaluate import EvaluatedLoss
from megaptm.inference.loaded_model import load_model
from megaptm.track import read_metrics
from tests.forked import SAVED, megaptm
from tests.train.runs import NOUNS, build, settings

STAGE, STEPS = 150, 280
"""First step of the second stage; total number of steps."""
MARGIN = 0.1
"""Nats per masked token; forgetting costs ten times as much."""
MASKS = {"task": "masked-lm", "hide": "independent", "task_id": 0}
CAPITALS = {"task": "capitalization", "task_id": 1}
SMALL = (
    *("model.layers=1", "model.width=64", "model.ffn=128", "train.batch=16", "layout.microbatch=16"),
    *("optimizer.lr=2e-3", "optimizer.warmup_steps=20", "optimizer.decay=constant", "train.seed=2"),
    *("train.validate_every=1000", "checkpoint.every=1000", f"train.steps={STEPS}"),
)


def objective(*, masks_later: float) -> str:
    """Return an objective with masks only, then with capitals and this share of masks."""
    tasks = {
        "masks": {**MASKS, "share": {0: 1, STAGE: masks_later}},
        "capitals": {**CAPITALS, "share": {0: 0, STAGE: 1}},
    }
    return f"objective={json.dumps(tasks)}"


def held_out(run: Path, task: dict[str, object], step: int) -> EvaluatedLoss:
    """Return the validation loss of one task at a checkpoint."""
    loaded = load_model(run, step=step, device="cpu")
    config = loaded.config.model_copy(update={"objective": {"it": task}})
    (loss,) = replace(loaded, config=config).evaluate().losses.values()
    return loss


def write_monotonous_text(folder: Path) -> Path:
    """Write documents of one repeated word, half of the words capitalized, so that both tasks are learned within tens
    of steps."""
    folder.mkdir()
    draw = random.Random(0)
    words = [word.capitalize() if number % 2 else word for number, word in enumerate(NOUNS)]
    for number in range(400):
        (folder / f"{number:03d}.txt").write_text(" ".join([draw.choice(words)] * draw.randint(20, 40)) + "\n")
    return folder


def test_first_task_is_not_forgotten(tmp_path: Path) -> None:
    text = write_monotonous_text(tmp_path / "text")
    corpus = build(text, tmp_path / "corpus", "ernie-2", annotate=Annotations(words=True, capitals=True))
    both, capitals_alone = tmp_path / "both", tmp_path / "capitals-alone"

    def train(run: Path, *more: str, code: int = 0) -> None:
        megaptm("train", *settings("ernie-2", run, corpus, *SMALL, *more), code=code)

    train(both, objective(masks_later=1), f"train.stop_at={STAGE}", code=SAVED)
    shutil.copytree(both, capitals_alone)
    train(both, objective(masks_later=1))
    train(capitals_alone, objective(masks_later=0))

    learned = held_out(both, MASKS, STAGE)
    assert learned.model < learned.unigram - 1.5
    limit = learned.model + 3 * MARGIN
    assert held_out(both, MASKS, STEPS).model < limit
    assert held_out(capitals_alone, MASKS, STEPS).model > limit
    for run in (both, capitals_alone):
        added = held_out(run, CAPITALS, STEPS)
        assert added.model < added.unigram - 0.5
        steps = [record["step"] for record in read_metrics(run) if "loss/capitalization" in record]
        assert steps == [*range(STAGE + 10, STEPS + 1, 10)]
    # Tasks with no share are not evaluated.
    assert {*load_model(capitals_alone, device="cpu").evaluate().losses} == {"capitalization"}
    measured = [record for record in read_metrics(capitals_alone) if "validation/loss" in record][-1]
    assert "validation/mlm" not in measured
    assert measured["validation/capitalization"] == measured["validation/loss"]
