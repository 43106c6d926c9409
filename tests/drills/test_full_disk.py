"""A disk that fills up ends a run with one sentence; what was saved is whole, and with room again the run goes on."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from megaptm.run.checkpoint import open_checkpoint
from tests.drills.program import arguments, checkpoints, finish, losses, resumed_at

pytestmark = pytest.mark.drill

DISK_BYTES = 3 << 20
# Enough for what a job says of itself, too little for a checkpoint of 600 kB.
LEFT_BYTES = 200 << 10


@dataclass
class Story:
    """A run of twenty steps that is stopped after ten, finds a disk with little room, none, and enough again."""

    run: Path
    in_the_background: CompletedProcess[str]
    """Of another run, whose first checkpoint fills the disk while two processes train on."""
    left_of_it: list[str]
    short_of_room: CompletedProcess[str]
    saved: int
    without_room: CompletedProcess[str]
    config_unchanged: bool
    end: int


@pytest.fixture(scope="module")
def story(tmp_path_factory, real_corpus):
    disk, corpus = tmp_path_factory.mktemp("disk"), real_corpus("byte-bpe")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system that can be filled")
    try:
        yield _story(disk, corpus)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _story(disk, corpus):
    run, ballast = disk / "run", disk / "ballast"
    words = arguments("gpt2", run, corpus, "train.steps=20", "checkpoint.every=10", "model.layers=2")
    assert finish("train", *words, "train.stop_at=10").returncode == 75
    _fill(ballast, leaving=LEFT_BYTES)
    other = disk / "other"
    often = ("train.steps=200", "checkpoint.every=5", "model.layers=2", "layout.pipeline=2")
    in_the_background = finish("train", *arguments("gpt2", other, corpus, *often))
    left_of_it = [path.name for path in (other / "checkpoints").iterdir()]
    shutil.rmtree(other)
    short_of_room = finish("train", *words)
    saved = open_checkpoint(run, step=10).step  # which compares its hashes
    _fill(ballast, leaving=0)
    before = (run / "config.yaml").read_bytes()
    without_room = finish("train", *words)
    unchanged = before == (run / "config.yaml").read_bytes()
    ballast.unlink()
    return Story(
        run,
        in_the_background,
        left_of_it,
        short_of_room,
        saved,
        without_room,
        unchanged,
        finish("train", *words).returncode,
    )


def _fill(ballast, *, leaving):
    room = os.statvfs(ballast.parent)
    with ballast.open("ab") as file:
        file.write(bytes(room.f_bavail * room.f_frsize - leaving))


def test_a_disk_that_fills_up_while_training_goes_on_is_one_sentence(story):
    assert story.in_the_background.returncode == 2
    [sentence] = [line for line in story.in_the_background.stderr.splitlines() if line.startswith("error: ")]
    assert "cannot write rank-0000" in sentence
    assert "of step 5" in sentence
    assert "Traceback" not in story.in_the_background.stderr
    assert story.left_of_it == []


def test_a_checkpoint_without_room_is_one_sentence(story):
    assert story.short_of_room.returncode == 2
    [sentence] = [line for line in story.short_of_room.stderr.splitlines() if line.startswith("error: ")]
    assert "the checkpoint of step 20 needs" in sentence
    assert "a lower checkpoint.keep frees nothing" in sentence
    assert "Traceback" not in story.short_of_room.stderr


def test_what_was_saved_before_is_whole(story):
    assert story.saved == 10


def test_a_run_that_cannot_even_begin_says_so_and_changes_nothing(story):
    assert story.without_room.returncode == 2
    assert story.without_room.stderr.strip() == (
        f"error: no space left on the disk of {story.run}: free some space and start again."
    )
    assert story.config_unchanged


def test_with_room_again_the_run_goes_on_where_it_was(story):
    assert story.end == 0
    assert resumed_at(story.run) == [10, 10]
    assert checkpoints(story.run) == [10, 20]
    done = losses(story.run)
    assert [len(done[step]) for step in (10, 11, 20)] == [1, 2, 2]
    assert all(len(set(each)) == 1 for each in done.values())
    assert not [path for path in (story.run / "checkpoints").iterdir() if path.suffix]
