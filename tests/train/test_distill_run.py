"""Runs of a student: initialized from teacher layers, resumed, and refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from megaptm.config import load_config
from megaptm.distillation.section import distill_section
from megaptm.run.checkpoint import open_checkpoint
from megaptm.track import read_metrics
from tests.drills.program import arguments, losses
from tests.forked import megaptm

STEPS = 6


@pytest.fixture(scope="module")
def teacher(real_corpus: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("taught") / "teacher"
    megaptm("train", *arguments("bert", run, real_corpus("wordpiece"), "train.steps=2"))
    return run


def words(teacher: Path, run: Path, corpus: Path, *more: str) -> list[str]:
    options = "objective: 2, logits: 5, cosine: 1, temperature: 2, initial_layers: [1]"
    distill = f"distill={{teacher: {teacher}, {options}}}"
    return arguments("distilbert", run, corpus, f"train.steps={STEPS}", "distill=null", distill, *more)


def test_student_resumes_with_the_same_teacher_checkpoint(
    teacher: Path, real_corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """The teacher gets newer checkpoints before the student resumes."""
    corpus = real_corpus("wordpiece")
    megaptm("train", *words(teacher, tmp_path / "whole", corpus))
    megaptm("train", *words(teacher, tmp_path / "run", corpus, "train.stop_at=3"), code=75)
    megaptm("train", str(teacher), "train.steps=4")
    megaptm("train", str(tmp_path / "run"), "layout.data=1")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    resolved = distill_section(load_config(tmp_path / "run/config.yaml"))
    assert resolved is not None
    assert resolved.step == 2
    assert resolved.model["layers"] == 2
    for record in (record for record in read_metrics(tmp_path / "whole") if "loss/mlm" in record):
        parts = [record[f"loss/{name}"] for name in ("mlm", "distill-logits", "distill-cosine")]
        assert record["loss"] == pytest.approx(2 * parts[0] + 5 * parts[1] + parts[2], rel=1e-5)
    weights = open_checkpoint(tmp_path / "whole").weights()
    assert {name.split(".")[1] for name in weights if name.startswith("encoder.")} == {"0"}


def test_student_resumes_after_its_teacher_was_moved(
    teacher: Path, real_corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus, run = real_corpus("wordpiece"), tmp_path / "run"
    moved = shutil.copytree(teacher, tmp_path / "moved")
    megaptm("train", *words(teacher, run, corpus, "distill.step=2", "train.stop_at=1"), code=75)
    other = tmp_path / "other"
    megaptm("train", *arguments("bert", other, corpus, "train.steps=2", "train.seed=5"))
    output = megaptm("train", str(run), f"distill.teacher={other}", code=2)
    assert "distill.teacher is not the checkpoint that" in output
    megaptm("train", str(run), f"distill.teacher={moved}", "train.stop_at=2", code=75)


def test_damaged_teacher_is_refused(teacher: Path, real_corpus: Callable[[str], Path], tmp_path: Path) -> None:
    """Each rank verifies a share of its files."""
    damaged = shutil.copytree(teacher, tmp_path / "damaged")
    path = sorted(damaged.glob("checkpoints/*/rank-*.safetensors"))[-1]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    output = megaptm("train", *words(damaged, tmp_path / "run", real_corpus("wordpiece"), "layout.data=2"), code=2)
    assert f"error: distill.teacher: {path} is damaged: its sha256 differs" in output
    assert "copy that file again, or let distill.step name another checkpoint." in output


def test_teacher_with_other_tokenizer_or_model_is_refused(
    teacher: Path, real_corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus = real_corpus("wordpiece")
    model = "distill.model={family: bert, size: custom, layers: 4, width: 32, heads: 2, ffn: 64, context: 32}"
    output = megaptm("train", *words(teacher, tmp_path / "run", corpus, model), code=2)
    assert f"distill.model: layers is 4, but 2 in {teacher}" in output
    other = shutil.copytree(teacher, tmp_path / "other")
    shutil.copytree(real_corpus("unigram") / "tokenizer", other / "tokenizer", dirs_exist_ok=True)
    output = megaptm("train", *words(other, tmp_path / "run", corpus), code=2)
    assert f"distill.teacher ({other}) was trained with another tokenizer" in output
    assert not (tmp_path / "run").exists()


LAYERS = "embeddings: 1, hidden: 1, scores: 1, projection: shared"
"""Losses of TinyBERT's stages before the task predictions."""


def tinybert(teacher: Path, run: Path, corpus: Path, options: str, *more: str) -> list[str]:
    distill = f"distill={{teacher: {teacher}, objective: 0, {options}}}"
    shape = ("model.width=16", "model.ffn=32", "train.steps=2", "layout.data=1")
    return arguments("tinybert", run, corpus, "distill=null", distill, *shape, *more)


def test_tinybert_stages_start_from_each_other(
    teacher: Path, real_corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """General layers, task layers, task predictions (arXiv:1909.10351, 3.2): three runs."""
    corpus, task = real_corpus("wordpiece"), "objective=masked-lm-next-sentence"
    general, layers, predictions = (tmp_path / name for name in ("general", "layers", "predictions"))
    megaptm("train", *tinybert(teacher, general, corpus, LAYERS))
    megaptm("train", *tinybert(teacher, layers, corpus, LAYERS, task, f"train.init_from={general}"))
    last_stage = tinybert(
        teacher,
        predictions,
        corpus,
        "classes: 1, logit_loss: cross-entropy",
        task,
        f"train.init_from={layers}",
        "train.steps=3",
    )
    megaptm("train", *last_stage, "train.stop_at=1", code=75)
    weights = [open_checkpoint(run).weights() for run in (general, layers, predictions)]
    # A warm-up step changes a weight by at most its rate, 1e-5. Weights with another start would differ by more.
    for before, after, steps in ((*weights[:2], 2), (*weights[1:], 1)):
        common = {name for name in before if name in after and "next-sentence" not in name}
        assert {"embed.token.weight", "encoder.1.attention.qkv.weight", "head.mlm.transform.weight"} <= common
        assert max((before[name] - after[name]).abs().max() for name in common) < 2e-5 * steps
    assert "distill.shared.weight" in weights[1]
    assert not [name for name in weights[2] if name.startswith("distill.")]
    for record in (record for record in read_metrics(predictions) if "loss/distill-classes" in record):
        assert record["loss"] == pytest.approx(record["loss/distill-classes"], rel=1e-6)
    # The run that provided the initial weights may be deleted now.
    shutil.rmtree(layers)
    megaptm("train", *last_stage)
    assert [*losses(predictions)] == [1, 2, 3]


def test_init_from_another_model_is_refused(teacher: Path, real_corpus: Callable[[str], Path], tmp_path: Path) -> None:
    run, corpus = tmp_path / "run", real_corpus("wordpiece")
    for key, sentence in (
        (f"train.init_from={tmp_path}", f"train.init_from ({tmp_path}) is not the folder of a run"),
        (f"train.init_from={teacher}", f"train.init_from ({teacher}) has another model: its width of the encoder"),
    ):
        assert sentence in megaptm("train", *tinybert(teacher, run, corpus, LAYERS, key), code=2)
    words = arguments("bert", run, corpus, f"train.init_from={teacher}", "train.init_step=77")
    assert "train.init_step (77): " in megaptm("train", *words, code=2)
    assert not run.exists()
