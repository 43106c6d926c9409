"""Background work on all ranks: phases advance together, and a failure on one rank is raised on all."""

import os
import time
import traceback
from pathlib import Path

import pytest
import torch

from megaptm.checkpoint.store import GoneError, StorageError
from tests.ranks import run_ranks

SECONDS = 60.0


def wait_for(path):
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def phases_of_unequal_ranks(folder):
    """Return what rank 0's second phase sees of the first phase, which rank 1 finishes some steps later."""
    import torch.distributed as dist

    from megaptm.parallel.background import Background
    from megaptm.parallel.collectives import barrier

    folder, rank, background = Path(folder), dist.get_rank(), Background()

    def write():
        if rank == 1:
            wait_for(folder / "go")
        (folder / f"written-{rank}").touch()

    def commit():
        if rank == 0:
            (folder / "committed").write_text(" ".join(sorted(path.name for path in folder.glob("written-*"))))

    background.begin(write, commit)
    if rank == 0:
        wait_for(folder / "written-0")
    for _ in range(5):  # steps of training meanwhile
        background.advance()
    assert not (folder / "committed").exists()
    barrier()
    (folder / "go").touch()
    background.finish()
    assert (folder / "committed").exists()
    background.advance()  # does nothing
    background.begin(lambda: None)
    background.finish()
    return (folder / "committed").read_text()


def test_background_work_uses_the_gpu_of_its_rank(monkeypatch):
    """A thread starts with the first GPU of the node."""
    from megaptm.parallel import background

    used = []
    monkeypatch.setattr(background, "rank_device", lambda: torch.device("cuda", 3))
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    assert background._run_in_thread(lambda: [*used]).result(SECONDS) == [torch.device("cuda", 3)]


def test_phase_starts_after_all_ranks_finished_the_last_one(tmp_path):
    assert run_ranks(2, phases_of_unequal_ranks, str(tmp_path)) == ["written-0 written-1"] * 2


def fail_on_ranks(errors, way):
    """Return what each rank raises when its work, or another rank's, fails. The next phase must not start."""
    import torch.distributed as dist

    from megaptm.parallel.background import Background

    error, background, next_phase = errors[dist.get_rank()], Background(), []

    def work():
        if error is not None:
            raise error

    background.begin(work, lambda: next_phase.append(True))
    try:
        while way == "advance":
            background.advance()
            time.sleep(0.01)
        background.finish()
    except Exception as raised:
        assert not next_phase
        background.begin(lambda: None)
        background.finish()
        return type(raised).__name__, str(raised), "".join(traceback.format_exception(raised))
    return None


@pytest.mark.parametrize("way", ["advance", "finish"])
@pytest.mark.parametrize("failing_rank", [0, 1])
def test_failure_on_one_rank_is_raised_on_all(way, failing_rank):
    errors = [None, None]
    errors[failing_rank] = StorageError("no space left")
    results = run_ranks(2, fail_on_ranks, errors, way)
    assert [sentence for _, sentence, _ in results] == ["no space left"] * 2


def test_cause_is_raised_instead_of_its_consequence():
    results = run_ranks(2, fail_on_ranks, [GoneError("a folder is gone"), StorageError("no space left")], "finish")
    assert [sentence for _, sentence, _ in results] == ["no space left"] * 2
    assert "a folder is gone" in results[0][2]


def fail_with_bug(folder):
    """Fail with a bug on rank 1, which ends its process; on rank 0 return how its own call ended."""
    import torch.distributed as dist

    from megaptm.parallel.background import Background

    background = Background()
    background.begin(lambda: 1 // (1 - dist.get_rank()))
    try:
        background.finish()
    except ZeroDivisionError:
        Path(folder, "raised").touch()
        os._exit(1)
    except RuntimeError as error:  # gloo's error for a lost peer
        return (Path(folder) / "raised").exists(), str(error)
    return None


def test_bug_ends_its_own_rank_first(tmp_path):
    with pytest.raises(EOFError):  # rank 1 has ended
        run_ranks(2, fail_with_bug, str(tmp_path))
    assert (tmp_path / "raised").exists()


def waiting_for_a_slow_rank(folder):
    """Finish rank 1's work only after rank 0, whose work is done, has polled it several times."""
    import torch.distributed as dist

    from megaptm.parallel import background

    folder, rank, meetings, any_rank_each = Path(folder), dist.get_rank(), [], background.any_rank_each

    def counted(*flags):
        meetings.append(flags)
        if rank == 0 and len(meetings) == 5:
            (folder / "go").touch()
        return any_rank_each(*flags)

    background.any_rank_each = counted
    try:
        return background.run_on_all_ranks(lambda: wait_for(folder / "go") if rank == 1 else None)
    finally:
        background.any_rank_each = any_rank_each


def test_waiting_ranks_poll_instead_of_blocking_in_a_collective(tmp_path):
    assert run_ranks(2, waiting_for_a_slow_rank, str(tmp_path)) == [None, None]
