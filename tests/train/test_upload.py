"""Checkpoints that are copied to an object store behind training, and runs that continue from there."""

import shutil
import threading

import pytest
import torch

from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from megaptm.commands.checkpoint import copy_checkpoint_command
from megaptm.errors import UserError
from megaptm.resilience.events import Events, UploadEvent, read_events
from megaptm.run import checkpoint_copy
from megaptm.run.checkpoint_copy import copy_checkpoint, fetch_run
from megaptm.run.uploads import TRUSTED
from megaptm.storage import read_file
from megaptm.train.copy_thread import CopyThread
from tests.commands import run_command
from tests.drills.program import arguments, losses, resumed_at
from tests.forked import megaptm

STEPS = 4
KEYS = (f"train.steps={STEPS}", "checkpoint.every=1", "checkpoint.keep=1", "layout.data=2")


def events_of(run, kind):
    return [event for event in read_events(run) if event["kind"] == kind]


@pytest.fixture(scope="module")
def uninterrupted(real_corpus, tmp_path_factory):
    run = tmp_path_factory.mktemp("upload") / "run"
    megaptm("train", *arguments("gpt2", run, real_corpus("byte-bpe"), *KEYS))
    return run


def test_run_continues_from_an_object_store_without_its_disk(uninterrupted, real_corpus, tmp_path, faults):
    """The run is stopped after step 3, and its folder is lost."""
    run = tmp_path / "lost"
    words = arguments("gpt2", run, real_corpus("byte-bpe"), *KEYS, "checkpoint.upload_to=s3://corpora/runs")
    megaptm("train", *words, "train.stop_at=3", code=75)
    assert (events_of(run, "upload")[-1]["step"], events_of(run, "upload")[-1]["problem"]) == (3, None)
    assert read_file("s3://corpora/runs/lost/checkpoints/latest") == b"3"
    shutil.rmtree(run)
    assert "has the checkpoints of an earlier run of this name, up to step 3" in megaptm("train", *words, code=2)
    shutil.rmtree(run)
    run_command(copy_checkpoint_command, "s3://corpora/runs/lost", run)
    megaptm("train", run, "checkpoint.upload_to=s3://corpora/runs", "train.stop_at=null")
    assert resumed_at(run) == [3]
    assert losses(run)[STEPS] == losses(uninterrupted)[STEPS]
    assert read_file("s3://corpora/runs/lost/checkpoints/latest") == str(STEPS).encode()


def test_failed_upload_changes_nothing(uninterrupted, real_corpus, tmp_path):
    """The place of the copies is a file."""
    (tmp_path / "file").touch()
    words = arguments("gpt2", tmp_path / "run", real_corpus("byte-bpe"), *KEYS)
    output = megaptm("train", *words, f"checkpoint.upload_to={tmp_path / 'file'}")
    assert f"the upload of step {STEPS} failed" in output
    assert events_of(tmp_path / "run", "upload")[-1]["problem"] is not None
    assert losses(tmp_path / "run") == losses(uninterrupted)


def test_waiting_checkpoint_is_left_out_for_a_newer_one(tmp_path):
    """Only those that are worked on or wait for it must stay."""
    started, release, done = threading.Event(), threading.Event(), []

    def work(step):
        started.set()
        assert release.wait(60)
        done.append(step)

    with Events(tmp_path) as events:
        copies = CopyThread("upload", work, UploadEvent, events)
        copies.start(1)
        assert started.wait(60)
        copies.start(2)
        copies.start(3)
        assert copies.steps == {1, 3}
        assert not copies.wait(0.2)
        release.set()
        assert copies.wait(60)
    assert (done, copies.steps) == ([1, 3], set())
    problems = {event["step"]: event["problem"] for event in events_of(tmp_path, "upload")}
    assert problems == {1: None, 2: "it had not started when step 3 was saved", 3: None}


def test_copies_of_another_run_are_not_overwritten(real_corpus, tmp_path):
    """Two runs whose folders have one name."""
    key = f"checkpoint.upload_to={tmp_path}/copies"
    runs = [tmp_path / name / "run" for name in "ab"]
    for run in runs:
        words = arguments("gpt2", run, real_corpus("byte-bpe"), *KEYS, "train.steps=2", "train.stop_at=1")
        megaptm("train", *words, *([key] if run == runs[0] else []), code=75)
    output = megaptm("train", runs[1], key, "train.stop_at=null")
    assert "the upload of step 2 failed" in output
    assert "copies/run has a config.yaml that is not that of" in output
    assert str(runs[0]) in (tmp_path / "copies/run/config.yaml").read_text()


def test_destination_of_a_run_folder_needs_permission(real_corpus, tmp_path, monkeypatch):
    """The folder may have been received, and its destination would get the user's login."""
    run, key = tmp_path / "run", f"checkpoint.upload_to={tmp_path}/copies"
    megaptm("train", *arguments("gpt2", run, real_corpus("byte-bpe"), *KEYS), key, "train.stop_at=1", code=75)
    monkeypatch.delenv(TRUSTED, raising=False)
    assert "is named only by the folder" in megaptm("train", run, "train.stop_at=null", code=2)
    megaptm("train", run, "train.stop_at=null", key)
    assert events_of(run, "upload")[-1]["step"] == STEPS


def save(run, step, value):
    """Save a checkpoint with one weight."""
    store = CheckpointStore(run, keep=9, fence=lambda: True)
    store.prepare(step)
    store.write(step, 0, [TensorPiece("weight/w", (4,), (0,), (4,), torch.full((4,), value))])
    store.commit(step, {"value": value}, 1)
    return store


def test_replaced_copy_of_a_step_is_never_mixed(tmp_path, monkeypatch):
    """The run returned to step 1 and saved step 2 again. The node is lost while that is copied."""
    run, target = tmp_path / "run", str(tmp_path / "copies")
    (run / "tokenizer").mkdir(parents=True)
    (run / "config.yaml").write_text(f"run: {run}\n")
    for step, value in ((1, 1.0), (2, 2.0)):
        store = save(run, step, value)
        copy_checkpoint(run, step, target)
    store.abandon(2)
    save(run, 2, 3.0)
    copy_file = checkpoint_copy._copy_file

    def lose_node(path, location, sha256):
        if path.name.startswith("index"):
            raise UserError("the node is lost")
        copy_file(path, location, sha256)

    monkeypatch.setattr(checkpoint_copy, "_copy_file", lose_node)
    with pytest.raises(UserError, match="the node is lost"):
        copy_checkpoint(run, 2, target)
    monkeypatch.undo()
    assert fetch_run(target, tmp_path / "back") == 1
    assert CheckpointStore(tmp_path / "back").newest().state == {"value": 1.0}
    with pytest.raises(UserError, match="no copied checkpoint of step 2"):
        fetch_run(f"{target}@2", tmp_path / "other")
    copy_checkpoint(run, 2, target)
    assert fetch_run(target, tmp_path / "again") == 2
    assert CheckpointStore(tmp_path / "again").newest().reader.read("weight/w").tolist() == [3.0] * 4
