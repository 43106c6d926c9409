"""Distillation in layouts: losses and norms of one process, and bit-identical resumption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megaptm.config import Layout
from megaptm.distillation.spec import Distillation
from megaptm.spec import ModelSpec, change
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, micro_batches, tiny, train_and_save
from tests.ranks import run_ranks

WEIGHTS = {"logits": 0.5, "cosine": 1.0, "embeddings": 1.0, "hidden": 0.7, "scores": 0.9}
STUDENTS = {"bert": "distilbert", "t5": "t5"}
"""Teacher -> student, which has half as many layers."""
LOSSES = {"bert": {"mlm": 1.0}, "t5": {"lm": 1.0}}


def engine_of(folder: str, family: str, layout: Layout, precision: str = "fp32", initial: tuple[int, ...] = ()) -> Any:
    """Return the engine of a student, which is narrower than its teacher unless `initial` layers initialize it."""
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.distillation.hook import DistillationHook

    teacher, student = tiny(family), tiny(STUDENTS[family], layers=2, dropout=0.0)
    weights = WEIGHTS
    if not initial:
        weights = {hook: weight for hook, weight in WEIGHTS.items() if hook != "cosine"}
        student = narrower(student)
    layers = {stack: (1,) if len(teacher.family.stacks) > 1 else (1, 3) for stack in teacher.family.stacks}
    distillation = Distillation(
        teacher=teacher,
        weights=weights,
        layers=layers,
        temperature=2.0,
        projection="none" if initial else "by-kind",
        initial=initial,
        objective=2.0,
    )
    reader = CheckpointStore(Path(folder)).load(1).reader
    return filled_engine(
        student,
        layout,
        ADAM,
        losses=LOSSES[family],
        seed=7,
        precision=precision,
        hooks=[DistillationHook(distillation, reader)],
    )


def narrower(spec: ModelSpec) -> ModelSpec:
    return replace(spec, size=change(spec.size, width=16, head_width=8))


def learn(folder: str, family: str, layout: Layout, precision: str = "fp32", steps: int = 3) -> dict[str, Any]:
    """Return losses and gradient norms of some steps, and the losses of an evaluation."""
    engine = engine_of(folder, family, layout, precision)
    results = []

    def local_batches(step: int) -> list[dict[str, torch.Tensor]] | None:
        rows = micro_batches(batch(family, step), layout, engine.ranks.data)
        return rows if engine.ranks.tensor == 0 else None

    for step in range(steps):
        results.append(engine.train_step(local_batches(step), step=step, lr=ADAM.lr))
    return {
        "losses": [loss for result in results for loss in result.losses.values()],
        "norms": [result.gradient_norm for result in results],
        "evaluation": [*engine.evaluate(local_batches(99)).losses.values()],
    }


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {family: str(tmp_path_factory.mktemp(family)) for family in STUDENTS}
    for family, folder in folders.items():
        run_ranks(1, train_and_save, family, Layout(microbatch=8), folder, 0, 1)
    return folders


CASES = {
    "data ranks": ("bert", Layout(microbatch=2, data=2, distributed_optimizer=True)),
    "tensor ranks": ("t5", Layout(microbatch=4, tensor=2)),
    "tensor ranks on a split sequence": (
        "bert",
        Layout(microbatch=4, tensor=2, sequence_parallel=True, recompute="full"),
    ),
}


@pytest.fixture(scope="module")
def single_process(teachers: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Results of one process."""
    return {family: run_ranks(1, learn, folder, family, Layout(microbatch=2))[0] for family, folder in teachers.items()}


@pytest.mark.parametrize("name", CASES)
def test_layout_changes_no_result(
    teachers: dict[str, str], single_process: dict[str, dict[str, Any]], name: str
) -> None:
    """With projections to the teacher's width, and losses on logits, hidden states and attention scores."""
    family, layout = CASES[name]
    for result in run_ranks(2, learn, teachers[family], family, layout):
        for part, numbers in single_process[family].items():
            assert result[part] == pytest.approx(numbers, rel=1e-5, abs=1e-7)


def test_bf16_is_close_to_fp32(teachers: dict[str, str], single_process: dict[str, dict[str, Any]]) -> None:
    (actual,) = run_ranks(1, learn, teachers["bert"], "bert", Layout(microbatch=4), "bf16")
    assert actual["losses"] == pytest.approx(single_process["bert"]["losses"], rel=0.05, abs=1e-3)


def train_and_resume(folder: str, student: str) -> tuple[list[float], list[float], list[str]]:
    """Return losses of three steps, the same with a restart after the first, and the tensors of its checkpoint."""
    from megaptm.checkpoint.store import CheckpointStore

    layout, initial = Layout(microbatch=4), (0, 3)
    engine, store = (
        engine_of(folder, "bert", layout, initial=initial),
        CheckpointStore(Path(student), fence=lambda: True),
    )
    uninterrupted = [engine.train_step(micro_batches(batch("bert", 0), layout, 0), step=0, lr=ADAM.lr).loss]
    store.prepare(1)
    store.write(1, 0, list(engine.pieces()))
    store.commit(1, {}, ranks=1)
    resumed = engine_of(folder, "bert", layout, initial=initial)
    resumed.restore(store.load(1).reader, step=1)
    resumed_losses = [*uninterrupted]
    for losses, trained in ((uninterrupted, engine), (resumed_losses, resumed)):
        losses += [
            trained.train_step(micro_batches(batch("bert", n), layout, 0), step=n, lr=ADAM.lr).loss for n in (1, 2)
        ]
    return uninterrupted, resumed_losses, store.load(1).reader.names()


def test_resume_is_bit_identical_and_saves_no_teacher(teachers: dict[str, str], tmp_path: Path) -> None:
    ((uninterrupted, resumed, names),) = run_ranks(1, train_and_resume, teachers["bert"], str(tmp_path))
    assert uninterrupted == resumed
    layers = {name.split(".")[1] for name in names if name.startswith("weight/encoder.")}
    assert layers == {"0", "1"}


def compare_with_teacher(folder: str, initial: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """Return the parameters of a new student that equal the teacher's, and the others."""
    from megaptm.distillation.hook import DistillationHook

    engine = engine_of(folder, "bert", Layout(microbatch=8, tensor=2), initial=initial)
    (hook,) = [hook for hook in engine.hooks if isinstance(hook, DistillationHook)]
    teacher = hook.teacher
    teacher_parameters = dict(teacher.named_parameters())
    equal, other = [], []
    for name, parameter in engine.model.stages[0].model.named_parameters():
        number = name.split(".")[1]
        of = name.replace(f".{number}.", f".{initial[int(number)]}.", 1) if number.isdecimal() else name
        (equal if of in teacher_parameters and teacher_parameters[of].equal(parameter) else other).append(name)
    return equal, other


def test_student_is_initialized_from_teacher_layers(teachers: dict[str, str]) -> None:
    for equal, other in run_ranks(2, compare_with_teacher, teachers["bert"], (3, 1)):
        assert not other
        assert {"embed.token.weight", "encoder.0.attention.qkv.weight", "head.mlm.transform.weight"} <= {*equal}
