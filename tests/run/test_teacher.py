"""The checkpoint of a teacher that a student hears: the one that it began with, or one that is named and is there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from megaptm.checkpoint.committed import FOLDER, MANIFEST
from megaptm.config import Config, dump, load
from megaptm.data.teacher_logits import FORMAT, TeacherLogitsManifest
from megaptm.data.teacher_logits import MANIFEST as KEPT
from megaptm.errors import UserError
from megaptm.run.changes import compare_configs
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
    with pytest.raises(UserError, match=r"distill\.step \(3\): .*teacher has checkpoints of steps 2, 4, but not"):
        check_teacher(wanted, tokenizer=None)  # type: ignore[arg-type]  # not asked before


def test_of_a_teacher_that_a_student_has_lost_it_is_not_said_to_train_it(tmp_path: Path) -> None:
    config = load(BERT, ["model.vocabulary=300"])
    teacher, run = saved(tmp_path / "teacher", 2, config), tmp_path / "run"
    saved(run, 1, wanted := student(teacher, run))
    shutil.rmtree(teacher / FOLDER / "step-00000002")
    for what, change in (
        ("has no checkpoint, ", lambda: saved(teacher, 4, config)),
        ("has checkpoints of steps 4, but not of step 2, ", lambda: teacher.rename(tmp_path / "moved")),
        ("is not the folder of a run, ", lambda: None),
    ):
        said = rf"distill\.teacher \({teacher}\) {what}and {run} was trained with it: restore it, or set"
        with pytest.raises(UserError, match=said):
            check_teacher(wanted, tokenizer=None)  # type: ignore[arg-type]  # not asked before
        change()


def test_a_run_of_word_vectors_is_no_teacher(tmp_path: Path) -> None:
    config = load(BERT, ["model.vocabulary=300"])
    wanted = student(saved(tmp_path / "teacher", 2, config), tmp_path / "run")
    saved(tmp_path / "teacher", 4, load(BERT.parents[1] / "nnlm/tiny.yaml", ["model.vocabulary=300"]))
    with pytest.raises(UserError, match=r"distill\.model: family is 'bert', but 'nnlm' in .*teacher:"):
        check_teacher(wanted, tokenizer=None)  # type: ignore[arg-type]  # not asked before


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "sequence",
            1_000_000,
            r"was written with sequences of 1,000,000 positions, and this run has 64: set data",
        ),
        ("sequence", 63, r"was written with sequences of 63 positions, and this run has 64"),
        ("head", "lm", r"has logits of the head 'lm', and the student has mlm"),
    ],
)
def test_kept_logits_of_other_rows_are_refused(tmp_path: Path, name: str, value: object, said: str) -> None:
    """Of a million places and words each an array takes terabytes: it is never made."""
    config = load(BERT, ["model.vocabulary=300"])
    saved(tmp_path / "teacher", 2, config)
    (tmp_path / "kept").mkdir()
    words = [
        f"run={tmp_path / 'run'}",
        f"distill={{teacher: {tmp_path / 'teacher'}, logits: 1, cached_logits: {tmp_path / 'kept'}}}",
        "model.vocabulary=300",
    ]
    wanted = absolute_paths(load(BERT, words))
    manifest = TeacherLogitsManifest(
        format=FORMAT,
        teacher="it",
        step=2,
        head="mlm",
        positions="all",
        top=300,
        dtype="float16",
        sequence=config.data.sequence,
        vocabulary=300,
        per_file=256,
        samples={"train": 1 << 40},
        files={},
    ).model_copy(update={name: value})
    (tmp_path / "kept" / KEPT).write_text(manifest.model_dump_json())
    with pytest.raises(UserError, match=said):
        check_teacher(wanted, tokenizer=None)  # type: ignore[arg-type]  # not asked before


def test_kept_logits_may_lie_elsewhere_when_a_student_goes_on(tmp_path: Path) -> None:
    """That they are the same is known by their manifest, and by the samples; a teacher that is run is another thing."""
    saved(tmp_path / "teacher", 2, load(BERT, ["model.vocabulary=300"]))
    here, there, run = (
        absolute_paths(
            load(BERT, [f"distill={{teacher: {tmp_path}/teacher, logits: 1{cached}}}", "model.vocabulary=300"])
        )
        for cached in (f", cached_logits: {tmp_path / 'here'}", f", cached_logits: {tmp_path / 'there'}", "")
    )
    assert compare_configs(here, there).faults == []
    assert [change.key for change in compare_configs(here, run).changes] == ["distill.cached_logits"]
