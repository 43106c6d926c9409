"""Promise 2: a run stopped and continued is the run that was never stopped, on the same layout or on another."""

from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from megaptm.checkpoint.store import Store
from megaptm.config import Layout
from megaptm.models.initial import initial_value
from megaptm.models.model import Model
from tests.layouts.cases import KINDS, read_back, tiny, train_and_save
from tests.ranks import run_ranks

ONE = Layout(microbatch=2)
TP2 = Layout(microbatch=2, tensor=2)
TP2_SP = Layout(microbatch=2, tensor=2, sequence_parallel=True)
PP2 = Layout(microbatch=2, pipeline=2)
PP2_INTERLEAVED = Layout(microbatch=2, pipeline=2, virtual=2)
DP2 = Layout(microbatch=2, data=2)
DP2_DISTRIBUTED = Layout(microbatch=2, data=2, distributed_optimizer=True)
TP2_DP2_DISTRIBUTED = Layout(microbatch=2, tensor=2, data=2, distributed_optimizer=True)
PP2_DP2_DISTRIBUTED = Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True)

# Not only the first step after a resume but the third: a wrong count in Adam shows in the second.
BEFORE, AFTER = 2, 3


def run(family, layout, folder, *, start, steps, precision="fp32", dropout=0.0, meanwhile=0):
    arguments = (family, layout, str(folder), start, steps, precision, dropout, meanwhile)
    return run_ranks(layout.processes, train_and_save, *arguments)[0]


@cache
def never_stopped(family):
    """The run of one process."""
    with TemporaryDirectory() as folder:
        return run(family, ONE, Path(folder), start=0, steps=BEFORE + AFTER)


LAYOUTS = {
    "one": ONE,
    "TP2+SP": TP2_SP,
    "PP2 interleaved": PP2_INTERLEAVED,
    "DP2 distributed optimizer": DP2_DISTRIBUTED,
}


def in_each_run(family, precision, layout):
    """In bfloat16 the optimizer has float32 weights besides: whose state that is does not depend on the family. An
    encoder and a decoder are cut in most places where stages have chunks."""
    return (family, precision) == ("gpt2", "bf16") or (family, precision, layout) == ("t5", "fp32", "PP2 interleaved")


OTHERS = (("clip", "fp32"), ("clip", "bf16"), ("uniter", "fp32"), ("unimo", "fp32"), ("vit", "fp32"))
"""Whose rows are compared over the batch, with a temperature in float32; whose stages share what reads regions; and
whose rows are images."""


@pytest.mark.parametrize(
    ("family", "precision", "layout"),
    [
        pytest.param(*case, name, marks=[] if in_each_run(*case, name) else pytest.mark.drill)
        for case, name in product((*product(KINDS, ("bf16", "fp32")), *OTHERS), LAYOUTS)
    ],
)
def test_same_layout_continues_to_the_last_bit_with_dropout(tmp_path, family, precision, layout):
    layout, more = LAYOUTS[layout], {"precision": precision, "dropout": 0.1}
    whole = run(family, layout, tmp_path / "whole", start=0, steps=BEFORE + AFTER, **more)
    run(family, layout, tmp_path / "cut", start=0, steps=BEFORE, **more)
    rest = run(family, layout, tmp_path / "cut", start=BEFORE, steps=AFTER, **more)
    assert rest["losses"] == whole["losses"][BEFORE:]
    assert rest["norms"] == whole["norms"][BEFORE:]


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.drill), "bf16"])
@pytest.mark.parametrize(
    "layout", [ONE, PP2_INTERLEAVED, DP2_DISTRIBUTED], ids=["one", "PP2 interleaved", "DP2 distributed optimizer"]
)
def test_a_checkpoint_written_while_training_goes_on_is_that_of_its_step(tmp_path, layout, precision):
    whole = run("gpt2", layout, tmp_path, start=0, steps=BEFORE, precision=precision, meanwhile=AFTER)
    rest = run("gpt2", layout, tmp_path, start=BEFORE, steps=AFTER, precision=precision)
    assert rest["losses"] == whole["losses"][BEFORE:]
    assert rest["norms"] == whole["norms"][BEFORE:]


def test_what_is_divided_over_data_ranks_each_reads_its_part_of(tmp_path):
    run("gpt2", DP2_DISTRIBUTED, tmp_path, start=0, steps=1)
    one, other = run_ranks(2, read_back, DP2_DISTRIBUTED, str(tmp_path), 1)
    assert one["weight"] == other["weight"] == one["exp_avg"] + other["exp_avg"]
    assert min(one["exp_avg"], other["exp_avg"]) > 0.3 * one["weight"]


CHANGES = (
    (TP2, PP2),
    (ONE, DP2),
    (DP2, ONE),
    (DP2_DISTRIBUTED, ONE),
    (PP2, TP2_SP),
    (ONE, PP2_DP2_DISTRIBUTED),
    (TP2_DP2_DISTRIBUTED, PP2_INTERLEAVED),
    (PP2_DP2_DISTRIBUTED, TP2_DP2_DISTRIBUTED),
)
"""In each run of the tests the last four of a decoder, and the last one, where each rank reads what four others wrote,
of every kind of model."""


def name_of(layout):
    return f"TP{layout.tensor}PP{layout.pipeline}DP{layout.data}{'d' * layout.distributed_optimizer}"


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [
        pytest.param(
            family,
            *change,
            marks=[] if change in (CHANGES[4:] if family == "gpt2" else CHANGES[-1:]) else pytest.mark.drill,
            id=f"{name_of(change[0])}-{name_of(change[1])}-{family}",
        )
        for family, change in product(KINDS, CHANGES)
    ],
)
def test_another_layout_continues_the_same_run(tmp_path, family, before, after):
    whole = never_stopped(family)
    run(family, before, tmp_path / "cut", start=0, steps=BEFORE)
    rest = run(family, after, tmp_path / "cut", start=BEFORE, steps=AFTER)
    assert rest["losses"] == pytest.approx(whole["losses"][BEFORE:], rel=1e-5)
    assert rest["norms"] == pytest.approx(whole["norms"][BEFORE:], rel=1e-5)


def continued_with_dropout(folder, layout):
    """Loss of the step after a checkpoint of one process."""
    run("gpt2", ONE, folder, start=0, steps=BEFORE, dropout=0.1)
    [loss] = run("gpt2", layout, folder, start=BEFORE, steps=1, dropout=0.1)["losses"]
    return loss


@pytest.mark.parametrize(
    "layout",
    [DP2, Layout(microbatch=2, tensor=2), Layout(microbatch=2, pipeline=2), Layout(microbatch=4)],
    ids=["DP2", "TP2", "PP2", "rows of a micro-batch"],
)
def test_dropout_masks_belong_to_the_layout(tmp_path, layout):
    """Without dropout these layouts have one loss to 1e-5 (`test_another_layout_continues_the_same_run`)."""
    loss, other = continued_with_dropout(tmp_path / "one", ONE), continued_with_dropout(tmp_path / "other", layout)
    assert other != pytest.approx(loss, rel=1e-5)
    assert other == pytest.approx(loss, rel=0.02)


def test_dropout_masks_do_not_depend_on_what_is_recomputed(tmp_path):
    again = Layout(microbatch=2, recompute="full")
    assert continued_with_dropout(tmp_path / "one", ONE) == continued_with_dropout(tmp_path / "again", again)


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("layout", [ONE, TP2_SP, PP2_INTERLEAVED, TP2_DP2_DISTRIBUTED], ids=["1", "TP2", "PP2", "dist"])
def test_initial_weights_are_a_function_of_seed_and_name(tmp_path, family, layout):
    run(family, layout, tmp_path, start=0, steps=0)
    reader = Store(tmp_path).load(0).reader
    spec = tiny(family)
    with torch.device("meta"):
        model = Model(spec)
    for name, parameter in model.named_parameters():
        saved = reader.read(f"weight/{name}")
        assert torch.equal(saved, initial_value(spec, name, tuple(parameter.shape), seed=7)), name
