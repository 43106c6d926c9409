"""A run on a disk that fills up goes on without saving. Its end is one sentence, earlier checkpoints are intact, and it
continues with space."""

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
# Enough for logs, too little for a checkpoint of 600 kB.
LEFT_BYTES = 200 << 10


@dataclass
class FullDiskOutcome:
    """Run of twenty steps: stopped after ten, started with little space, with none, and with enough."""

    run: Path
    filling_run: CompletedProcess[str]
    """Another run, whose first checkpoint fills the disk while two processes train."""
    left_files: list[str]
    short_of_space: CompletedProcess[str]
    saved: int
    full_disk: CompletedProcess[str]
    config_unchanged: bool
    end: int


@pytest.fixture(scope="module")
def outcome(tmp_path_factory, real_corpus):
    disk, corpus = tmp_path_factory.mktemp("disk"), real_corpus("byte-bpe")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system that can be filled")
    try:
        yield run_jobs(disk, corpus)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def run_jobs(disk, corpus):
    run, ballast = disk / "run", disk / "ballast"
    words = arguments("gpt2", run, corpus, "train.steps=20", "checkpoint.every=10", "model.layers=2")
    assert finish("train", *words, "train.stop_at=10").returncode == 75
    _fill(ballast, leaving=LEFT_BYTES)
    other = disk / "other"
    often = ("train.steps=40", "checkpoint.every=5", "model.layers=2", "layout.pipeline=2")
    filling_run = finish("train", *arguments("gpt2", other, corpus, *often))
    left_files = [path.name for path in (other / "checkpoints").iterdir()]
    shutil.rmtree(other)
    short_of_space = finish("train", *words)
    saved = open_checkpoint(run, step=10).step  # verifies its hashes
    _fill(ballast, leaving=0)
    before = (run / "config.yaml").read_bytes()
    full_disk = finish("train", *words)
    unchanged = before == (run / "config.yaml").read_bytes()
    ballast.unlink()
    return FullDiskOutcome(
        run,
        filling_run,
        left_files,
        short_of_space,
        saved,
        full_disk,
        unchanged,
        finish("train", *words).returncode,
    )


def _fill(ballast, *, leaving):
    status = os.statvfs(ballast.parent)
    with ballast.open("ab") as file:
        file.write(bytes(status.f_bavail * status.f_frsize - leaving))


def test_run_on_a_full_disk_goes_on_without_saving(outcome):
    assert outcome.filling_run.returncode == 2
    warnings = [
        line for line in outcome.filling_run.stderr.splitlines() if " was not saved: cannot write rank-0000" in line
    ]
    assert [f"step {step} was" in warning for step, warning in zip(range(5, 41, 5), warnings, strict=False)] == [
        True
    ] * 8
    [sentence] = [line for line in outcome.filling_run.stderr.splitlines() if line.startswith("error: ")]
    assert sentence.startswith("error: the run ends at step 40, which was not saved: cannot write rank-0000")
    assert "Traceback" not in outcome.filling_run.stderr
    assert outcome.left_files == []


def test_too_little_space_is_one_sentence(outcome):
    assert outcome.short_of_space.returncode == 2
    [sentence] = [line for line in outcome.short_of_space.stderr.splitlines() if line.startswith("error: ")]
    assert "the checkpoint of step 20 needs" in sentence
    assert "a lower checkpoint.keep frees nothing" in sentence
    assert "Traceback" not in outcome.short_of_space.stderr


def test_earlier_checkpoint_is_intact(outcome):
    assert outcome.saved == 10


def test_start_on_full_disk_changes_nothing(outcome):
    assert outcome.full_disk.returncode == 2
    assert outcome.full_disk.stderr.strip() == (
        f"error: no space left on the disk of {outcome.run}: free some space and start again."
    )
    assert outcome.config_unchanged


def test_run_resumes_after_space_is_freed(outcome):
    assert outcome.end == 0
    assert resumed_at(outcome.run) == [10, 10]
    assert checkpoints(outcome.run) == [10, 20]
    done = losses(outcome.run)
    assert [len(done[step]) for step in (10, 11, 20)] == [1, 2, 2]
    assert all(len(set(each)) == 1 for each in done.values())
    assert not [path for path in (outcome.run / "checkpoints").iterdir() if path.suffix]
