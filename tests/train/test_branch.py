"""Branches of a run, and its return to an earlier checkpoint."""

import json
import os
import shutil

import pytest

from megaptm.config import load_config
from megaptm.config.learning_rate import learning_rate_at
from megaptm.errors import UserError
from megaptm.report.summary import report_run
from megaptm.resilience.events import BackEvent, ChangeEvent, Events, last_saved_step, read_events
from megaptm.resilience.lock import RunLock
from megaptm.run.back import go_back
from megaptm.run.branch import Branch
from megaptm.run.folder import prepare_run_folder, read_config
from megaptm.track import read_metrics
from megaptm.track.journal import UploadState
from tests.bad_input.commands import content, user_error
from tests.drills.program import arguments, checkpoints, finish, losses, resumed_at
from tests.forked import megaptm

STEPS = 6
CONSTANT = (
    *(f"train.steps={STEPS}", "checkpoint.every=2", "checkpoint.keep=9", "checkpoint.asynchronous=false"),
    *("optimizer.warmup_steps=0", "optimizer.decay=constant", "train.validate_every=2"),
)
DECAY = ("optimizer.decay=linear", "optimizer.stable_steps=4")


class Runs:
    """Runs of one tiny GPT-2; `original` has all steps."""

    def __init__(self, folder, corpus):
        self.folder, self.corpus = folder, corpus
        self.original = self.train("original", *CONSTANT)

    def train(self, name, *more, code=0):
        megaptm("train", *arguments("gpt2", self.folder / name, self.corpus, *more), code=code)
        return self.folder / name

    def branch(self, name, selector, *more, code=0):
        megaptm("train", f"run={self.folder / name}", f"from={self.original}{selector}", *more, code=code)
        return self.folder / name

    def copy(self, name):
        return shutil.copytree(self.original, self.folder / name)

    def back(self, name, step, *more, skip=0, code=0):
        """Return a copy of the original to a step, as `--back-to` does before the processes start, and train it."""
        run = self.copy(name)
        go_back(run, step, skip=skip, overrides=more)
        megaptm("train", run, *more, code=code)
        return run


@pytest.fixture(scope="module")
def runs(real_corpus, tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("branch"), real_corpus("byte-bpe"))


def events_of(run, kind):
    return [event for event in read_events(run) if event["kind"] == kind]


def newest_losses(run):
    return {step: each[-1] for step, each in losses(run).items()}


# Branches


def test_branch_equals_a_run_with_its_schedule_from_the_start(runs):
    """A decay branch of a stable run, stopped in between; the original does not change."""
    before = content(runs.original)
    branch = runs.branch("decay", "@4", *DECAY, "train.stop_at=5", code=75)
    runs.branch("decay", "@4", "train.stop_at=null")
    assert losses(branch) == losses(runs.train("stable", *CONSTANT, *DECAY))
    assert resumed_at(branch) == [4, 5]
    assert content(runs.original) == before


def test_branch_says_what_it_keeps_when_it_first_starts(runs):
    words = (f"run={runs.folder / 'told'}", f"from={runs.original}@4")
    origin = f"branch of {runs.original} at step 4: keeps weights, moments, read position, schedule and history"
    assert origin in megaptm("train", *words, "train.stop_at=5", code=75)
    assert origin not in megaptm("train", *words, "train.stop_at=null")
    assert origin in megaptm("report", runs.folder / "told")


def test_branch_has_the_history_and_links_the_checkpoint(runs):
    branch = runs.branch("linked", "@2", "optimizer.lr=1e-4", "train.stop_at=3", code=75)
    records = [record["step"] for record in read_metrics(branch) if "loss" in record]
    assert records == [1, 2, 3]
    assert [event["step"] for event in events_of(branch, "branch") + events_of(branch, "change")] == [2, 2]
    shard = "checkpoints/step-00000002/rank-00000.safetensors"
    assert os.path.samefile(branch / shard, runs.original / shard)


def test_branch_copies_where_links_are_impossible(runs, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *paths: (_ for _ in ()).throw(PermissionError(1, "no links")))
    branch = Branch.parse([f"run={runs.folder / 'copied'}", f"from={runs.original}"])
    assert branch.create()
    name = f"checkpoints/step-{STEPS:08d}/manifest.json"
    assert (branch.run / name).read_bytes() == (runs.original / name).read_bytes()
    assert not os.path.samefile(branch.run / name, runs.original / name)


def test_best_has_the_lowest_validation_loss(runs):
    validated = {
        record["step"]: record["validation/loss"]
        for record in read_metrics(runs.original)
        if "validation/loss" in record
    }
    branch = runs.branch("best", "@best", "train.steps=9", "train.stop_at=7", code=75)
    assert [event["step"] for event in events_of(branch, "branch")] == [min(validated, key=validated.get)]


def test_weights_only_starts_a_new_optimizer_at_step_0(runs):
    branch = runs.branch("weights", "@4", "--weights-only", "train.steps=2")
    init = f"train.init_from={runs.original}"
    assert losses(branch) == losses(runs.train("init", *CONSTANT, init, "train.init_step=4", "train.steps=2"))


def test_weights_only_has_no_steps_of_the_source(runs):
    """A batch that was changed at the last step is the batch of all steps of the new run."""
    source, batch = runs.copy("source"), 2 * load_config(runs.original / "config.yaml").train.batch
    megaptm("train", source, "train.steps=7", f"train.batch={batch}", "optimizer.restarts=[6]", "--change")
    assert load_config(source / "config.yaml").train.ramp is not None
    branch = Branch.parse([f"run={runs.folder / 'again'}", f"from={source}"], weights_only=True)
    branch.create()
    config = load_config(branch.run / "config.yaml")
    assert (config.train.batch, config.train.ramp, [*config.optimizer.restarts]) == (batch, None, [])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["from={0}@4", "train.steps=4"], "the branch starts after step 4, and train.steps is 4, so no step is left"),
        (["from={0}@3"], "from={0}@3: there is no checkpoint of that step; its checkpoints are of steps 2, 4, 6."),
        (
            ["from={0}@newest"],
            "@newest: there is no such tag; its tags are none, and its checkpoints are of steps 2, 4, 6.",
        ),
        (["from={0}/nothing"], "from={0}/nothing is not the folder of a run"),
        (["from={0}@4", "model.layers=1"], "model.layers is 1"),
        (["from={0}@4", "--back-to", "2"], "--back-to is for a run, and from= creates another"),
        (["--weights-only"], "--weights-only needs from=RUN"),
    ],
)
def test_invalid_branch_is_refused_and_leaves_nothing(runs, words, sentence):
    expected = sentence.format(runs.original)
    assert expected in user_error(
        "train", f"run={runs.folder / 'refused'}", *(word.format(runs.original) for word in words)
    )
    assert not (runs.folder / "refused").exists()


@pytest.mark.parametrize("launcher", ["slurm", "ray"])
@pytest.mark.parametrize("words", [["from={0}@4"], ["--back-to", "2"]])
def test_dry_run_of_a_launcher_changes_nothing(runs, launcher, words):
    before = content(runs.original)
    target = runs.original if "--back-to" in words else f"run={runs.folder / 'refused'}"
    command = [target, *(word.format(runs.original) for word in words), "--dry-run"]
    assert "--dry-run changes nothing" in user_error("launch", launcher, *command)
    assert content(runs.original) == before
    assert not (runs.folder / "refused").exists()


def test_best_needs_validation(runs):
    run = runs.copy("without-validation")
    manifest = max(run.glob("checkpoints/*/manifest.json"))
    written = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(written | {"state": written["state"] | {"held_out": {}}}))
    output = user_error("train", f"run={runs.folder / 'refused'}", f"from={run}@best")
    assert "@best: no checkpoint has a validation loss (train.validate_every)" in output


def test_folder_of_another_run_is_not_a_branch(runs):
    other = runs.copy("other")
    assert "exists already, and is no branch of" in user_error("train", f"run={other}", f"from={runs.original}@4")


def create(run, source, selector="", **options):
    branch = Branch.parse([f"run={run}", f"from={source}{selector}"], **options)
    branch.create()
    return branch.run


@pytest.fixture(scope="module")
def cosine(runs):
    """A run whose learning rate decays over its 4 steps, continued for 4 steps from a restart of the rate."""
    cosine = ("train.steps=4", "optimizer.warmup_steps=0", "optimizer.decay=cosine")
    run = runs.train("cosine", *CONSTANT, *cosine)
    recipe = read_config(run)
    prepare_run_folder(read_config(run, ["train.steps=8", "optimizer.restarts=[4]"]))
    return run, [learning_rate_at(recipe, step) for step in range(4)]


@pytest.mark.parametrize("operation", ["branch", "return"])
def test_learning_rate_of_a_run_that_was_extended_later(runs, cosine, operation):
    original, rates = cosine
    run = runs.folder / f"cosine-{operation}"
    if operation == "branch":
        create(run, original, "@2")
    else:
        shutil.copytree(original, run)
        go_back(run, 2)
    config = read_config(run)
    assert [learning_rate_at(config, step) for step in range(4)] == rates
    assert config.train.steps == 4


@pytest.mark.parametrize("original", ["moved", "removed"])
def test_branch_has_its_own_mlflow_run(runs, original):
    source = runs.copy(f"tracked-{original}")
    state = UploadState(uri="http://server", experiment="mine", run_id="abc", uploaded_bytes=9)
    state.write(source)
    if original == "moved":
        source = source.rename(source.with_name("tracked-elsewhere"))
    branch = create(runs.folder / f"own-{original}", source, "@2")
    shutil.rmtree(source)
    own = UploadState.read(branch, uri="http://server", experiment="mine")
    assert own.job != state.job
    assert (own.run_id, own.uploaded_bytes, own.parent) == (None, 0, "abc")


@pytest.mark.parametrize("link", ["tokenizer", "tokenizer/x"])
def test_branch_copies_no_file_of_the_user(runs, link):
    source = runs.copy(f"links-{len(link)}")
    (source.parent / "private").mkdir(exist_ok=True)
    if link == "tokenizer":
        shutil.rmtree(source / link)
    (source / link).symlink_to(source.parent / "private")
    with pytest.raises(UserError, match=f"{link} is a link to .*private"):
        create(runs.folder / "refused", source)
    assert not (runs.folder / "refused").exists()


def test_events_of_abandoned_steps_are_not_in_a_branch(runs):
    source = runs.copy("went-back")
    with Events(source) as events:
        events.write(ChangeEvent(step=4, before={"optimizer.lr": 1.0}, after={"optimizer.lr": 2.0}))
        events.write(BackEvent(step=2, from_step=6))
        events.write(ChangeEvent(step=4, before={"optimizer.lr": 1.0}, after={"optimizer.lr": 3.0}))
    branch = create(runs.folder / "of-went-back", source, "@6")
    assert [event["after"] for event in events_of(branch, "change")] == [{"optimizer.lr": 3.0}]


def test_file_is_no_folder_for_a_branch(runs):
    (runs.folder / "file").write_text("of the user")
    with pytest.raises(UserError, match=r"file cannot be used \(Not a directory\)"):
        create(runs.folder / "file", runs.original)


def test_weights_only_branch_is_another(runs):
    run = create(runs.folder / "whole", runs.original, "@2")
    with pytest.raises(UserError, match=r"is no branch of .* at 2 with --weights-only"):
        create(run, runs.original, "@2", weights_only=True)


def test_remains_of_killed_commands_are_removed(runs):
    killed, filling, other = (runs.folder / f".remains.branch-{name}" for name in ("0" * 8, "1" * 8, "mine"))
    for folder in (killed, filling, other):
        folder.mkdir()
    with RunLock(filling):
        create(runs.folder / "remains", runs.original)
    assert [folder.exists() for folder in (killed, filling, other)] == [False, True, True]


def damage(run, step):
    path = run / f"checkpoints/step-{step:08d}/manifest.json"
    path.write_bytes(path.read_bytes()[:-9])


def test_damaged_checkpoint_is_no_source(runs):
    run = runs.copy("damaged")
    damage(run, 4)
    before = content(run)
    with pytest.raises(UserError, match=r"manifest\.json is .*: name another step than 4"):
        create(runs.folder / "refused", run, "@4")
    with pytest.raises(UserError, match="name another step than 4"):
        go_back(run, 4)
    assert content(run) == before


# Return


def test_return_replaces_a_link(runs):
    run = runs.copy("linked-config")
    target = runs.folder / "elsewhere.yaml"
    (run / "config.yaml").rename(target)
    before = target.read_bytes()
    os.link(target, run / "config.yaml")
    go_back(run, 2, skip=1)
    assert target.read_bytes() == before


def test_return_stores_the_skipped_batches(runs):
    run = runs.copy("skip-stored")
    go_back(run, 2, skip=3)
    assert read_config(run).train.skip_batches == {2: 3}


def test_return_without_changes_repeats_the_steps(runs):
    run = runs.back("back", 2, "train.stop_at=5", code=75)
    assert last_saved_step(run) == 5
    megaptm("train", run)
    assert resumed_at(run) == [2, 5]
    assert newest_losses(run) == newest_losses(runs.original)
    assert sorted(path.name for path in (run / "checkpoints").glob("*.abandoned")) == [
        "step-00000004.abandoned",
        "step-00000006.abandoned",
    ]


def test_return_with_skipped_data_equals_a_run_that_never_read_it(runs):
    run = runs.back("skipping", 2, skip=3)
    never = runs.train("never", *CONSTANT, "train.skip_batches={2: 3}")
    assert newest_losses(run) == newest_losses(never)
    state = json.loads((run / f"checkpoints/step-{STEPS:08d}/manifest.json").read_text())["state"]
    assert state["samples"] == 12 * (STEPS + 3)


def test_return_restores_the_recipe_of_the_checkpoint(runs):
    run = runs.copy("recipe")
    megaptm("train", run, "train.steps=8", "optimizer.lr=1e-4", "--change")
    changed = newest_losses(run)
    go_back(run, 4, overrides=["train.steps=6"])
    megaptm("train", run, "train.steps=6")
    assert newest_losses(run) == changed | newest_losses(runs.original)
    assert read_config(run).optimizer.lr == 1e-3


def test_return_keeps_what_is_no_part_of_the_recipe(runs):
    run = runs.copy("resources")
    megaptm("train", run, "train.steps=8", "train.stop_at=7", "train.log_every=2", code=75)
    megaptm("train", run, "train.steps=8", "train.stop_at=null")
    go_back(run, 7)
    config = read_config(run)
    assert (config.train.steps, config.train.stop_at, config.train.log_every) == (8, None, 2)


def test_return_by_the_command(runs):
    run = runs.copy("command")
    done = finish("train", str(run), "--back-to", "4", "--skip-data", "1")
    assert done.returncode == 0, done.stderr
    assert (
        "the run returns from step 6 to the checkpoint of step 4; later checkpoints are kept as "
        "step-00000006.abandoned; batches of text skipped there: 1"
    ) in done.stderr
    assert read_config(run).train.skip_batches == {4: 1}
    assert resumed_at(run) == [4]


def test_abandoned_steps_stay_in_the_report(runs, capsys):
    run = runs.back("reported", 2, "train.stop_at=3", code=75)
    report_run(run)
    output = capsys.readouterr().out
    assert f"step 3 of {STEPS}" in output
    assert f"Step 2: return from step {STEPS}" in output
    assert "abandoned" in output
    assert checkpoints(run) == [2, 3]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--back-to", "3"], "--back-to 3: {} has checkpoints of steps 2, 4, 6: name one of these"),
        (["--skip-data", "3"], "--skip-data needs --back-to"),
        (["--back-to", "2", "train.stepz=3"], "unknown key train.stepz"),
        (["--back-to", "2", "model.layers=3"], "model.layers is 3"),
        (["--back-to", "2", "optimizer.lr=1e-4"], "optimizer.lr is 0.0001"),
    ],
)
def test_invalid_return_changes_nothing(runs, words, sentence):
    before = content(runs.original)
    assert sentence.format(runs.original) in user_error("train", runs.original, *words)
    assert content(runs.original) == before


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (2, "`megaptm train run=FOLDER from={0}@2`"),
        (3, "which has checkpoints of steps 2, 4, 6 (`megaptm train run=FOLDER from={0}@STEP`)"),
    ],
)
def test_return_before_the_start_of_a_branch_names_its_parent(runs, step, advice):
    branch = Branch.parse([f"run={runs.folder / f'young-{step}'}", f"from={runs.original}@4"])
    branch.create()
    message = user_error("train", branch.run, "--back-to", str(step))
    assert f"it branched from {runs.original} at step 4" in message
    assert advice.format(runs.original) in message
    assert "checkpoint.keep" not in message
