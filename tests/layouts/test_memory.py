"""Recurrence cache: every layout has that of one process, checkpoints save it, and neither evaluation nor a rejected
step changes it."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

import pytest

from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import Layout
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny, train_and_save, train_steps
from tests.layouts.test_diverged import poisoned_gradient
from tests.layouts.test_resume import DP2, DP2_DISTRIBUTED, ONE, PP2_INTERLEAVED, TP2_SP
from tests.ranks import run_ranks

FAMILY = "transformer-xl-bytes"
BEFORE, AFTER = 3, 2


def run(layout, folder, *, start, steps, precision="fp32", dropout=0.0):
    return run_ranks(layout.processes, train_and_save, FAMILY, layout, str(folder), start, steps, precision, dropout)[0]


@pytest.fixture(scope="module")
def saved():
    """Results of an uninterrupted run of one process, and a checkpoint of it after some steps."""
    with TemporaryDirectory() as folder:
        run(ONE, Path(folder) / "cut", start=0, steps=BEFORE)
        yield run(ONE, Path(folder) / "whole", start=0, steps=BEFORE + AFTER), Path(folder) / "cut"


@pytest.mark.parametrize("layout", [TP2_SP, DP2_DISTRIBUTED], ids=["TP2+SP", "DP2 distributed optimizer"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.drill)])
def test_resume_is_bit_identical(tmp_path, layout, precision):
    more = {"precision": precision, "dropout": 0.1}
    uninterrupted = run(layout, tmp_path / "whole", start=0, steps=BEFORE + AFTER, **more)
    run(layout, tmp_path / "cut", start=0, steps=BEFORE, **more)
    resumed = run(layout, tmp_path / "cut", start=BEFORE, steps=AFTER, **more)
    assert resumed["losses"] == uninterrupted["losses"][BEFORE:]
    assert resumed["norms"] == uninterrupted["norms"][BEFORE:]


@pytest.mark.parametrize("layout", [ONE, DP2, TP2_SP, PP2_INTERLEAVED], ids=["one", "DP2", "TP2+SP", "PP2 interleaved"])
def test_resume_in_another_layout(saved, layout, tmp_path):
    uninterrupted, folder = saved
    copytree(folder, tmp_path / "cut")
    resumed = run(layout, tmp_path / "cut", start=BEFORE, steps=AFTER)
    assert resumed["losses"] == pytest.approx(uninterrupted["losses"][BEFORE:], rel=1e-5)
    assert resumed["norms"] == pytest.approx(uninterrupted["norms"][BEFORE:], rel=1e-5)


def test_checkpoint_does_not_depend_on_data_ranks(saved, tmp_path):
    _, folder = saved
    run(DP2, tmp_path, start=0, steps=BEFORE)
    single, sharded = (CheckpointStore(path).load(BEFORE).reader for path in (folder, tmp_path))
    memory = [name for name in single.names() if name.startswith("memory/")]
    assert memory == [name for name in sharded.names() if name.startswith("memory/")]
    assert {*memory} == {"memory/filled", *(f"memory/decoder.{layer}" for layer in range(4))}
    for name in memory:
        assert sharded.read(name).sub(single.read(name)).abs().max() < 1e-4
    assert single.read("memory/decoder.2").shape == (8, 24, 32)
    assert single.read("memory/decoder.2").abs().max() > 0.1
    assert {*single.read("memory/filled").tolist()} == {16, 24}, "sequences that started anew, and others"


def train_without_cache():
    """Return the losses of three steps of a model without a cache."""
    spec = tiny(FAMILY)
    engine = filled_engine(
        replace(spec, size=replace(spec.size, memory=0)), ONE, ADAM, losses=losses_of(FAMILY), seed=7
    )
    return [
        engine.train_step(micro_batches(batch(FAMILY, step), ONE, 0), step=step, lr=ADAM.lr).loss for step in range(3)
    ]


def test_cache_changes_the_losses():
    (without_cache,) = run_ranks(1, train_without_cache)
    with_cache = run_ranks(1, train_steps, FAMILY, ONE, 3)[0]["losses"]
    assert without_cache[0] == with_cache[0], "the cache is empty in the first step"
    assert all(abs(loss - other) > 1e-3 * loss for loss, other in zip(without_cache[1:], with_cache[1:], strict=True))


def train_with_interruptions(layout):
    """Return losses of four steps with evaluations and a rejected step between, and of two evaluations of one batch."""
    from megaptm.parallel.step_result import DivergedError

    engine = filled_engine(tiny(FAMILY), layout, ADAM, losses=losses_of(FAMILY), seed=7)
    parameters = {
        placement.name: value for stage in engine.model.stages for placement, value in stage.placed_parameters()
    }
    losses, evaluated = [], []

    def local_batches(number):
        return micro_batches(batch(FAMILY, number), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None

    for number in range(4):
        if number == 2:
            evaluated.append(engine.evaluate(local_batches(7)).loss)
            evaluated.append(engine.evaluate(local_batches(7)).loss)
            weight = parameters["decoder.3.ffn.down.weight"]
            with poisoned_gradient(weight, float("nan")), pytest.raises(DivergedError):
                engine.train_step(local_batches(9), step=number, lr=ADAM.lr)
        losses.append(engine.train_step(local_batches(number), step=number, lr=ADAM.lr).loss)
    return losses, evaluated


def test_evaluation_and_rejected_steps_do_not_change_the_cache():
    layout = Layout(microbatch=2)
    losses, evaluated = run_ranks(1, train_with_interruptions, layout)[0]
    assert losses == run_ranks(1, train_steps, FAMILY, layout, 4)[0]["losses"]
    assert evaluated[0] != evaluated[1], "the second evaluation continues the sequences of the first"
