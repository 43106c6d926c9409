"""States that are handed on from step to step live in checkpoints, by row of the global batch."""

from shutil import copytree

import pytest

from megaptm.checkpoint.store import Store
from tests.layouts.cases import train_and_save
from tests.layouts.test_resume import DP2_DISTRIBUTED, ONE
from tests.ranks import run_ranks

BEFORE, AFTER = 2, 2


def run(layout, folder, *, start, steps, dropout=0.1):
    return run_ranks(layout.processes, train_and_save, "elmo", layout, str(folder), start, steps, "fp32", dropout)[0]


def test_a_run_goes_on_to_the_last_bit_and_with_other_ranks(tmp_path):
    """With dropout and with words that are drawn; on other ranks, whose dropout is another, without."""
    whole = run(ONE, tmp_path / "whole", start=0, steps=BEFORE + AFTER)
    run(ONE, tmp_path / "cut", start=0, steps=BEFORE)
    rest = run(ONE, tmp_path / "cut", start=BEFORE, steps=AFTER)
    assert rest["losses"] == whole["losses"][BEFORE:]
    assert rest["norms"] == whole["norms"][BEFORE:]
    alone = run(ONE, tmp_path / "alone", start=0, steps=BEFORE, dropout=0.0)
    copytree(tmp_path / "alone", tmp_path / "dealt")
    more = [
        run(layout, tmp_path / name, start=BEFORE, steps=AFTER, dropout=0.0)["losses"]
        for layout, name in ((ONE, "alone"), (DP2_DISTRIBUTED, "dealt"))
    ]
    assert more[1] == pytest.approx(more[0], rel=1e-5)
    assert len(alone["losses"]) == BEFORE
    reader = Store(tmp_path / "dealt").load(BEFORE + AFTER).reader
    states = {name: reader.read(name) for name in reader.names() if name.startswith("memory/")}
    assert {*states} == {
        "memory/filled",
        *(f"memory/{stack}.{layer}" for stack in ("forwards", "backwards") for layer in range(2)),
    }
    assert states["memory/backwards.1"].shape == (8, 1, 16 + 24)
    assert states["memory/backwards.1"].abs().amax((1, 2)).min() > 1e-4
