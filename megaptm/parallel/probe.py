"""How fast the devices of a node multiply, and the links between nodes carry; one process on each node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from megaptm.parallel.groups import device

SECONDS = 1.0
ROUNDS = 4
"""Partners that each node exchanges messages with, at most."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def product_rates(precision: str) -> list[float]:
    """FLOP/s of large products on each device of this node, one after the other."""
    if not torch.cuda.is_available():
        return [product_rate(torch.device("cpu"), DTYPES[precision], size=1024)]
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    return [product_rate(one, DTYPES[precision], size=8192) for one in devices]


def product_rate(where: torch.device, dtype: torch.dtype, *, size: int) -> float:
    """FLOP/s of products of two square matrices, for about a second."""
    left, right = (torch.randn(size, size, device=where).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=where, dtype=dtype)
    timed(lambda: torch.mm(left, right, out=out), where, times=2)
    done, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        timed(lambda: torch.mm(left, right, out=out), where, times=4)
        done += 4
    return 2 * size**3 * done / (time.perf_counter() - begin)


def all_reduce_rate() -> float:
    """Bytes a second that each node sends and receives in sums of large messages over all nodes."""
    message, world = large_message(), dist.get_world_size()
    timed(lambda: dist.all_reduce(message), device(), times=1)
    dist.barrier()
    seconds = timed(lambda: dist.all_reduce(message), device(), times=4) / 4
    # What a sum in a ring costs: all but one part of the message goes round twice.
    return 2 * (world - 1) / world * message.nbytes / seconds


def pair_rates() -> dict[int, float]:
    """Partner -> bytes a second in each direction, all pairs of a round at once."""
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
    """A tournament's first rounds, rank -> partner: nobody meets another twice.

    A link or node that is slow slows all its pairs; a good one has a fast pair as soon as it meets another good one. So
    a few rounds tell them apart, however many nodes there are.
    """
    places: list[int | None] = [*range(world), *([None] if world % 2 else [])]
    for _ in range(min(ROUNDS, len(places) - 1)):
        pairs = list(zip(places, reversed(places), strict=True))
        yield {one: other for one, other in pairs if one is not None and other is not None}
        places = [places[0], places[-1], *places[1:-1]]


def exchange(send: torch.Tensor, receive: torch.Tensor, partner: int) -> None:
    """Both ways at once."""
    both = [dist.P2POp(dist.isend, send, partner), dist.P2POp(dist.irecv, receive, partner)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def large_message() -> torch.Tensor:
    """So large that its time is all bandwidth."""
    mebibytes = 512 if torch.cuda.is_available() else 16
    return torch.ones(mebibytes << 18, device=device())


def timed(work: Callable[[], object], where: torch.device, *, times: int) -> float:
    """Seconds that it takes so many times."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    return time.perf_counter() - begin
