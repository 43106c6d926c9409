"""A student and its teacher on ranks: the losses and gradient norms of one process, and a run that goes on exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from megaptm.config import Layout
from megaptm.spec import Distillation, ModelSpec, change
from tests.layouts.cases import ADAM, batch, micro_batches, tiny, train_and_save
from tests.ranks import run_ranks

ALL = {"logits": 0.5, "cosine": 1.0, "embeddings": 1.0, "hidden": 0.7, "scores": 0.9}
PAIRS = {"bert": "distilbert", "t5": "t5"}
"""Teacher -> student, of half as many layers."""
LOSSES = {"bert": {"mlm": 1.0}, "t5": {"lm": 1.0}}


def engine_of(folder: str, family: str, layout: Layout, precision: str = "fp32", initial: tuple[int, ...] = ()) -> Any:
    """Of a student, narrower than its teacher unless it begins as a slice of that."""
    from megaptm.checkpoint.store import Store
    from megaptm.parallel.engine import Engine

    teacher, student = tiny(family), tiny(PAIRS[family], layers=2, dropout=0.0)
    weights = ALL
    if not initial:
        weights = {hook: weight for hook, weight in ALL.items() if hook != "cosine"}
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
    return Engine(
        student,
        layout,
        ADAM,
        losses=LOSSES[family],
        seed=7,
        precision=precision,
        distillation=distillation,
        teacher=Store(Path(folder)).load(1).reader,
    )


def narrower(spec: ModelSpec) -> ModelSpec:
    return replace(spec, size=change(spec.size, width=16, head_width=8))


def learn(folder: str, family: str, layout: Layout, precision: str = "fp32", steps: int = 3) -> dict[str, Any]:
    """Losses and gradient norms of some steps, and the losses of an evaluation."""
    engine = engine_of(folder, family, layout, precision)
    results = []

    def mine(step: int) -> list[dict[str, torch.Tensor]] | None:
        rows = micro_batches(batch(family, step), layout, engine.ranks.data)
        return rows if engine.ranks.tensor == 0 else None

    for step in range(steps):
        results.append(engine.step(mine(step), step=step, lr=ADAM.lr))
    return {
        "losses": [loss for result in results for loss in result.losses.values()],
        "norms": [result.gradient_norm for result in results],
        "evaluation": [*engine.evaluate(mine(99)).losses.values()],
    }


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folders = {family: str(tmp_path_factory.mktemp(family)) for family in PAIRS}
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
def alone(teachers: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What one process has."""
    return {family: run_ranks(1, learn, folder, family, Layout(microbatch=2))[0] for family, folder in teachers.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_layout_changes_nothing(teachers: dict[str, str], alone: dict[str, dict[str, Any]], name: str) -> None:
    """With maps to the teacher's width: of its words, of its states, of its scores."""
    family, layout = CASES[name]
    for result in run_ranks(2, learn, teachers[family], family, layout):
        for part, numbers in alone[family].items():
            assert result[part] == pytest.approx(numbers, rel=1e-5, abs=1e-7)


def test_bf16_stays_close(teachers: dict[str, str], alone: dict[str, dict[str, Any]]) -> None:
    (found,) = run_ranks(1, learn, teachers["bert"], "bert", Layout(microbatch=4), "bf16")
    assert found["losses"] == pytest.approx(alone["bert"]["losses"], rel=0.05, abs=1e-3)


def goes_on(folder: str, student: str) -> tuple[list[float], list[float], list[str]]:
    """Losses of three steps, and of the last two of them after a checkpoint; and what that has."""
    from megaptm.checkpoint.store import Store
    from megaptm.parallel import state

    layout, initial = Layout(microbatch=4), (0, 3)
    engine, store = engine_of(folder, "bert", layout, initial=initial), Store(Path(student), fence=lambda: True)
    whole = [engine.step(micro_batches(batch("bert", 0), layout, 0), step=0, lr=ADAM.lr).loss]
    store.prepare(1)
    store.write(1, 0, list(state.pieces(engine)))
    store.commit(1, {}, ranks=1)
    again = engine_of(folder, "bert", layout, initial=initial)
    again.restore(store.load(1).reader, step=1)
    parts = [*whole]
    for losses, one in ((whole, engine), (parts, again)):
        losses += [one.step(micro_batches(batch("bert", n), layout, 0), step=n, lr=ADAM.lr).loss for n in (1, 2)]
    return whole, parts, store.load(1).reader.names()


def test_a_student_goes_on_to_the_last_bit_and_keeps_no_teacher(teachers: dict[str, str], tmp_path: Path) -> None:
    ((whole, parts, names),) = run_ranks(1, goes_on, teachers["bert"], str(tmp_path))
    assert whole == parts
    layers = {name.split(".")[1] for name in names if name.startswith("weight/encoder.")}
    assert layers == {"0", "1"}


def slices(folder: str, initial: tuple[int, ...]) -> tuple[list[str], list[str]]:
    """Parameters of a new student that are the teacher's, and those that are not."""
    engine = engine_of(folder, "bert", Layout(microbatch=8, tensor=2), initial=initial)
    (teacher,) = engine.stages[0].teachers
    theirs = dict(teacher.named_parameters())
    equal, other = [], []
    for name, parameter in engine.stages[0].model.named_parameters():
        number = name.split(".")[1]
        of = name.replace(f".{number}.", f".{initial[int(number)]}.", 1) if number.isdecimal() else name
        (equal if of in theirs and theirs[of].equal(parameter) else other).append(name)
    return equal, other


def test_a_student_begins_as_a_slice_of_its_teacher(teachers: dict[str, str]) -> None:
    for equal, other in run_ranks(2, slices, teachers["bert"], (3, 1)):
        assert not other
        assert {"embed.token.weight", "encoder.0.attention.qkv.weight", "head.mlm.transform.weight"} <= {*equal}
