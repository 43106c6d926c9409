"""A writer that is killed at any time loses no committed checkpoint, and leaves no damaged one."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from megaptm.checkpoint import store as module
from megaptm.checkpoint.store import CheckpointStore
from megaptm.checkpoint.tensors import TensorPiece
from tests.ranks import PROCESSES

RANKS = 2
ROWS = 1 << 17


def always() -> bool:
    return True


def pieces(step, rank):
    """Return one rank's part of a matrix filled with the step. The cut depends on the step."""
    cut = 1 + step % (ROWS - 1)
    start, stop = ((0, cut), (cut, ROWS))[rank]
    return [
        TensorPiece(f"{kind}/w", (ROWS, 4), (start, 0), (stop - start, 4), torch.full((stop - start, 4), float(step)))
        for kind in ("weight", "exp_avg")
    ]


@pytest.fixture(autouse=True)
def rank_per_index(monkeypatch):
    """A checkpoint of two ranks has two indexes."""
    monkeypatch.setattr(module, "RANKS_PER_INDEX", 1)


def save(store, step):
    module.RANKS_PER_INDEX = 1  # in the process of a writer, too
    store.prepare(step)
    for rank in range(RANKS):
        store.write(step, rank, pieces(step, rank))
    for rank in range(RANKS):
        store.write_index(step, rank, RANKS)
    store.commit(step, {"step": step}, RANKS)


def check_newest(run, acknowledged):
    """Check that the newest checkpoint is complete and not older than `acknowledged`; return its step."""
    newest = CheckpointStore(run).newest()
    step = newest.step if newest else 0
    assert step >= acknowledged
    for name in ("weight/w", "exp_avg/w") if newest else ():
        assert newest.reader.read(name).eq(step).all()
    return step


def save_endlessly(run, token, connection):
    """Save one step after another as fast as possible, and send each step after its commit."""
    torch.set_num_threads(1)
    store = CheckpointStore(run, keep=2, fence=always, token=token)
    newest = store.newest()
    step = newest.step if newest else 0
    while True:
        connection.send(step)
        step += 1
        save(store, step)


@pytest.mark.drill
def test_kill_at_random_times(tmp_path):
    generator = random.Random(0)
    reached, num_interrupted_writes = 0, 0
    for attempt in range(20):
        receiver, sender = PROCESSES.Pipe(duplex=False)
        writer = PROCESSES.Process(target=save_endlessly, args=(tmp_path, f"job-{attempt}", sender))
        writer.start()
        sender.close()
        assert receiver.recv() == reached  # it continues from the checkpoint that was found above
        acknowledged = reached
        for _ in range(attempt % 3):  # on a slow machine, too, there is a checkpoint to lose
            acknowledged = receiver.recv()
        # Some attempts end after more commits, others during a write.
        time.sleep(generator.uniform(0, 0.1))
        writer.kill()
        writer.join()
        try:
            while True:
                acknowledged = receiver.recv()
        except EOFError:
            reached = check_newest(tmp_path, acknowledged)
        num_interrupted_writes += any(".writing-" in folder.name for folder in (tmp_path / "checkpoints").iterdir())
    assert reached > 0
    assert num_interrupted_writes >= 3, "too few kills hit a write"
    assert not list((tmp_path / "checkpoints").glob("*.damaged*"))


def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_second_save(run, stage):
    """Save one checkpoint, then die at a stage of saving another, or of replacing the first."""
    torch.set_num_threads(1)
    store = CheckpointStore(run, keep=1, fence=always)
    save(store, 1)
    write, rename, unlink = module.write_atomically, Path.rename, Path.unlink

    def write_or_die(path, content):
        die() if path.name == stage else write(path, content)

    def unlink_or_die(path, *, missing_ok=False):
        die() if (stage, path.name) == ("unlink", "rank-00001.record.json") else unlink(path, missing_ok=missing_ok)

    def rename_or_die(path, target):
        die() if stage == ("replaced" if path.suffix == "" else "rename") else rename(path, target)

    module.write_atomically, Path.rename, Path.unlink = write_or_die, rename_or_die, unlink_or_die
    if stage == "remove":
        module.remove_tree = die
    save(store, 1 if stage in ("replaced", "rename") else 2)


@pytest.mark.parametrize(
    "stage",
    [
        *("rank-00000.record.json", "rank-00001.record.json"),
        *("index-00000.json", "index-00000.record.json", "unlink", "index-00001.json", "index-00001.record.json"),
        *("manifest.json", "replaced", "rename", "remove"),
    ],
)
def test_kill_at_each_stage_of_a_commit(tmp_path, stage):
    writer = PROCESSES.Process(target=die_in_second_save, args=(tmp_path, stage))
    writer.start()
    writer.join(120)
    assert writer.exitcode == -signal.SIGKILL
    # Only the last stage, the removal of the oldest, is after the commit.
    assert check_newest(tmp_path, 1) == (2 if stage == "remove" else 1)
    store = CheckpointStore(tmp_path, keep=1, fence=always)
    save(store, 3)
    assert store.steps() == [3]
    assert [path.name for path in store.folder.iterdir()] == ["step-00000003"]
