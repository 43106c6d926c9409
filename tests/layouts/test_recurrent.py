"""Recurrent states that pass from step to step are saved in checkpoints, by sample of the global batch."""

from shutil import copytree

import pytest

from megaptm.checkpoint.store import CheckpointStore
from tests.layouts.cases import train_and_save
from tests.layouts.test_resume import DP2_DISTRIBUTED, ONE
from tests.ranks import run_ranks

BEFORE, AFTER = 2, 2


def run(layout, folder, *, start, steps, dropout=0.1):
    return run_ranks(layout.processes, train_and_save, "elmo", layout, str(folder), start, steps, "fp32", dropout)[0]


def test_resume_is_bit_identical_and_works_in_another_layout(tmp_path):
    """With dropout and sampled negatives; in another layout, which has another dropout, without."""
    uninterrupted = run(ONE, tmp_path / "whole", start=0, steps=BEFORE + AFTER)
    run(ONE, tmp_path / "cut", start=0, steps=BEFORE)
    resumed = run(ONE, tmp_path / "cut", start=BEFORE, steps=AFTER)
    assert resumed["losses"] == uninterrupted["losses"][BEFORE:]
    assert resumed["norms"] == uninterrupted["norms"][BEFORE:]
    alone = run(ONE, tmp_path / "alone", start=0, steps=BEFORE, dropout=0.0)
    copytree(tmp_path / "alone", tmp_path / "sharded")
    more = [
        run(layout, tmp_path / name, start=BEFORE, steps=AFTER, dropout=0.0)["losses"]
        for layout, name in ((ONE, "alone"), (DP2_DISTRIBUTED, "sharded"))
    ]
    assert more[1] == pytest.approx(more[0], rel=1e-5)
    assert len(alone["losses"]) == BEFORE
    reader = CheckpointStore(tmp_path / "sharded").load(BEFORE + AFTER).reader
    states = {name: reader.read(name) for name in reader.names() if name.startswith("memory/")}
    assert {*states} == {
        "memory/filled",
        *(f"memory/{stack}.{layer}" for stack in ("forwards", "backwards") for layer in range(2)),
    }
    assert states["memory/backwards.1"].shape == (8, 1, 16 + 24)
    assert states["memory/backwards.1"].abs().amax((1, 2)).min() > 1e-4
