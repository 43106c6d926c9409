"""What is remembered from step to step is that of one process in every layout, lives in checkpoints, and is disturbed
by neither evaluation nor a step that is refused."""

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

import pytest

from megaptm.checkpoint.store import Store
from megaptm.config import Layout
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny, train_and_save, train_steps
from tests.layouts.test_resume import DP2, DP2_DISTRIBUTED, ONE, PP2_INTERLEAVED, TP2_SP
from tests.ranks import run_ranks

FAMILY = "transformer-xl-bytes"
BEFORE, AFTER = 3, 2


def run(layout, folder, *, start, steps, precision="fp32", dropout=0.0):
    return run_ranks(layout.processes, train_and_save, FAMILY, layout, str(folder), start, steps, precision, dropout)[0]


@pytest.fixture(scope="module")
def saved():
    """A run of one process that was never stopped, and its checkpoint after some steps."""
    with TemporaryDirectory() as folder:
        run(ONE, Path(folder) / "cut", start=0, steps=BEFORE)
        yield run(ONE, Path(folder) / "whole", start=0, steps=BEFORE + AFTER), Path(folder) / "cut"


@pytest.mark.parametrize("layout", [TP2_SP, DP2_DISTRIBUTED], ids=["TP2+SP", "DP2 distributed optimizer"])
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.drill)])
def test_a_run_with_memory_continues_to_the_last_bit(tmp_path, layout, precision):
    more = {"precision": precision, "dropout": 0.1}
    whole = run(layout, tmp_path / "whole", start=0, steps=BEFORE + AFTER, **more)
    run(layout, tmp_path / "cut", start=0, steps=BEFORE, **more)
    rest = run(layout, tmp_path / "cut", start=BEFORE, steps=AFTER, **more)
    assert rest["losses"] == whole["losses"][BEFORE:]
    assert rest["norms"] == whole["norms"][BEFORE:]


@pytest.mark.parametrize("layout", [ONE, DP2, TP2_SP, PP2_INTERLEAVED], ids=["one", "DP2", "TP2+SP", "PP2 interleaved"])
def test_memory_goes_on_with_other_ranks(saved, layout, tmp_path):
    whole, folder = saved
    copytree(folder, tmp_path / "cut")
    rest = run(layout, tmp_path / "cut", start=BEFORE, steps=AFTER)
    assert rest["losses"] == pytest.approx(whole["losses"][BEFORE:], rel=1e-5)
    assert rest["norms"] == pytest.approx(whole["norms"][BEFORE:], rel=1e-5)


def test_rows_of_any_number_of_data_ranks_make_the_same_checkpoint(saved, tmp_path):
    _, folder = saved
    run(DP2, tmp_path, start=0, steps=BEFORE)
    one, two = (Store(path).load(BEFORE).reader for path in (folder, tmp_path))
    memory = [name for name in one.names() if name.startswith("memory/")]
    assert memory == [name for name in two.names() if name.startswith("memory/")]
    assert {*memory} == {"memory/filled", *(f"memory/decoder.{layer}" for layer in range(4))}
    for name in memory:
        assert two.read(name).sub(one.read(name)).abs().max() < 1e-4
    assert one.read("memory/decoder.2").shape == (8, 24, 32)
    assert one.read("memory/decoder.2").abs().max() > 0.1
    assert {*one.read("memory/filled").tolist()} == {16, 24}, "rows that began anew, and rows that did not"


def without_memory():
    """Losses of three steps of a model that remembers nothing."""
    from megaptm.parallel.engine import Engine

    spec = tiny(FAMILY)
    engine = Engine(replace(spec, size=replace(spec.size, memory=0)), ONE, ADAM, losses=losses_of(FAMILY), seed=7)
    return [engine.step(micro_batches(batch(FAMILY, step), ONE, 0), step=step, lr=ADAM.lr).loss for step in range(3)]


def test_what_is_remembered_changes_what_is_learned():
    (losses,) = run_ranks(1, without_memory)
    remembered = run_ranks(1, train_steps, FAMILY, ONE, 3)[0]["losses"]
    assert losses[0] == remembered[0], "in the first step there is nothing to remember"
    assert all(abs(one - other) > 1e-3 * one for one, other in zip(losses[1:], remembered[1:], strict=True))


def disturbed(layout):
    """Losses of four steps with an evaluation and a refused step between; and of two evaluations of the same rows."""
    from megaptm.parallel.engine import DivergedError, Engine

    engine = Engine(tiny(FAMILY), layout, ADAM, losses=losses_of(FAMILY), seed=7)
    parameters = {place.name: value for stage in engine.stages for place, value in stage.placed_parameters()}
    losses, evaluated = [], []

    def given(number):
        return micro_batches(batch(FAMILY, number), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None

    for number in range(4):
        if number == 2:
            evaluated.append(engine.evaluate(given(7)).loss)
            evaluated.append(engine.evaluate(given(7)).loss)
            handle = parameters["decoder.3.ffn.down.weight"].register_hook(lambda gradient: gradient * float("nan"))
            with pytest.raises(DivergedError):
                engine.step(given(9), step=number, lr=ADAM.lr)
            handle.remove()
        losses.append(engine.step(given(number), step=number, lr=ADAM.lr).loss)
    return losses, evaluated


def test_evaluation_and_refused_steps_are_not_remembered():
    layout = Layout(microbatch=2)
    losses, evaluated = run_ranks(1, disturbed, layout)[0]
    assert losses == run_ranks(1, train_steps, FAMILY, layout, 4)[0]["losses"]
    assert evaluated[0] != evaluated[1], "an evaluation goes on from the one before, where rows do not begin anew"
