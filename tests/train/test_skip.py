"""Skipped batches after a loss spike (PaLM, arXiv:2204.02311, section 5.1)."""

import pytest
from click.testing import CliRunner

from megaptm.__main__ import main
from megaptm.resilience.events import read_events
from tests.drills.program import arguments, checkpoints, losses, resumed_at
from tests.forked import megaptm

EVERY = ("train.steps=6", "checkpoint.every=2", "checkpoint.keep=9", "checkpoint.asynchronous=false")
SKIP = "train.skip_batches={2: 3}"


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("skip")

    def train(name, *more, code=0):
        done = megaptm("train", *arguments("gpt2", folder / name, real_corpus("byte-bpe"), *EVERY, *more), code=code)
        return folder / name, done

    return train


@pytest.fixture(scope="module")
def spiked(runs):
    """Train a run to its end, then train it again while three batches after its second step are skipped."""
    run, _ = runs("spiked")
    before = losses(run)
    runs("spiked", SKIP, "layout.data=2", "layout.microbatch=2")
    return run, before


def test_skip_equals_a_run_that_never_read_the_batches(runs, spiked):
    run, before = spiked
    never, _ = runs("never", SKIP)
    expected, last = losses(never), {step: each[-1] for step, each in losses(run).items()}
    assert resumed_at(run) == [2]
    assert last == {step: pytest.approx(loss, rel=1e-5) for step, [loss] in expected.items()}
    assert [expected[step] == before[step] for step in (1, 2, 3)] == [True, True, False]


def test_data_ranks_share_verdicts_on_shards(runs):
    """The folder of a start has a file per split with a byte per shard, and no claim is left."""
    run, _ = runs("shared", "layout.data=2", "layout.microbatch=2")
    [start] = (run / "verified").iterdir()
    verdicts = [path.read_bytes() for path in start.iterdir()]
    assert 1 <= len(verdicts) <= 2
    assert all(verdicts), "a claim has no bytes"
    assert {1} <= {*b"".join(verdicts)} <= {0, 1}


def test_check_uses_the_checkpoint_before_the_skip(runs, real_corpus):
    run, _ = runs("checked")
    result = CliRunner().invoke(main, ["check", *arguments("gpt2", run, real_corpus("byte-bpe"), *EVERY, SKIP)])
    output = " ".join(result.stdout.split())
    assert "the checkpoint of step 6 was trained on steps that train.skip_batches.2 skips" in output
    assert "the run continues from the checkpoint of step 2 of 6, which is undamaged." in output


def test_later_checkpoints_are_renamed(spiked):
    run, _ = spiked
    assert checkpoints(run) == [2, 4, 6]
    aside = sorted(path.name for path in (run / "checkpoints").glob("*.abandoned"))
    assert aside == ["step-00000004.abandoned", "step-00000006.abandoned"]
    renamed = {event["step"]: event["path"] for event in read_events(run) if event["kind"] == "abandoned-checkpoint"}
    assert renamed == {step: str(run / f"checkpoints/step-{step:08d}.abandoned") for step in (4, 6)}


def test_skip_cannot_be_removed(runs, spiked):
    run, output = runs("spiked", code=2)
    assert "train.skip_batches.2 is None but the run in" in output
    assert checkpoints(run) == [2, 4, 6]


def test_skip_before_the_oldest_checkpoint_is_refused(runs, spiked):
    run, output = runs("spiked", "train.skip_batches={1: 1, 2: 3}", code=2)
    assert "train.skip_batches.1: the run would have to return to a checkpoint of that step or an earlier one" in output
    assert checkpoints(run) == [2, 4, 6]
