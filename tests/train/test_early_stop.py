"""Early stopping by a validation loss."""

import math
import shutil

import pytest

from megaptm.config import StopConfig, load_run_config
from megaptm.launch.slurm.preflight import is_run_finished
from megaptm.resilience.events import read_events
from megaptm.track import read_metrics
from megaptm.train.early_stop import EarlyStop
from tests.bad_input.commands import user_error
from tests.drills.program import arguments, checkpoints, losses
from tests.forked import megaptm

STEPS = 12
PATIENCE = 2
STOP = f"train.stop={{patience: {PATIENCE}}}"
SETTINGS = (
    *(f"train.steps={STEPS}", "train.validate_every=1", "checkpoint.keep=9", "checkpoint.every=100"),
    *("optimizer.warmup_steps=0", "optimizer.decay=constant", "optimizer.lr=0.3"),
)


@pytest.fixture(scope="module")
def stopped(real_corpus, tmp_path_factory):
    """Run of two data ranks with a rate at which the loss soon rises, stopped early."""
    folder = tmp_path_factory.mktemp("early") / "run"
    keys = ("layout.data=2", "hub.export_every=1000", STOP)
    megaptm("train", *arguments("gpt2", folder, real_corpus("byte-bpe"), *SETTINGS, *keys))
    return folder


def test_nan_is_not_the_lowest_loss():
    """Lightning's issue 2636: after a first value of NaN no loss was lower, and the run ended while its loss fell."""
    early_stop = EarlyStop(StopConfig(patience=PATIENCE))
    early_stop.add({"loss": math.nan})
    resumed = EarlyStop(StopConfig(patience=PATIENCE))
    resumed.restore(early_stop.state_dict())
    assert (resumed.lowest, resumed.num_worse) == (None, 1)
    for loss in (3.0, 2.0, 1.0):
        resumed.add({"loss": loss})
    assert (resumed.lowest, resumed.num_worse, resumed.reason()) == (1.0, 0, None)


def test_run_of_which_each_validation_loss_is_nan_stops():
    early_stop = EarlyStop(StopConfig(patience=PATIENCE))
    for _ in range(PATIENCE):
        early_stop.add({"loss": math.nan})
    assert early_stop.reason() == "early stopping: validation/loss has not been a number in 2 validations (train.stop)"


def stop_events(run):
    return [event for event in read_events(run) if event["kind"] == "stop-request"]


def first_stop(run):
    """Return the first step with PATIENCE validation losses in a row that are not below the lowest before them."""
    values = [record["validation/loss"] for record in read_metrics(run) if "validation/loss" in record]
    last = PATIENCE + 1
    while min(values[last - PATIENCE : last]) < min(values[: last - PATIENCE]):
        last += 1
    return last


def test_run_ends_as_complete_and_saved(stopped):
    [event] = stop_events(stopped)
    assert event["step"] == first_stop(stopped) < STEPS
    assert "validation/loss has not fallen below" in event["reason"]
    assert checkpoints(stopped) == [event["step"]]
    assert (stopped / f"checkpoints/step-{event['step']:08d}/hf/model.safetensors").exists()


def test_wait_for_the_last_copy_is_measured(stopped):
    """The Hugging Face copy is written after the last step, and after the reason of the stop is reported."""
    events = {event["kind"]: event for event in read_events(stopped)}
    assert events["hub-export"]["seconds"] <= events["exit"]["shutdown"]
    assert events["stop-request"]["time"] <= events["hub-export"]["time"]


def test_resumed_run_stops_at_the_same_step(stopped, real_corpus, tmp_path):
    """One validation before the end, whose patience is partly used."""
    [event] = stop_events(stopped)
    words = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *SETTINGS, "layout.data=2", STOP)
    megaptm("train", *words, f"train.stop_at={event['step'] - 1}", code=75)
    megaptm("train", tmp_path / "run", "train.stop_at=null")
    assert [event["step"] for event in stop_events(tmp_path / "run")] == [event["step"]]
    assert losses(tmp_path / "run") == losses(stopped)


def test_stopped_run_goes_on_only_with_more_patience(stopped, tmp_path):
    run = shutil.copytree(stopped, tmp_path / "run")
    [event] = stop_events(run)
    megaptm("train", run)
    assert checkpoints(run) == [event["step"]]
    megaptm("train", run, "train.stop=null", f"train.stop_at={event['step'] + 1}", code=75)
    assert checkpoints(run) == [event["step"], event["step"] + 1]


def test_small_improvements_do_not_count():
    early_stop = EarlyStop(StopConfig(metric="validation/causal", patience=2, min_delta=0.1))
    reasons = []
    for value in (3.0, 2.95, 2.85, 2.8):
        early_stop.add({"loss": 0.0, "causal": value})
        reasons.append(early_stop.reason() is None)
    assert reasons == [True] * 4
    early_stop.add({"loss": 0.0})
    assert early_stop.reason() is None
    early_stop.add({"causal": 2.79})
    assert "validation/causal has not fallen below 2.8500 by 0.1 in 2 validations" in early_stop.reason()


def test_mistakes_have_a_sentence(tmp_path):
    words = ("train", "gpt2/tiny", f"run={tmp_path / 'run'}", "data.mix={corpora/books: 1}")
    assert "train.stop needs train.validate_every" in user_error(*words, STOP, "train.validate_every=null")


def test_unknown_metric_is_named(real_corpus, tmp_path):
    words = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *SETTINGS)
    output = megaptm("train", *words, "train.stop={metric: validation/los, patience: 2}", code=2)
    assert "train.stop.metric (validation/los) is no metric of this run; did you mean validation/loss?" in output


@pytest.mark.parametrize(("metric", "recipe"), [("validation/mlm", "a"), ("validation/loss", "b")])
def test_counting_starts_again_with_another_metric_or_recipe(metric, recipe):
    before = EarlyStop(StopConfig(patience=1), "a")
    for loss in (1.0, 2.0):
        before.add({"loss": loss, "mlm": loss})
    same, other = (
        EarlyStop(before.config, "a"),
        EarlyStop(StopConfig(metric=metric, patience=1), recipe),
    )
    for early_stop in (same, other):
        early_stop.restore(before.state_dict())
    assert same.reason() is not None
    assert other.reason() is None


def test_run_that_stopped_early_is_finished_for_its_jobs(stopped):
    assert is_run_finished(load_run_config(stopped / "config.yaml"))
    other_rate = load_run_config(stopped / "config.yaml").optimizer.model_copy(update={"lr": 0.1})
    assert not is_run_finished(load_run_config(stopped / "config.yaml").model_copy(update={"optimizer": other_rate}))
