"""Ranks of one run on several machines: a group on each, here all on this one."""

import io
import sys

from megaptm.launch.worker_group import LocalWorkerGroup, Rendezvous, environments

MEETING = Rendezvous(world=5, address="10.0.0.7", port=4711)
SAY = """
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
sys.stdout.write(" ".join(os.environ[name] for name in names) + "\\n")  # in one piece: its errors go to the same log
sys.stderr.write("Traceback (most recent call last)" if os.environ["RANK"] == "0" else "")
sys.exit(int(os.environ["RANK"]))
"""


def crew_of(ranks, folder):
    out, err = io.BytesIO(), io.BytesIO()
    workers = LocalWorkerGroup([sys.executable, "-c", SAY], logs=folder, out=out, err=err)
    workers.start(environments(ranks, MEETING, {}, threads=1))
    while workers.look():
        pass
    workers.kill_all()
    return workers, out, err


def test_each_has_its_part_of_the_ranks(tmp_path):
    for ranks in (range(2), range(2, 5)):
        workers, _, _ = crew_of(ranks, tmp_path)
        assert {(end.rank, end.code) for end in workers.ends} == {(rank, rank) for rank in ranks}
    for rank, local in enumerate((0, 1, 0, 1, 2)):
        assert f"{rank} {local} 5 10.0.0.7 4711\n" in (tmp_path / f"rank-{rank}.log").read_text()


def test_only_rank_0_is_heard_and_its_error_when_it_is_released(tmp_path):
    _, out, err = crew_of(range(2, 4), tmp_path)
    assert (out.getvalue(), err.getvalue()) == (b"", b"")
    workers, out, err = crew_of(range(2), tmp_path)
    assert (out.getvalue(), err.getvalue()) == (b"0 0 5 10.0.0.7 4711\n", b"")
    workers.release()
    assert err.getvalue() == b"Traceback (most recent call last)"
