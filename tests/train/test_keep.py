"""Checkpoints that a run retains, and the commands that look at them."""

import json
import math
from dataclasses import asdict

import pytest
from click.testing import CliRunner

from megaptm.checkpoint.committed import FOLDER, MANIFEST
from megaptm.commands.checkpoint import list_checkpoints_command, verify_checkpoints_command
from megaptm.config import load_config
from megaptm.config.schema import KeepConfig
from megaptm.run.held_out import FIELD, HeldOutLoss, held_out_recipes
from megaptm.run.selected import find_best
from megaptm.track import read_metrics
from tests.bad_input.commands import user_error
from tests.commands import run_command
from tests.drills.program import arguments, checkpoints
from tests.forked import megaptm
from tests.train.runs import save_untrained

STEPS = 5
SETTINGS = (
    *(f"train.steps={STEPS}", "checkpoint.every=1", "checkpoint.asynchronous=false", "train.validate_every=1"),
    *("optimizer.warmup_steps=0", "optimizer.decay=constant", "optimizer.lr=0.3"),
)


@pytest.fixture(scope="module")
def run(real_corpus, tmp_path_factory):
    """Run with a rate at which the loss soon rises, stopped in between."""
    folder = tmp_path_factory.mktemp("keep") / "run"
    keep = "checkpoint.keep={last: 1, every: 3, best: 1}"
    words = arguments("gpt2", folder, real_corpus("byte-bpe"), *SETTINGS, keep)
    megaptm("train", *words, "train.stop_at=4", code=75)
    megaptm("train", folder, "train.stop_at=null")
    return folder


def validation_losses(run):
    return {record["step"]: record["validation/loss"] for record in read_metrics(run) if "validation/loss" in record}


def test_run_retains_multiples_and_the_best(run):
    losses = validation_losses(run)
    best = min(losses, key=losses.get)
    assert best not in (3, STEPS)
    assert checkpoints(run) == sorted({best, 3, STEPS})


def test_list_has_steps_sizes_and_losses(run):
    listed = json.loads(run_command(list_checkpoints_command, run, "--json"))
    losses = validation_losses(run)
    assert [row["step"] for row in listed["checkpoints"]] == checkpoints(run)
    assert [row["validation_loss"] for row in listed["checkpoints"]] == [losses[step] for step in checkpoints(run)]
    assert {row["problem"] for row in listed["checkpoints"]} == {None}
    assert f"step {STEPS:>10,}" in run_command(list_checkpoints_command, run)


def test_number_is_the_number_of_newest(real_corpus, tmp_path):
    words = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *SETTINGS, "checkpoint.keep=2")
    megaptm("train", *words, "train.steps=4")
    assert checkpoints(tmp_path / "run") == [3, 4]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["checkpoint.keep=3"], (3, None, 0)),
        (["checkpoint.keep=3", "checkpoint.keep.best=1"], (3, None, 1)),
        (["checkpoint.keep={every: 50, best: 1}", "checkpoint.keep=4"], (4, 50, 1)),
    ],
)
def test_number_sets_the_newest_only(overrides, expected):
    keep = load_config("gpt2/tiny", ["train.validate_every=100", *overrides]).checkpoint.keep
    assert (keep.last, keep.every, keep.best.count) == expected


def test_best_needs_validation_at_each_checkpoint(real_corpus, tmp_path):
    words = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *SETTINGS, "checkpoint.keep.best=1")
    assert "checkpoint.every (1) must be a multiple of train.validate_every (2): change one" in user_error(
        "train", *words, "train.validate_every=2"
    )


@pytest.fixture
def untrained(real_corpus, tmp_path):
    run, _ = save_untrained("gpt2", tmp_path / "run", real_corpus("byte-bpe"))
    return run


def test_verify_names_the_damaged_checkpoint(untrained):
    assert "step 7: undamaged" in run_command(verify_checkpoints_command, untrained)
    [file] = untrained.glob("checkpoints/step-00000007/*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    result = CliRunner().invoke(verify_checkpoints_command, [str(untrained)])
    assert "step 7: " in result.output
    assert "its sha256 differs from its index" in result.output
    assert "1 of the checkpoints in" in str(result.exception)
    assert [path.name for path in (untrained / "checkpoints").iterdir()] == ["step-00000007"]


def test_verify_refuses_an_unknown_step(untrained):
    assert "--step 8: " in user_error("checkpoint", "verify", untrained, "--step", "8")


def test_run_without_checkpoints_is_named(untrained):
    (untrained / "checkpoints/step-00000007").rename(untrained / "elsewhere")
    assert "has no checkpoint yet" in user_error("checkpoint", "list", untrained)


def test_losses_of_another_recipe_are_not_compared():
    """Halved rates, kept checkpoints and `@best`: a phase on other data begins after step 20."""
    first = HeldOutLoss({"": "first", "news": "first"})
    for step, loss in ((10, 2.0), (20, 1.0)):
        first.add(step, {"loss": loss, "news/loss": -loss})
    second = HeldOutLoss({"": "second", "news": "second"})
    second.restore(json.loads(json.dumps(asdict(first))))
    for step, loss in ((30, 5.0), (40, 4.0)):
        second.add(step, {"loss": loss, "news/loss": -loss})
    assert second.rose is None
    by_set = KeepConfig(best={"count": 1, "metric": "validation/news/loss"})
    retained = [second.retained_steps([10, 20, 30, 40], keep) for keep in (KeepConfig(best=1), by_set)]
    assert retained == [{20, 40}, {10, 30}]
    assert second.best_step([10, 20, 30, 40], "validation/loss") == 40


def test_nan_is_not_the_best_loss():
    """Lightning's issues 1008 and 2636: a comparison with NaN is false, so that sorting put step 1 before step 3."""
    losses = HeldOutLoss()
    for step, loss in ((1, 3.0), (2, math.nan), (3, 2.0)):
        losses.add(step, {"loss": loss})
    assert losses.best_step([1, 2, 3], "validation/loss") == 3
    assert losses.retained_steps([1, 2, 3], KeepConfig(best=1)) == {3}
    losses.add(4, {"loss": math.nan})
    losses.add(5, {"loss": 2.5})
    assert losses.rose == 5


def test_invalid_losses_of_a_checkpoint_are_ignored(tmp_path):
    (folder := tmp_path / FOLDER / "step-00000004").mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps({"state": {FIELD: [1.0]}}))
    assert find_best(tmp_path, [4]) is None


def test_losses_of_the_wrong_types_do_not_end_a_run():
    losses = HeldOutLoss()
    losses.restore({"last": 10**400, "losses": {"loss": {"4": 1.0, "9" * 5000: 1.0}}, "recipes": {"4": {"": []}}})
    assert losses.last is None
    assert losses.retained_steps([4], KeepConfig(best=1)) == {4}


def test_a_changed_set_leaves_the_losses_of_the_mix():
    before = load_config("gpt2/tiny", ["data.mix={books: 1}", "data.validation={news: {corpus: news}}"])
    after = load_config(
        "gpt2/tiny", ["data.mix={books: 1}", "data.validation={news: {corpus: news, batches: 3}, web: {corpus: w}}"]
    )
    first = HeldOutLoss(held_out_recipes(before))
    first.add(10, {"loss": 1.0, "news/loss": 1.0})
    second = HeldOutLoss(held_out_recipes(after))
    second.restore(json.loads(json.dumps(asdict(first))))
    assert second.last == 1.0
    second.add(20, {"loss": 2.0, "news/loss": 2.0, "web/loss": 2.0})
    assert (second.rose, second.best_step([10, 20], "validation/loss")) == (20, 10)
    assert second.best_step([10, 20], "validation/news/loss") == 20


def test_unknown_metric_of_the_best_is_named(real_corpus, tmp_path):
    words = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *SETTINGS)
    output = megaptm("train", *words, "checkpoint.keep.best.metric=validation/los", code=2)
    assert "checkpoint.keep.best.metric (validation/los) is no metric of this run" in output
