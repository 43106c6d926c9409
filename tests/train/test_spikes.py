"""Runs that skip spikes."""

from megaptm.resilience.events import read_events
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

# With hardly any learning, a loss above the mean is called a spike.
SKIPS = (
    "train.spikes={action: skip-step, sigmas: 0.3, window: 16}",
    "optimizer.lr=1e-7",
    "train.steps=24",
    "layout.data=2",
)


def skipped_steps(run):
    return [event["step"] for event in read_events(run) if event["kind"] == "spike" and event["skipped"]]


def test_resumed_run_skips_the_same_steps(real_corpus, tmp_path):
    def train(name, *more, code=0):
        megaptm("train", *arguments("gpt2", tmp_path / name, real_corpus("byte-bpe"), *SKIPS, *more), code=code)
        return tmp_path / name

    uninterrupted = train("whole")
    steps = skipped_steps(uninterrupted)
    assert steps
    assert min(steps) > 8
    assert not {*steps} & losses(uninterrupted).keys()
    train("cut", f"train.stop_at={steps[0]}", code=75)
    cut = train("cut", "layout.data=1", "layout.tensor=2")
    assert resumed_at(cut) == [steps[0]]
    assert skipped_steps(cut) == steps
