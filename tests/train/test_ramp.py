"""Run with a batch size ramp: other layouts and resume."""

import pytest

from megaptm.config import load_config
from megaptm.config.learning_rate import learning_rate, learning_rate_at
from megaptm.track import read_metrics
from tests import ROOT
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

SIZES = [4, 4, 4, 8, 8, 12, 12, 12]
RAMP = (
    *("train.batch=12", "train.ramp={start: 4, increment: 4, samples: 24}", f"train.steps={len(SIZES)}"),
    *("layout.microbatch=2", "optimizer.warmup_steps=2", "optimizer.decay=cosine"),
)


DOUBLED = (
    *("train.batch=12", "train.ramp={steps: {0: 4, 2: 8, 4: 12}}", "train.steps=5", "layout.microbatch=2"),
    *("optimizer.warmup_steps=4", "optimizer.step_unit=steps"),
)


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ramp")

    def train(name, *more, code=0, ramp=RAMP):
        megaptm("train", *arguments("gpt2", folder / name, real_corpus("byte-bpe"), *ramp, *more), code=code)
        return folder / name

    return train


@pytest.fixture(scope="module")
def uninterrupted(runs):
    return runs("whole")


def column(run, name):
    return [record[name] for record in read_metrics(run) if name in record]


def test_ramp_samples_per_step(uninterrupted):
    assert column(uninterrupted, "samples") == [sum(SIZES[: step + 1]) for step in range(len(SIZES))]


def test_warmup_counts_samples(uninterrupted):
    """Warm-up of two full batches: 24 samples, of which each of the first three steps reads a sixth."""
    assert column(uninterrupted, "learning_rate")[:4] == pytest.approx([rows / 24 * 1e-3 for rows in (4, 8, 12, 20)])


def test_ramp_resumes_on_another_layout(runs, uninterrupted):
    runs("moved", "layout.data=2", "train.stop_at=4", code=75)
    moved = runs("moved", "layout.pipeline=2", "layout.tensor=2", "layout.virtual=2", "layout.microbatch=1")
    assert resumed_at(moved) == [4]
    assert losses(moved) == {step: pytest.approx(loss, rel=1e-5) for step, loss in losses(uninterrupted).items()}


def test_ramp_at_configured_steps_resumes(runs):
    """With `optimizer.counts=steps`, steps of any size count as steps."""
    uninterrupted = runs("doubled", ramp=DOUBLED)
    assert column(uninterrupted, "samples") == [4, 8, 16, 24, 36]
    assert column(uninterrupted, "learning_rate") == pytest.approx([1e-3 * step / 4 for step in (1, 2, 3, 4, 4)])
    runs("stopped", "train.stop_at=2", code=75, ramp=DOUBLED)
    again = runs("stopped", "layout.data=2", ramp=DOUBLED)
    assert resumed_at(again) == [2]
    assert losses(again) == {step: pytest.approx(loss, rel=1e-5) for step, loss in losses(uninterrupted).items()}


def test_schedule_by_samples_is_the_same_with_a_ramp():
    """The rate depends on the number of samples: GPT-3's warm-up and decay are given in tokens."""
    base = load_config(ROOT / "configs/gpt3/175b.yaml")
    ramped = load_config(ROOT / "configs/gpt3/175b.yaml", ["train.ramp={start: 384, increment: 384, samples: 1000000}"])
    batches = ramped.batch_schedule
    for step in range(0, 5000, 97):
        at, size = batches.first_sample(step) / base.train.batch, batches.size(step) / base.train.batch
        expected = learning_rate(at, base.optimizer, steps=base.train.steps, size=size)
        assert learning_rate_at(ramped, step) == pytest.approx(expected, rel=1e-12)
    assert learning_rate_at(base, 50) == learning_rate(50, base.optimizer, steps=base.train.steps)
