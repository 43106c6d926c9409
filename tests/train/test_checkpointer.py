"""All ranks search for the newest valid checkpoint together, and save together. On real ranks."""

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.checkpoint.test_store import always, change_byte, names, save
from tests.ranks import run_ranks

RANKS = 2
FILES = 4


@pytest.fixture
def store(tmp_path):
    from megaptm.checkpoint.store import CheckpointStore

    store = CheckpointStore(tmp_path, keep=2, fence=always)
    for step in (10, 20):
        save(store, step, ranks=FILES)
    return store


def load_newest(run, unreadable):
    """Return the step that this rank loads, or the error, and the files that it verified."""
    import torch.distributed as dist

    from megaptm.checkpoint import files
    from megaptm.checkpoint.checkpoint import Checkpoint
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.errors import UserError
    from megaptm.run.rank import RankEnvironment
    from megaptm.storage import RetryPolicy
    from megaptm.train.checkpointer import newest_checkpoint

    rank, compared = dist.get_rank(), []
    before = files.RETRY, os.preadv, Checkpoint.verify_file

    def verify_file(checkpoint, file, **how):
        compared.append(f"{checkpoint.step} {file.name}")
        before[2](checkpoint, file, **how)

    def preadv(descriptor, *options):
        if unreadable in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return before[1](descriptor, *options)

    Checkpoint.verify_file = verify_file
    if unreadable and rank == 1:
        files.RETRY, os.preadv = RetryPolicy(seconds=0.1, pause=0.01), preadv
    try:
        checkpoint = newest_checkpoint(
            CheckpointStore(Path(run), fence=always if rank == 0 else None), RankEnvironment(rank, RANKS, rank)
        )
        return checkpoint and checkpoint.step, sorted(compared)
    except UserError as error:
        return str(error), sorted(compared)
    finally:
        files.RETRY, os.preadv, Checkpoint.verify_file = before


def test_ranks_verify_their_shares_and_skip_a_damaged_checkpoint(store, tmp_path):
    change_byte(store.folder / "step-00000020" / "rank-00003.safetensors", -1)
    results = run_ranks(RANKS, load_newest, str(tmp_path), "")
    assert results == [
        (10, [f"{step} rank-0000{file}.safetensors" for step in (10, 20) for file in (0, 1)]),
        (10, [f"{step} rank-0000{file}.safetensors" for step in (10, 20) for file in (2, 3)]),
    ]
    assert names(store) == ["step-00000010", "step-00000020.damaged"]


def test_unreadable_file_on_one_rank_is_an_error_on_all(store, tmp_path):
    (first, _), (second, _) = run_ranks(RANKS, load_newest, str(tmp_path), "step-00000020/rank-00003")
    assert first == second
    assert "rank-00003.safetensors could not be reached" in first
    assert "no data was lost" in first
    assert names(store) == ["step-00000010", "step-00000020"]


def test_missing_checkpoints_of_the_journal_are_an_error(store, tmp_path):
    from megaptm.resilience.events import CheckpointEvent, Events

    with Events(tmp_path) as events:
        events.write(CheckpointEvent(step=20, bytes=1, seconds=1.0))
    store.folder.rename(tmp_path / "unmounted")
    message, _ = run_ranks(1, load_newest, str(tmp_path), "")[0]
    assert "has a checkpoint of step 20, but" in message
    assert "disk is mounted" in message


def save_while_the_storage_waits(run):
    """Return the saved steps before and after the storage of the run responds."""
    from megaptm.checkpoint.host_staging import HostStaging
    from megaptm.checkpoint.store import CheckpointStore
    from megaptm.parallel.background import Background
    from megaptm.resilience.events import Events
    from megaptm.run.rank import RankEnvironment
    from megaptm.train.checkpointer import Checkpointer
    from tests.checkpoint.test_store import pieces

    answers = threading.Event()

    class SlowStore(CheckpointStore):
        def _clean_up(self):
            assert answers.wait(timeout=10.0)
            super()._clean_up()

    class Saver(Checkpointer):
        def __init__(self):
            self.store, self.events = SlowStore(run, fence=always), Events(Path(run))
            self.engine = SimpleNamespace(pieces=lambda: pieces(2, 0, ranks=1))
            self.rank_env = RankEnvironment(0, 1, 0)
            self.callbacks, self._background, self._copies = SimpleNamespace(committed=[]), Background(), HostStaging()
            self.copies, self.timer, self.step = [], None, 0

        def _build_state(self, step):
            return {}

    saver = Saver()
    saver.save(2, wait=False)
    before = saver.store.steps()
    answers.set()
    saver.finish()
    return before, saver.store.steps()


def test_save_does_not_wait_for_storage(tmp_path):
    assert run_ranks(1, save_while_the_storage_waits, str(tmp_path)) == [([], [2])]
