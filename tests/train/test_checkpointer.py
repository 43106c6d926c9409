"""All ranks look for the newest good checkpoint together, and save together. Each case on real ranks."""

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
    from megaptm.checkpoint.store import Store

    store = Store(tmp_path, keep=2, fence=always)
    for step in (10, 20):
        save(store, step, ranks=FILES)
    return store


def look(run, unreadable):
    """The step found by this rank, or why it found none; and the files it compared."""
    import torch.distributed as dist

    from megaptm.checkpoint import files
    from megaptm.checkpoint.store import Checkpoint, Store
    from megaptm.errors import UserError
    from megaptm.run.rank import RankEnvironment
    from megaptm.storage import RetryPolicy
    from megaptm.train.checkpointer import newest

    rank, compared = dist.get_rank(), []
    before = files.RETRY, os.preadv, Checkpoint.verify_file

    def verify_file(checkpoint, file, **how):
        compared.append(f"{checkpoint.step} {file.name}")
        before[2](checkpoint, file, **how)

    def preadv(descriptor, *rest):
        if unreadable in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return before[1](descriptor, *rest)

    Checkpoint.verify_file = verify_file
    if unreadable and rank == 1:
        files.RETRY, os.preadv = RetryPolicy(seconds=0.1, pause=0.01), preadv
    try:
        found = newest(Store(Path(run), fence=always if rank == 0 else None), RankEnvironment(rank, RANKS, rank))
        return found and found.step, sorted(compared)
    except UserError as error:
        return str(error), sorted(compared)
    finally:
        files.RETRY, os.preadv, Checkpoint.verify_file = before


def test_each_rank_reads_its_share_and_damage_found_by_one_counts_for_all(store, tmp_path):
    change_byte(store.folder / "step-00000020" / "rank-00003.safetensors", -1)
    found = run_ranks(RANKS, look, str(tmp_path), "")
    assert found == [
        (10, [f"{step} rank-0000{file}.safetensors" for step in (10, 20) for file in (0, 2)]),
        (10, [f"{step} rank-0000{file}.safetensors" for step in (10, 20) for file in (1, 3)]),
    ]
    assert names(store) == ["step-00000010", "step-00000020.damaged"]


def test_what_one_rank_cannot_read_ends_all_and_nothing_is_set_aside(store, tmp_path):
    (one, _), (other, _) = run_ranks(RANKS, look, str(tmp_path), "step-00000020/rank-00003")
    assert one == other
    assert "rank-00003.safetensors could not be reached" in one
    assert "nothing is lost" in one
    assert names(store) == ["step-00000010", "step-00000020"]


def test_where_the_journal_tells_of_checkpoints_that_are_gone_no_run_begins_at_step_0(store, tmp_path):
    from megaptm.resilience.events import CheckpointEvent, Events

    with Events(tmp_path) as events:
        events.write(CheckpointEvent(step=20, bytes=1, seconds=1.0))
    store.folder.rename(tmp_path / "unmounted")
    told, _ = run_ranks(1, look, str(tmp_path), "")[0]
    assert "tells of a checkpoint of step 20, and" in told
    assert "see that its disk is mounted" in told


def save_while_the_storage_waits(run):
    """Steps that are saved before and after the storage of the run answers."""
    from megaptm.checkpoint.host_staging import HostStaging
    from megaptm.checkpoint.store import Store
    from megaptm.parallel.background import Background
    from megaptm.resilience.events import Events
    from megaptm.run.rank import RankEnvironment
    from megaptm.train.checkpointer import Checkpointer
    from tests.checkpoint.test_store import pieces

    answers = threading.Event()

    class SlowStore(Store):
        def _clean_up(self):
            assert answers.wait(timeout=10.0)
            super()._clean_up()

    class Saver(Checkpointer):
        def __init__(self):
            self.store, self.events = SlowStore(run, fence=always), Events(Path(run))
            self.engine = SimpleNamespace(pieces=lambda: pieces(2, 0, ranks=1))
            self.rank_env = RankEnvironment(0, 1, 0)
            self.tell, self._background, self._copies = lambda *_: None, Background(), HostStaging()

        def _state(self, step):
            return {}

    saver = Saver()
    saver.save(2, wait=False)
    before = saver.store.steps()
    answers.set()
    saver.finish()
    return before, saver.store.steps()


def test_training_does_not_wait_for_storage_that_prepares_a_checkpoint(tmp_path):
    assert run_ranks(1, save_while_the_storage_waits, str(tmp_path)) == [([], [2])]
