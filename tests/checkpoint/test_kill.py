"""A writer killed at any moment loses no checkpoint that was acknowledged, and leaves none that is damaged."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch

from megaptm.checkpoint import store as module
from megaptm.checkpoint.store import Store
from megaptm.checkpoint.tensors import TensorPiece
from tests.ranks import PROCESSES

RANKS = 2
ROWS = 1 << 17


def always() -> bool:
    return True


def pieces(step, rank):
    """Half of a matrix of which every element is the step, cut at a place that moves with it."""
    cut = 1 + step % (ROWS - 1)
    start, stop = ((0, cut), (cut, ROWS))[rank]
    return [
        TensorPiece(f"{kind}/w", (ROWS, 4), (start, 0), (stop - start, 4), torch.full((stop - start, 4), float(step)))
        for kind in ("weight", "exp_avg")
    ]


def save(store, step):
    store.prepare(step)
    for rank in range(RANKS):
        store.write(step, rank, pieces(step, rank))
    store.commit(step, {"step": step}, RANKS)


def check_newest(run, acknowledged):
    """The newest checkpoint is whole, and not older than the last one whose commit had returned."""
    newest = Store(run).newest()
    step = newest.step if newest else 0
    assert step >= acknowledged
    for name in ("weight/w", "exp_avg/w") if newest else ():
        assert newest.reader.read(name).eq(step).all()
    return step


def save_for_ever(run, token, say):
    """Save one step after another as fast as possible, and say so when each is committed."""
    torch.set_num_threads(1)
    store = Store(run, keep=2, fence=always, token=token)
    newest = store.newest()
    step = newest.step if newest else 0
    while True:
        say.send(step)
        step += 1
        save(store, step)


@pytest.mark.drill
def test_kill_at_any_moment_leaves_the_last_acknowledged_checkpoint(tmp_path):
    generator = random.Random(0)
    reached, left_behind = 0, 0
    for attempt in range(20):
        hear, say = PROCESSES.Pipe(duplex=False)
        writer = PROCESSES.Process(target=save_for_ever, args=(tmp_path, f"job-{attempt}", say))
        writer.start()
        say.close()
        assert hear.recv() == reached  # what the one before left is what this one continues from
        acknowledged = reached
        for _ in range(attempt % 3):  # so that there is something to lose, however slow the machine
            acknowledged = hear.recv()
        # Past some more commits in some attempts, in the middle of a write in others.
        time.sleep(generator.uniform(0, 0.1))
        writer.kill()
        writer.join()
        try:
            while True:
                acknowledged = hear.recv()
        except EOFError:
            reached = check_newest(tmp_path, acknowledged)
        left_behind += any(".writing-" in folder.name for folder in (tmp_path / "checkpoints").iterdir())
    assert reached > 0
    assert left_behind >= 3, "too few kills hit a write: the drill proves nothing"
    assert not list((tmp_path / "checkpoints").glob("*.damaged*"))


def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_second_save(run, stage):
    """Save one checkpoint, then die at the named stage of saving another (of replacing the first: `set-aside`)."""
    torch.set_num_threads(1)
    store = Store(run, keep=1, fence=always)
    save(store, 1)
    write, rename = module.write_atomically, Path.rename

    def write_or_die(path, content):
        die() if stage == ("manifest" if path.name == "manifest.json" else "record") else write(path, content)

    def rename_or_die(path, target):
        die() if stage == ("replaced" if path.suffix == "" else "rename") else rename(path, target)

    module.write_atomically, Path.rename = write_or_die, rename_or_die
    if stage == "remove":
        module.remove_tree = die
    save(store, 1 if stage in ("replaced", "rename") else 2)


@pytest.mark.parametrize("stage", ["record", "manifest", "replaced", "rename", "remove"])
def test_kill_at_each_stage_of_a_commit(tmp_path, stage):
    writer = PROCESSES.Process(target=die_in_second_save, args=(tmp_path, stage))
    writer.start()
    writer.join(120)
    assert writer.exitcode == -signal.SIGKILL
    # Only the last stage, the removal of the oldest, comes after the commit.
    assert check_newest(tmp_path, 1) == (2 if stage == "remove" else 1)
    store = Store(tmp_path, keep=1, fence=always)
    save(store, 3)
    assert store.steps() == [3]
    assert [path.name for path in store.folder.iterdir()] == ["step-00000003"]
