"""Ranks of one run in several groups, as on several machines."""

import io
import socket
import sys
import time

import pytest

from megaptm.launch.worker_group import LocalWorkerGroup, Rendezvous, open_listener, rank_environments

RENDEZVOUS = Rendezvous(world=5, address="10.0.0.7", port=4711)
PRINT_ENVIRONMENT = """
import os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
sys.stdout.write(" ".join(os.environ[name] for name in names) + "\\n")  # in one piece: its errors go to the same log
sys.stderr.write("Traceback (most recent call last)" if os.environ["RANK"] == "0" else "")
sys.exit(int(os.environ["RANK"]))
"""


def run_group(ranks, folder):
    out, err = io.BytesIO(), io.BytesIO()
    workers = LocalWorkerGroup([sys.executable, "-c", PRINT_ENVIRONMENT], logs=folder, out=out, err=err)
    workers.start(rank_environments(ranks, RENDEZVOUS, {}, threads=1))
    while workers.poll():
        time.sleep(0.01)
    workers.kill_all()
    return workers, out, err


def test_each_group_runs_its_ranks(tmp_path):
    for ranks in (range(2), range(2, 5)):
        workers, _, _ = run_group(ranks, tmp_path)
        assert {(end.rank, end.code) for end in workers.ends} == {(rank, rank) for rank in ranks}
    for rank, local in enumerate((0, 1, 0, 1, 2)):
        assert f"{rank} {local} 5 10.0.0.7 4711\n" in (tmp_path / f"rank-{rank}.log").read_text()


def test_only_output_of_rank_0_is_copied(tmp_path):
    _, out, err = run_group(range(2, 4), tmp_path)
    assert (out.getvalue(), err.getvalue()) == (b"", b"")
    workers, out, err = run_group(range(2), tmp_path)
    assert (out.getvalue(), err.getvalue()) == (b"0 0 5 10.0.0.7 4711\n", b"")
    workers.release()
    assert err.getvalue() == b"Traceback (most recent call last)"


JOIN = """
import os, time
import torch.distributed as dist
from megaptm.parallel.groups import join_process_group
from megaptm.run.rank import worker_environment

rank_env = worker_environment()
time.sleep(2 * (rank_env.rank == 0))  # the other rank comes first
join_process_group(
    rank=rank_env.rank,
    world=rank_env.world,
    local_rank=rank_env.local_rank,
    timeout_minutes=1,
    listener=rank_env.listener,
)
dist.barrier()
assert "MEGAPTM_RENDEZVOUS_FD" not in os.environ
dist.destroy_process_group()
"""


def test_rendezvous_port_is_reserved_before_start(tmp_path):
    listener = open_listener()
    port = listener.getsockname()[1]
    workers = LocalWorkerGroup([sys.executable, "-c", JOIN], logs=tmp_path, out=io.BytesIO(), err=io.BytesIO())
    workers.start(rank_environments(range(2), Rendezvous(2, "127.0.0.1", port), {}, threads=1), listener)
    assert listener.fileno() == -1
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))
    assert workers.wait() is None
    workers.kill_all()
    assert [end.code for end in workers.ends] == [0, 0], (tmp_path / "rank-0.log").read_text()


def test_listen_accepts_ipv4_and_ipv6():
    with open_listener(None) as listener:
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "::1") if socket.has_dualstack_ipv6() else ("127.0.0.1",):
            socket.create_connection((address, port), timeout=5).close()
