"""The checkpoint of a teacher that a student hears: the one that it began with, or one that is named and is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megaptm.checkpoint.committed import FOLDER, MANIFEST
from megaptm.config import Config, dump, load
from megaptm.data.teacher_logits import FORMAT
from megaptm.errors import UserError
from megaptm.run.folder import absolute_paths
from megaptm.run.teacher import check_teacher

BERT = Path(__file__).parents[2] / "configs/bert/tiny.yaml"


def saved(run: Path, step: int, config: Config) -> Path:
    """A run that has a checkpoint of this step, as far as it is looked up without being read."""
    folder = run / FOLDER / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("{}")
    (run / "config.yaml").write_text(dump(config))
    return run


def student(teacher: Path, run: Path, more: str = "") -> Config:
    words = [f"run={run}", f"distill={{teacher: {teacher}, hidden: 1{more}}}", "model.vocabulary=300"]
    return absolute_paths(load(BERT, words))


@pytest.mark.parametrize("first", [0, 2])
def test_the_command_that_began_a_student_goes_on_with_the_step_that_it_found(tmp_path: Path, first: int) -> None:
    """Of a teacher that was trained on; one of step 0 was imported."""
    config = load(BERT, ["model.vocabulary=300"])
    teacher, run = saved(tmp_path / "teacher", first, config), tmp_path / "run"
    saved(run, 1, student(teacher, run))
    saved(teacher, 4, config)
    of_run, of_another = student(teacher, run).distill, student(teacher, tmp_path / "another").distill
    assert of_run is not None
    assert of_another is not None
    assert (of_run.step, of_another.step) == (first, 4)


def test_a_step_that_is_not_there_is_one_sentence_with_its_key(tmp_path: Path) -> None:
    config = load(BERT, ["model.vocabulary=300"])
    for step in (2, 4):
        saved(tmp_path / "teacher", step, config)
    wanted = student(tmp_path / "teacher", tmp_path / "run", ", step: 3")
    with pytest.raises(UserError, match=r"distill\.step \(3\): .*teacher has no checkpoint of that step, but of 2, 4"):
        check_teacher(wanted, tokenizer=None)  # type: ignore[arg-type]  # not asked before


def kept(folder: Path, **said: object) -> Path:
    """Logits that nothing was written of, for a BERT of 300 words in rows of `data.sequence`."""
    folder.mkdir()
    numbers = {"step": 2, "top": 4, "sequence": load(BERT).data.sequence, "vocabulary": 300, "per_file": 4}
    words = {"format": FORMAT, "teacher": "it", "head": "mlm", "places": "all", "dtype": "float16"}
    manifest = {**words, **numbers, "samples": {"train": 1 << 40}, "files": {}, **said}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"sequence": 1_000_000}, r"was written with sequence 1000000, and this config reads \d+"),
        ({"head": "lm"}, r"was written with head 'lm', and this config reads mlm"),
        ({"top": 1_000_000}, r"top \(1000000\) is more than its vocabulary \(300\)"),
        ({"dtype": "object"}, r"dtype \('object'\) must be float16 or float32"),
    ],
)
def test_logits_that_do_not_fit_the_run_are_refused_before_room_is_made_for_them(
    said: dict[str, object], told: str, tmp_path: Path
) -> None:
    """Of a row's places and words a run makes arrays, however few are in the files."""
    cached = kept(tmp_path / "logits", **said)
    more = "{teacher: teacher, logits: 1, model: {family: bert, size: custom, layers: 2, width: 64, heads: 2, ffn: 256"
    words = [f"run={tmp_path / 'run'}", f"distill={more}, context: 128}}, cached: {cached}}}", "model.vocabulary=300"]
    with pytest.raises(UserError, match=told):
        check_teacher(absolute_paths(load(BERT, words)), tokenizer=None)  # type: ignore[arg-type]
