"""Checkpoints that are copied to an object store behind training, and runs that continue from there."""

import shutil
import threading

import pytest

from megaptm.resilience.events import Events, UploadEvent, read_events
from megaptm.storage import read_file
from megaptm.train.behind_training import BehindTraining
from tests.drills.program import arguments, checkpoints, losses, resumed_at
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
    megaptm("train", *words)
    assert [event["step"] for event in events_of(run, "download")] == resumed_at(run) == [3]
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
        copies = BehindTraining("upload", work, UploadEvent, events)
        copies.begin(1)
        assert started.wait(60)
        copies.begin(2)
        copies.begin(3)
        assert copies.steps == {1, 3}
        release.set()
        copies.wait()
    assert (done, copies.steps) == ([1, 3], set())
    problems = {event["step"]: event["problem"] for event in events_of(tmp_path, "upload")}
    assert problems == {1: None, 2: "it was not begun before step 3 was saved", 3: None}


def test_damaged_copy_is_not_continued(real_corpus, tmp_path):
    words = arguments(
        "gpt2", tmp_path / "run", real_corpus("byte-bpe"), *KEYS, f"checkpoint.upload_to={tmp_path}/copies"
    )
    megaptm("train", *words, "train.steps=1")
    shutil.rmtree(tmp_path / "run")
    file = tmp_path / "copies/run/checkpoints/step-00000001/rank-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert "rank-00001.safetensors is damaged: copy it there again" in megaptm("train", *words, code=2)
    assert checkpoints(tmp_path / "run") == []
