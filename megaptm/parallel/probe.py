"""Speed measurements of a node's devices and of the links between nodes, with one process per node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from megaptm.parallel.groups import DTYPES, device

SECONDS = 1.0
ROUNDS = 4
"""Largest number of partners with which each node exchanges messages."""


def product_rates(precision: str) -> list[float]:
    """Return the FLOP/s of large matrix products on each device of this node, measured one after the other."""
    if not torch.cuda.is_available():
        return [product_rate(torch.device("cpu"), DTYPES[precision], size=1024)]
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [product_rate(gpu, DTYPES[precision], size=8192) for gpu in devices]


def product_rate(where: torch.device, dtype: torch.dtype, *, size: int) -> float:
    """Return the FLOP/s of products of two square matrices, measured for about a second."""
    a, b = (torch.randn(size, size, device=where).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=where, dtype=dtype)
    timed(lambda: torch.mm(a, b, out=out), where, times=2)
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        timed(lambda: torch.mm(a, b, out=out), where, times=4)
        done += 4
    return 2 * size**3 * done / (time.perf_counter() - begin)


def pair_rates() -> dict[int, float]:
    """Return partner -> bytes per second in each direction, with all pairs of a round at once."""
    send, receive = large_message(), large_message()
    rates = {}
    for pairs in rounds(dist.get_world_size()):
        dist.barrier()
        partner = pairs.get(dist.get_rank())
        if partner is not None:
            meet = partial(exchange, send, receive, partner)
            timed(meet, device(), times=1)
            rates[partner] = 3 * send.nbytes / timed(meet, device(), times=3)
    return rates


def rounds(world: int) -> Iterator[dict[int, int]]:
    """Yield the first rounds of a round-robin tournament as rank -> partner; no pair meets twice.

    A slow link or node slows down all its pairs, and a good node has a fast pair when it meets another good one. A few
    rounds distinguish them for any number of nodes.
    """
    seats: list[int | None] = [*range(world), *([None] if world % 2 else [])]
    for _ in range(min(ROUNDS, len(seats) - 1)):
        pairs = list(zip(seats, reversed(seats), strict=True))
        yield {rank: partner for rank, partner in pairs if rank is not None and partner is not None}
        seats = [seats[0], seats[-1], *seats[1:-1]]


def exchange(send: torch.Tensor, receive: torch.Tensor, partner: int) -> None:
    """Send and receive at the same time."""
    both = [dist.P2POp(dist.isend, send, partner), dist.P2POp(dist.irecv, receive, partner)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def large_message() -> torch.Tensor:
    """Return a message that is large enough for its time to depend only on bandwidth."""
    mebibytes = 512 if torch.cuda.is_available() else 16
    return torch.ones(mebibytes << 18, device=device())


def timed(work: Callable[[], object], where: torch.device, *, times: int) -> float:
    """Return the seconds of `times` calls."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    return time.perf_counter() - begin
