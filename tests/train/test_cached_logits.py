"""Distillation from cached teacher logits equals distillation from the teacher."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from megaptm.distillation.cache import cache_logits
from megaptm.distillation.cached_logits import TEACHER_IDS, TEACHER_LOGITS, TeacherLogits
from megaptm.errors import UserError
from megaptm.inference.loaded_model import load_model
from megaptm.run.corpora import RunCorpora
from megaptm.run.folder import read_config
from megaptm.track import read_metrics
from tests.drills.program import arguments, losses
from tests.forked import megaptm

STEPS = 4
KINDS = {"bert": ("distilbert", "wordpiece"), "gpt2": ("gpt2", "byte-bpe")}
"""Teacher family -> student family and corpus: masked tokens, and next tokens in packed sequences."""


@pytest.fixture(scope="module")
def teachers(real_corpus: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {family: tmp_path_factory.mktemp("taught") / family for family in KINDS}
    for family, folder in folders.items():
        corpus = real_corpus(KINDS[family][1])
        megaptm("train", *arguments(family, folder, corpus, "train.steps=2", "layout.data=1"))
    return folders


def student(family: str, teacher: Path, corpus: Path, run: Path, *more: str, options: str = "") -> list[str]:
    distill = f"distill={{teacher: {teacher}, objective: 1, logits: 5, temperature: 2{options}}}"
    words = ("distill=null", distill, "model.layers=1", f"train.steps={STEPS}", "layout.data=1")
    return arguments(KINDS[family][0], run, corpus, *words, *more)


def logit_losses(run: Path) -> list[float]:
    return [record["loss/distill-logits"] for record in read_metrics(run) if "loss/distill-logits" in record]


@pytest.mark.parametrize("family", KINDS)
def test_cached_logits_give_the_losses_of_the_teacher(
    family: str, teachers: dict[str, Path], real_corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """The cache has all logits. Training resumes on other ranks, with loader workers, after the teacher was deleted."""
    corpus = real_corpus(KINDS[family][1])
    teacher = shutil.copytree(teachers[family], tmp_path / "teacher")
    live, read = tmp_path / "live", tmp_path / "read"
    megaptm("train", *student(family, teacher, corpus, live))
    cached = f", cached_logits: {tmp_path / 'logits'}"
    output = megaptm(
        "cache-logits", *student(family, teacher, corpus, read, options=cached), "--top", "10000", "--type", "float32"
    )
    assert f"logits of {12 * STEPS} training and 12 validation samples" in output
    shutil.rmtree(teacher)
    layout = "layout.data=2" if family == "bert" else "layout.tensor=2"
    more = (layout, "data.workers=1")
    megaptm("train", *student(family, teacher, corpus, read, *more, "train.stop_at=2", options=cached), code=75)
    megaptm("train", *student(family, teacher, corpus, read, *more, options=cached))
    expected = losses(live)
    assert len(expected) == STEPS
    for step, loss in losses(read).items():
        assert loss == pytest.approx(expected[step], rel=1e-5)
    assert logit_losses(read) == pytest.approx(logit_losses(live), rel=1e-5)
    held_out = [
        [record["validation/loss"] for record in read_metrics(run) if "validation/loss" in record]
        for run in (live, read)
    ]
    assert held_out[0] == pytest.approx(held_out[1], rel=1e-5)


@pytest.mark.parametrize("positions", ["all", "target"])
@pytest.mark.parametrize("family", KINDS)
def test_cache_has_the_largest_logits_of_each_position(
    family: str, positions: str, teachers: dict[str, Path], real_corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """Two processes write files of five samples. Padding, and positions that are not compared, have no logits."""
    options = f", cached_logits: {tmp_path / 'logits'}, positions: {positions}"
    path, *words = student(family, teachers[family], real_corpus(KINDS[family][1]), tmp_path / "run", options=options)
    config = read_config(Path(path), [*words, "train.steps=1"])
    half = tmp_path / "logits/.unfinished.json.7-ab12cd34.part"
    half.parent.mkdir()
    half.touch()  # left by a process that was killed before it wrote anything
    # There are three files of training samples and three of validation samples; each process writes every second one.
    first, second = (cache_logits(config, top=3, per_file=5, part=part, parts=2) for part in (0, 1))
    assert (first.samples, first.missing, second.samples, second.missing) == (5 + 2 + 5, 3, 5 + 5 + 2, 0)
    assert not half.exists()
    cache, corpora, model = (
        TeacherLogits.open(tmp_path / "logits"),
        RunCorpora(config),
        load_model(teachers[family]).model,
    )
    assert [name for name in cache.manifest.files if name.startswith("train")][-1] == "train-000002.safetensors"
    for split in ("train", "validation"):
        mix, logits = corpora.mix(split), cache.split(split)
        for index in (0, 4, 5, 11):
            sample = mix.sample(index)
            batch = {name: torch.from_numpy(field[None]) for name, field in sample.items()}
            inputs = {
                name: field for name, field in batch.items() if "labels" not in name and name != "masked_positions"
            }
            all_SV = model.logits(inputs)[cache.manifest.head][0, :, : model.spec.vocabulary]
            real = sample["document_ids"] > 0
            if positions == "target":
                real = np.zeros_like(real)
                at = sample["masked_positions"] if "masked_positions" in sample else np.arange(len(real))
                real[at[sample["labels"] >= 0]] = True
            best = all_SV.topk(3)
            cached = logits.fields(index, sample)
            assert (cached[TEACHER_IDS][real] == best.indices.numpy()[real]).all()
            lacks = (best.values - best.values[:, :1]).detach().numpy()[real]
            assert np.abs(cached[TEACHER_LOGITS][real] - lacks).max() < 2e-3
            assert not cached[TEACHER_LOGITS][~real].any()
    assert real.any()
    with pytest.raises(UserError, match="was written for other samples: train sample 1 differs"):
        cache.split("train").fields(1, corpora.mix("train").sample(2))


def test_cache_of_other_samples_is_refused(
    teachers: dict[str, Path], real_corpus: Callable[[str], Path], tmp_path: Path
) -> None:
    """A longer run extends the cache."""
    corpus, run = real_corpus("wordpiece"), tmp_path / "run"
    cached = f", cached_logits: {tmp_path / 'logits'}"
    words = student("bert", teachers["bert"], corpus, run, "train.validate_batches=1", options=cached)
    assert "has no teacher logits, or is unfinished: write it with" in megaptm("train", *words, code=2)
    assert f"computed those of {12 * STEPS + 12} samples." in megaptm("cache-logits", *words, "--top", "4")
    longer = f"train.steps={STEPS + 1}"
    assert f"has logits of {12 * STEPS} samples, and {STEPS + 1} steps read {12 * STEPS + 12}:" in megaptm(
        "train", *words, longer, code=2
    )
    assert "was written with top 4, not 5" in megaptm("cache-logits", *words, "--top", "5", code=2)
    assert "computed those of 0 samples." in megaptm("cache-logits", *words, "--top", "4")
    assert f"{12 * STEPS + 12} samples" in megaptm("cache-logits", *words, longer, "--top", "4")
    output = megaptm("train", *words, "train.seed=5", code=2)
    assert (
        "was written for other samples: train sample 0 differs. data.mix, data.sequence, objective and train.seed"
        in output
    )
    megaptm("train", *words)
    assert min(logit_losses(run)) > 0
    # A file that was damaged afterwards.
    path = tmp_path / "logits/train-000000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "is damaged (its sha256 differs" in megaptm("train", *words, f"run={tmp_path / 'other'}", code=2)
