"""Checkpoint of a student's teacher, and cached logits of the teacher."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from megaptm.checkpoint.committed import FOLDER, MANIFEST
from megaptm.config import Config, config_to_yaml, load_config
from megaptm.distillation.cached_logits import FORMAT, TeacherLogitsManifest
from megaptm.distillation.cached_logits import MANIFEST as KEPT
from megaptm.distillation.run import check_teacher, teacher_run
from megaptm.distillation.section import distill_section
from megaptm.errors import UserError
from megaptm.run.changes import compare_configs
from megaptm.run.folder import absolute_paths

BERT = Path(__file__).parents[2] / "configs/bert/tiny.yaml"


def save_checkpoint(run: Path, step: int, config: Config) -> Path:
    """Create a run with the files of a checkpoint that are checked without reading weights."""
    folder = run / FOLDER / f"step-{step:08d}"
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text("{}")
    (run / "config.yaml").write_text(config_to_yaml(config))
    return run


def student_config(teacher: Path, run: Path, more: str = "") -> Config:
    words = [f"run={run}", f"distill={{teacher: {teacher}, hidden: 1{more}}}", "model.vocabulary=300"]
    return absolute_paths(load_config(BERT, words))


@pytest.mark.parametrize("first", [0, 2])
def test_student_keeps_the_teacher_step_of_its_start(tmp_path: Path, first: int) -> None:
    """The teacher was trained further after the student started. Step 0 is an imported teacher."""
    config = load_config(BERT, ["model.vocabulary=300"])
    teacher, run = save_checkpoint(tmp_path / "teacher", first, config), tmp_path / "run"
    save_checkpoint(run, 1, student_config(teacher, run))
    save_checkpoint(teacher, 4, config)
    of_run, of_another = (distill_section(student_config(teacher, folder)) for folder in (run, tmp_path / "another"))
    assert of_run is not None
    assert of_another is not None
    assert (of_run.step, of_another.step) == (first, 4)


def test_invalid_teacher_step_of_a_checkpoint_is_ignored(tmp_path: Path) -> None:
    teacher, run = (
        save_checkpoint(tmp_path / "teacher", 4, load_config(BERT, ["model.vocabulary=300"])),
        tmp_path / "run",
    )
    save_checkpoint(run, 1, student_config(teacher, run))
    state = {"config": {"distill": {"step": "x"}}}
    (run / FOLDER / "step-00000001" / MANIFEST).write_text(json.dumps({"state": state}))
    section = distill_section(student_config(teacher, run))
    assert section is not None
    assert section.step == 4


def test_missing_teacher_step_is_refused(tmp_path: Path) -> None:
    config = load_config(BERT, ["model.vocabulary=300"])
    for step in (2, 4):
        save_checkpoint(tmp_path / "teacher", step, config)
    of_student = student_config(tmp_path / "teacher", tmp_path / "run", ", step: 3")
    with pytest.raises(UserError, match=r"distill\.step \(3\): .*teacher has checkpoints of steps 2, 4, but not"):
        check_teacher(of_student, tokenizer=None)  # type: ignore[arg-type] # not used before the error


def test_removed_teacher_error_asks_to_restore_it(tmp_path: Path) -> None:
    config = load_config(BERT, ["model.vocabulary=300"])
    teacher, run = save_checkpoint(tmp_path / "teacher", 2, config), tmp_path / "run"
    save_checkpoint(run, 1, of_student := student_config(teacher, run))
    shutil.rmtree(teacher / FOLDER / "step-00000002")
    for problem, change in (
        ("has no checkpoint, ", lambda: save_checkpoint(teacher, 4, config)),
        ("has checkpoints of steps 4, but not of step 2, ", lambda: teacher.rename(tmp_path / "moved")),
        ("is not the folder of a run, ", lambda: None),
    ):
        message = rf"distill\.teacher \({teacher}\) {problem}and {run} was trained with it: restore it, or set"
        with pytest.raises(UserError, match=message):
            check_teacher(of_student, tokenizer=None)  # type: ignore[arg-type] # not used before the error
        change()


def test_word_vectors_cannot_be_a_teacher(tmp_path: Path) -> None:
    config = load_config(BERT, ["model.vocabulary=300"])
    of_student = student_config(save_checkpoint(tmp_path / "teacher", 2, config), tmp_path / "run")
    save_checkpoint(tmp_path / "teacher", 4, load_config(BERT.parents[1] / "nnlm/tiny.yaml", ["model.vocabulary=300"]))
    with pytest.raises(UserError, match=r"distill\.model: family is 'bert', but 'nnlm' in .*teacher:"):
        check_teacher(of_student, tokenizer=None)  # type: ignore[arg-type] # not used before the error


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "sequence",
            1_000_000,
            r"was written with sequences of 1,000,000 positions, and this run has 64: set data",
        ),
        ("sequence", 63, r"was written with sequences of 63 positions, and this run has 64"),
        ("head", "lm", r"has logits of the head 'lm', and the student has the head mlm"),
    ],
)
def test_mismatching_cached_logits_are_refused(tmp_path: Path, name: str, value: object, message: str) -> None:
    """An array of a million positions and tokens would take terabytes, so it must not be created."""
    config = load_config(BERT, ["model.vocabulary=300"])
    save_checkpoint(tmp_path / "teacher", 2, config)
    (tmp_path / "kept").mkdir()
    words = [
        f"run={tmp_path / 'run'}",
        f"distill={{teacher: {tmp_path / 'teacher'}, logits: 1, cached_logits: {tmp_path / 'kept'}}}",
        "model.vocabulary=300",
    ]
    of_student = absolute_paths(load_config(BERT, words))
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
    with pytest.raises(UserError, match=message):
        check_teacher(of_student, tokenizer=None)  # type: ignore[arg-type] # not used before the error


def test_cached_logits_may_move_on_resume(tmp_path: Path) -> None:
    """Cached logits are compared by manifest and samples. Replacing them by a teacher that runs is refused."""
    save_checkpoint(tmp_path / "teacher", 2, load_config(BERT, ["model.vocabulary=300"]))
    here, there, run = (
        absolute_paths(
            load_config(BERT, [f"distill={{teacher: {tmp_path}/teacher, logits: 1{cached}}}", "model.vocabulary=300"])
        )
        for cached in (f", cached_logits: {tmp_path / 'here'}", f", cached_logits: {tmp_path / 'there'}", "")
    )
    assert compare_configs(here, there).faults == []
    assert [change.key for change in compare_configs(here, run).changes] == ["distill.cached_logits"]


def test_teacher_has_the_attention_of_its_checkpoint(tmp_path: Path) -> None:
    """A later phase of the teacher changed its options."""
    configs = [
        load_config(BERT, ["model.vocabulary=300", f"model.attention.dropout={value}"]) for value in ("true", "false")
    ]
    for step, config in zip((2, 4), configs, strict=True):
        teacher = save_checkpoint(tmp_path / "teacher", step, config)
        state = {"config": config.model_dump(mode="json")}
        (teacher / FOLDER / f"step-{step:08d}" / MANIFEST).write_text(json.dumps({"state": state}))
    run = tmp_path / "run"
    students = {step: student_config(teacher, run, f", step: {step}") for step in (2, 4)}
    dropout = {step: distill_section(student).model["attention"]["dropout"] for step, student in students.items()}  # type: ignore[union-attr]
    assert dropout == {2: True, 4: False}
    assert teacher_run(students[2]).config.model.attention["dropout"] is True
