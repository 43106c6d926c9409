"""Tags of checkpoints, and the commands that compare, remove and copy them."""

import json
import shutil

import pytest
from safetensors.torch import load_file

from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tags import add_tag, find_tagged
from megaptm.commands.checkpoint import (
    copy_checkpoint_command,
    diff_checkpoints_command,
    list_checkpoints_command,
    prune_checkpoints_command,
    tag_checkpoint_command,
    verify_checkpoints_command,
)
from megaptm.resilience.lock import LAUNCH_FILE, RunLock
from megaptm.run.branch import Branch
from megaptm.storage import file_sha256, list_files
from tests.bad_input.commands import content, user_error
from tests.commands import run_command
from tests.drills.program import arguments, checkpoints, losses
from tests.forked import megaptm
from tests.train.runs import save_untrained

STEPS = 4
SETTINGS = (
    *(f"train.steps={STEPS}", "checkpoint.every=1", "checkpoint.asynchronous=false", "train.validate_every=1"),
    *("optimizer.warmup_steps=0", "optimizer.decay=constant", "checkpoint.keep=9"),
)


@pytest.fixture(scope="module")
def original(real_corpus, tmp_path_factory):
    """Run with a checkpoint of each step, whose last one has another learning rate."""
    folder = tmp_path_factory.mktemp("commands") / "run"
    megaptm("train", *arguments("gpt2", folder, real_corpus("byte-bpe"), *SETTINGS, "train.stop_at=3"), code=75)
    megaptm("train", folder, "train.stop_at=null", "optimizer.lr=5e-4", "--change")
    return folder


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def test_tagged_checkpoint_is_retained_and_named(run):
    """Also by a job that read the tags before."""
    run_command(tag_checkpoint_command, f"{run}@2", "decay-start")
    store = CheckpointStore(run, keep=1, fence=lambda: True)
    assert store.removable() == [3, 1]
    run_command(tag_checkpoint_command, f"{run}@1", "first")
    for step in (3, 1):
        store.remove(step)
    assert checkpoints(run) == [1, 2, STEPS]
    assert "tags decay-start" in run_command(list_checkpoints_command, run)
    branch = Branch.parse([f"run={run}-branch", f"from={run}@decay-start"])
    assert branch.create()
    assert checkpoints(branch.run) == [2]
    assert find_tagged(branch.run) == {}


def test_one_tag_of_two_checkpoints_retains_both(run):
    """Two commands at once can give it to two."""
    for step in (1, 2):
        (run / f"checkpoints/step-{step:08d}/tag.final").touch()
    assert CheckpointStore(run, keep=1, fence=lambda: True).removable() == [3]


def test_tagged_checkpoint_returns_after_its_removal_was_interrupted(run):
    run_command(tag_checkpoint_command, f"{run}@2", "final")
    folder = run / "checkpoints/step-00000002"
    folder.rename(folder.with_suffix(".removed-0123abcd"))
    CheckpointStore(run, fence=lambda: True).take_over()
    assert find_tagged(run) == {"final": 2}


def test_removed_tag_keeps_nothing(run):
    add_tag(run, 2, "final")
    run_command(tag_checkpoint_command, run, "final", "--remove")
    assert CheckpointStore(run, keep=1).removable() == [3, 2, 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tag", "{0}@2", "100"], "'100' is not a tag"),
        (["tag", "{0}@2", "best"], "'best' is not a tag"),
        (["tag", "{0}@2", "../x"], "'../x' is not a tag"),
        (["tag", "{0}@2", "mine"], "mine is the tag of step 1: remove it there first"),
        (["tag", "{0}", "other", "--remove"], "has no tag other; its tags are mine."),
        (["diff", "{0}@1", "{0}@other"], "there is no such tag; its tags are mine, and its checkpoints are of steps"),
        (["diff", "{0}@1", "{0}@9"], "there is no checkpoint of that step"),
        (["prune", "{0}", "checkpoint.keep=1"], "add --yes to remove them"),
        (["prune", "{0}", "train.steps=2"], "train.steps=2: only checkpoint.keep and its keys"),
    ],
)
def test_mistakes_have_a_sentence(run, words, sentence):
    add_tag(run, 1, "mine")
    assert sentence in user_error("checkpoint", *(word.format(run) for word in words))
    assert checkpoints(run) == [1, 2, 3, STEPS]


def test_diff_has_keys_and_distances(original):
    result = json.loads(run_command(diff_checkpoints_command, f"{original}@3", original, "--json"))
    assert result["steps"] == [3, STEPS]
    assert result["samples"] == [36, 48]
    assert result["config"]["optimizer.lr"] == [1e-3, 5e-4]
    before, after = (load_file(original / f"checkpoints/step-{step:08d}/rank-00000.safetensors") for step in (3, STEPS))
    names = [name for name in before if name.startswith("weight/embed.")]
    distance = sum((after[name].double() - before[name]).square().sum() for name in names) ** 0.5
    norm = sum(before[name].double().square().sum() for name in names) ** 0.5
    embed = result["groups"]["embed"]
    assert embed["distance"] == pytest.approx(distance.item(), rel=1e-9)
    assert embed["relative"] == pytest.approx((distance / norm).item(), rel=1e-9)
    assert "optimizer.lr: 0.001 -> 0.0005" in run_command(diff_checkpoints_command, f"{original}@3", original)


def test_diff_of_other_models_lists_their_weights(original, real_corpus, tmp_path):
    other, _ = save_untrained("gpt2", tmp_path / "other", real_corpus("byte-bpe"), "model.layers=1", "model.width=16")
    result = json.loads(run_command(diff_checkpoints_command, original, other, "--json"))
    assert "embed.token.weight" in result["other_shapes"]
    assert "decoder.1.ffn.up.weight" in result["only_a"]
    assert not [name for name in result["only_a"] if name.startswith(("embed.", "decoder.0."))]
    assert result["only_b"] == []


def test_prune_applies_the_rules_once(run):
    copied = shutil.copytree(run / "checkpoints/step-00000002", run / "checkpoints/step-00000002.bak")
    add_tag(run, 1, "mine")
    assert "removed 2 checkpoints" in run_command(prune_checkpoints_command, run, "checkpoint.keep=1", "--yes")
    assert checkpoints(run) == [1, STEPS]
    assert (copied / "manifest.json").exists()
    assert run_command(prune_checkpoints_command, run, "--yes") == "nothing to remove\n"


def test_run_is_not_locked_while_prune_asks(run, monkeypatch):
    def confirm(question, remedy):
        with RunLock(run, file=LAUNCH_FILE), RunLock(run):
            return True

    monkeypatch.setattr("megaptm.commands.checkpoint.confirm", confirm)
    assert "removed 3 checkpoints" in run_command(prune_checkpoints_command, run, "checkpoint.keep=1")


def test_prune_refuses_a_run_that_trains_or_is_damaged(run):
    with RunLock(run):
        assert "in use" in user_error("checkpoint", "prune", run, "checkpoint.keep=1", "--yes")
    [file] = run.glob(f"checkpoints/step-{STEPS:08d}/*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "the newest checkpoint is damaged" in user_error("checkpoint", "prune", run, "checkpoint.keep=1", "--yes")
    assert checkpoints(run) == [1, 2, 3, STEPS]


def test_copy_continues_as_the_run_does(original, tmp_path):
    run_command(copy_checkpoint_command, f"{original}@2", tmp_path / "copy")
    assert "step 2: undamaged" in run_command(verify_checkpoints_command, tmp_path / "copy")
    megaptm("train", f"run={tmp_path / 'branch'}", f"from={tmp_path / 'copy'}@2", "train.stop_at=3", code=75)
    assert losses(tmp_path / "branch")[3] == losses(original)[3]


def test_copy_to_an_object_store_is_verified_and_sent_once(original, faults):
    url = "s3://corpora/copies/run"
    run_command(copy_checkpoint_command, f"{original}@2", url)
    folder = "checkpoints/step-00000002"
    hashes = {name: file_sha256(f"{url}/{folder}/{name}") for name in list_files(f"{url}/{folder}")}
    assert hashes == {path.name: file_sha256(str(path)) for path in (original / folder).iterdir()}
    assert list_files(f"{url}/tokenizer").keys() == list_files(str(original / "tokenizer")).keys()
    faults.requests.clear()
    run_command(copy_checkpoint_command, f"{original}@2", url)
    assert not [request for request in faults.requests if "PUT" in str(request)]


@pytest.mark.parametrize("selector", ["@2", ""])
def test_copy_comes_back_from_an_object_store(original, tmp_path, faults, selector):
    url = "s3://corpora/copies/returned"
    run_command(copy_checkpoint_command, f"{original}@2", url)
    assert "step 2: copied" in run_command(copy_checkpoint_command, f"{url}{selector}", tmp_path / "back")
    folder = "checkpoints/step-00000002"
    assert content(tmp_path / "back" / folder) == content(original / folder)
    assert content(tmp_path / "back/tokenizer") == content(original / "tokenizer")
    assert (tmp_path / "back/config.yaml").read_bytes() == (original / "config.yaml").read_bytes()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("s3://corpora/copies/nothing", "has no copied checkpoint: check the URL."),
        ("s3://corpora/copies/nothing@7", "has no copied checkpoint of step 7: check the URL."),
        ("s3://corpora/copies/nothing@best", "after @ comes a step, not best"),
    ],
)
def test_missing_copy_is_named(tmp_path, faults, source, sentence):
    assert sentence in user_error("checkpoint", "copy", source, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_copy_refuses_damage_and_other_runs(run, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.yaml").write_text("run: other\n")
    assert "has a config.yaml that is not that of" in user_error("checkpoint", "copy", run, tmp_path / "other")
    [file] = run.glob("checkpoints/step-00000002/*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "its sha256 differs" in user_error("checkpoint", "copy", f"{run}@2", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
