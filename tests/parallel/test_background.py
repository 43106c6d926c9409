"""Work in the background of all ranks: phases in step, and one rank's failure told to all. Each case on real ranks."""

import os
import time
import traceback
from pathlib import Path

import pytest

from megaptm.checkpoint.store import GoneError, StorageError
from tests.ranks import run_ranks

SECONDS = 60.0


def wait_for(path):
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.01)


def phases_of_unequal_ranks(folder):
    """What rank 0's second phase found of the first, which rank 1 is kept from finishing for some steps."""
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
    for _ in range(5):  # steps that training goes on with
        background.advance()
    assert not (folder / "committed").exists()
    barrier()
    (folder / "go").touch()
    background.finish()
    assert (folder / "committed").exists()
    background.advance()  # nothing is left to do
    background.begin(lambda: None)
    background.finish()
    return (folder / "committed").read_text()


def test_a_phase_begins_when_all_ranks_have_done_the_one_before(tmp_path):
    assert run_ranks(2, phases_of_unequal_ranks, str(tmp_path)) == ["written-0 written-1"] * 2


def failing(errors, way):
    """What each rank raises when its work fails, or another's; whether the next phase was begun."""
    import torch.distributed as dist

    from megaptm.parallel.background import Background

    error, background, begun = errors[dist.get_rank()], Background(), []

    def work():
        if error is not None:
            raise error

    background.begin(work, lambda: begun.append(True))
    try:
        while way == "advance":
            background.advance()
            time.sleep(0.01)
        background.finish()
    except Exception as raised:
        assert not begun
        background.begin(lambda: None)
        background.finish()
        return type(raised).__name__, str(raised), "".join(traceback.format_exception(raised))
    return None


@pytest.mark.parametrize("way", ["advance", "finish"])
@pytest.mark.parametrize("guilty", [0, 1])
def test_what_fails_on_one_rank_is_raised_on_all(way, guilty):
    errors = [None, None]
    errors[guilty] = StorageError("no space left")
    told = run_ranks(2, failing, errors, way)
    assert [sentence for _, sentence, _ in told] == ["no space left"] * 2


def test_the_cause_is_told_and_not_its_consequence():
    told = run_ranks(2, failing, [GoneError("a folder is gone"), StorageError("no space left")], "finish")
    assert [sentence for _, sentence, _ in told] == ["no space left"] * 2
    assert "a folder is gone" in told[0][2]


def fail_by_mistake(folder):
    """Rank 1's work has a mistake, of which its process would die; rank 0 says how its own call ended."""
    import torch.distributed as dist

    from megaptm.parallel.background import Background

    background = Background()
    background.begin(lambda: 1 // (1 - dist.get_rank()))
    try:
        background.finish()
    except ZeroDivisionError:
        Path(folder, "raised").touch()
        os._exit(1)
    except RuntimeError as error:  # gloo's word for a peer that is gone
        return (Path(folder) / "raised").exists(), str(error)
    return None


def test_a_mistake_of_the_program_is_first_heard_from_the_rank_that_made_it(tmp_path):
    with pytest.raises(EOFError):  # rank 1 is no more
        run_ranks(2, fail_by_mistake, str(tmp_path))
    assert (tmp_path / "raised").exists()


def waiting_for_a_slow_rank(folder):
    """Rank 1's work is done when rank 0, whose own is done at once, has met with it often enough."""
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
        return background.together(lambda: wait_for(folder / "go") if rank == 1 else None)
    finally:
        background.any_rank_each = any_rank_each


def test_who_waits_for_another_rank_s_work_never_sits_in_one_collective_for_long(tmp_path):
    assert run_ranks(2, waiting_for_a_slow_rank, str(tmp_path)) == [None, None]
