"""Process groups of a layout, and where this process stands in them."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from megaptm.config import Layout
from megaptm.errors import UserError

OWN_STREAM = "tensor-rank"
"""What a tensor rank draws by itself, in megatron-core's tracker; outside of it, all draw the same."""


@dataclass(frozen=True)
class Ranks:
    """This process's place on each axis of the layout, and the axes' lengths."""

    world: int
    tensor: int
    pipeline: int
    data: int
    tensor_size: int
    pipeline_size: int
    data_size: int


def device() -> torch.device:
    """The device of this process: its GPU, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def join(
    *,
    rank: int,
    world: int,
    local_rank: int,
    init_method: str = "env://",
    timeout_minutes: float = 30.0,
    listener: int | None = None,
) -> None:
    """Join the world: NCCL on GPUs, gloo on CPUs; `listener`, of rank 0, is a socket at which MASTER_PORT is open.

    A `UserError` where the port is another program's.
    """
    if torch.cuda.is_available():
        # Where each process is shown a GPU of its own (Slurm's --gpus-per-task), it is the first one of all of them.
        torch.cuda.set_device(local_rank if torch.cuda.device_count() > 1 else 0)
    timeout = timedelta(minutes=timeout_minutes)
    store = None if listener is None else _serve(listener, world, timeout)
    try:
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            init_method=init_method if store is None else None,
            store=store,
            rank=rank,
            world_size=world,
            timeout=timeout,
        )
    except dist.DistNetworkError as error:
        if errno.errorcode[errno.EADDRINUSE] not in str(error):
            raise
        # Of rank 0 where nobody handed it a listener: srun's, or one that somebody started by hand.
        raise UserError(
            f"MASTER_PORT ({os.environ.get('MASTER_PORT')}): another program of this machine listens there already, so "
            "the ranks cannot meet: set another one, the same for all ranks, or end that program."
        ) from error


def _serve(listener: int, world: int, timeout: timedelta) -> dist.Store:
    """What the other ranks find by `env://`, at a socket that listens already."""
    os.set_inheritable(listener, False)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    served = dist.TCPStore(address, port, world, is_master=True, timeout=timeout, master_listen_fd=listener)
    return dist.PrefixStore("default_pg", served)


def open_groups(layout: Layout, *, timeout_minutes: float = 30.0) -> Ranks:
    """Build megatron-core's groups for `layout` over the world; callable again for another layout of the same world."""
    # Its random tracker compares the CPU generator before and after a region; on a CPU they are the same generator.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    close_groups()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
        create_gloo_process_groups=False,
        distributed_timeout_minutes=timeout_minutes,
        # `tied_parameters` sums the copies of a parameter, whichever stages hold them; megatron's rule for the first
        # and last stage's token tables gets a group of one and so does nothing.
        get_embedding_ranks=lambda ranks, *_: ranks[:1],
    )
    return Ranks(
        world=dist.get_rank(),
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        data=parallel_state.get_data_parallel_rank(),
        tensor_size=layout.tensor,
        pipeline_size=layout.pipeline,
        data_size=parallel_state.get_data_parallel_world_size(),
    )


def leave() -> None:
    """Leave the world, all groups closed."""
    close_groups()
    dist.destroy_process_group()


def close_groups() -> None:
    """End the groups of the last layout, which megatron-core only forgets: gloo has threads for each, which wake a
    hundred times a second."""
    # By megatron-core's private list: its public `destroy_model_parallel` sets names to None and destroys gloo's groups
    # alone, its getters return a part of the groups, and torch's public `destroy_process_group` ends one or the world.
    if parallel_state.model_parallel_is_initialized():
        made = [group for group in parallel_state._global_process_group_list if group is not None]  # None: the world
        parallel_state.destroy_model_parallel()
        for group in made:
            dist.destroy_process_group(group)


def seed_step(seed: int, step: int, ranks: Ranks) -> None:
    """Set every random stream of this process for one step.

    Dropout is a function of (run seed, step, data rank, stage) and, where ranks hold different slices, of the tensor
    rank: nothing about generators has to be stored to continue a run bit for bit on its layout. On another layout the
    masks are other draws: fused attention takes one seed for all rows of a micro-batch, so that masks cannot follow
    from samples.
    """
    torch.cuda.manual_seed(stream_seed(seed, step, ranks.data, ranks.pipeline))
    # Not by megatron-core's own function, which adds the tensor rank to one seed: streams of neighbors would coincide.
    tracker = get_cuda_rng_tracker()
    tracker.reset()
    tracker.add(OWN_STREAM, stream_seed(seed, step, ranks.data, ranks.pipeline, ranks.tensor))


def stream_seed(*key: int) -> int:
    """64 bits for (run seed, step, data rank, stage), or those and the tensor rank: a hash, so none is near another."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
