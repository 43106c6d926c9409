"""Process groups of a layout, and ranks of this process in them."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import get_cuda_rng_tracker

from megaptm.config import Layout
from megaptm.errors import UserError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes of weights and activations by `train.precision`."""

CALL_SECONDS = 0.2
"""Seconds between two looks of a rank for the answer of rank 0 in torchrun's store."""

TENSOR_RANK_RNG = "tensor-rank"
"""Stream of megatron-core's random tracker that differs between tensor ranks; other streams are the same on all."""


@dataclass(frozen=True)
class Ranks:
    """Rank of this process on each parallel axis of the layout, and sizes of the axes."""

    world: int
    tensor: int
    pipeline: int
    data: int
    tensor_size: int
    pipeline_size: int
    data_size: int
    context: int = 0
    context_size: int = 1

    @property
    def replica(self) -> int:
        """Return the index of this rank among those with the same weights: data ranks and their context ranks."""
        return self.data * self.context_size + self.context

    @property
    def replicas(self) -> int:
        """Return the number of ranks with the same weights."""
        return self.data_size * self.context_size


def rank_device() -> torch.device:
    """Return the device of this process: its GPU, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def join_process_group(
    *,
    rank: int,
    world: int,
    local_rank: int,
    init_method: str = "env://",
    timeout_minutes: float = 30.0,
    listener: int | None = None,
) -> None:
    """Initialize torch.distributed for all processes of the run: NCCL on GPUs, gloo on CPUs. `listener`: on rank 0, a
    socket that already listens at MASTER_PORT.

    Raise UserError if another program uses the port.
    """
    own_gpu = None
    if torch.cuda.is_available():
        # If each process has only its own GPU visible (Slurm's --gpus-per-task), its index is 0.
        own_gpu = torch.device("cuda", local_rank if torch.cuda.device_count() > 1 else 0)
        torch.cuda.set_device(own_gpu)
    timeout = timedelta(minutes=timeout_minutes)
    store: dist.Store | None = None
    if listener is not None:
        store = _open_rendezvous_store(listener, world, timeout)
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = _open_agent_store(rank, world, timeout)
    try:
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo",
            init_method=init_method if store is None else None,
            store=store,
            rank=rank,
            world_size=world,
            timeout=timeout,
            # NCCL connects here, not in the first collective, and barriers need not guess the device.
            device_id=own_gpu,
        )
    except dist.DistNetworkError as error:
        if errno.errorcode[errno.EADDRINUSE] not in str(error):
            raise
        # Only on a rank 0 without `listener`: started by srun or by hand.
        raise UserError(
            f"MASTER_PORT ({os.environ.get('MASTER_PORT')}): another program of this machine listens there already, so "
            "the ranks cannot meet: set another one, the same for all ranks, or end that program."
        ) from error


def _open_rendezvous_store(listener: int, world: int, timeout: timedelta) -> dist.Store:
    """Return the rendezvous store that other ranks reach by `env://`, at a socket that already listens."""
    os.set_inheritable(listener, False)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    served = dist.TCPStore(address, port, world, is_master=True, timeout=timeout, master_listen_fd=listener)
    return dist.PrefixStore("default_pg", served)


def _open_agent_store(rank: int, world: int, timeout: timedelta) -> dist.Store:
    """Return the part of torchrun's store that belongs to this start of the ranks.

    torchrun keeps its store over restarts (`--max-restarts`), with the addresses of killed processes. Its count of
    restarts may differ among nodes (pytorch issue 135712). So rank 0 chooses a prefix and answers each rank that found
    it; a prefix of an earlier start has nobody who answers.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store, own = dist.TCPStore(address, port, world, is_master=False, timeout=timeout), secrets.token_hex(8)
    if rank == 0:
        store.set("megaptm", own)
        for other in range(1, world):
            store.set(f"{own}/answer/{other}", store.get(f"{own}/call/{other}").decode())
        return dist.PrefixStore(own, store)
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        prefix = store.get("megaptm").decode()
        store.set(f"{prefix}/call/{rank}", own)
        time.sleep(CALL_SECONDS)
        answer = f"{prefix}/answer/{rank}"
        if store.check([answer]) and store.get(answer).decode() == own:
            return dist.PrefixStore(prefix, store)
    raise dist.DistStoreError(f"rank {rank} got no answer of rank 0 in {timeout}")


def open_groups(layout: Layout, *, timeout_minutes: float = 30.0) -> Ranks:
    """Create megatron-core's process groups for `layout`. May be called again for another layout of the same
    processes."""
    # Its random tracker compares the CPU generator before and after a region; on a CPU they are the same generator.
    logging.getLogger("megatron.core.tensor_parallel.random").setLevel(logging.ERROR)
    close_groups()
    with _share_groups() if rank_device().type == "cpu" else nullcontext():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            context_parallel_size=layout.context,
            virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
            create_gloo_process_groups=False,
            distributed_timeout_minutes=timeout_minutes,
            # `tied_parameters` sums the copies of a parameter on all stages. megatron's rule for the token tables of
            # the first and last stage gets a group of one rank and does nothing.
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
        context=parallel_state.get_context_parallel_rank(),
        context_size=layout.context,
    )


@contextmanager
def _share_groups() -> Iterator[None]:
    """Let megatron-core open one group for each set of ranks. It asks for several, whose collectives NCCL can run at
    the same time, but each gloo group has connections and threads of its own."""
    module: Any = parallel_state
    groups: dict[tuple[int, ...], Any] = {}
    create = module.create_group

    def create_once(ranks: Sequence[int], **options: Any) -> Any:
        key = tuple(ranks)
        if key not in groups:
            groups[key] = create(ranks, **options)
        return groups[key]

    module.create_group = create_once
    try:
        yield
    finally:
        module.create_group = create


def replica_group() -> dist.ProcessGroup:
    """Return the group of the ranks with the same weights: data ranks and their context ranks."""
    group: dist.ProcessGroup = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return group


def leave_process_group() -> None:
    """Close all process groups and leave torch.distributed."""
    close_groups()
    dist.destroy_process_group()


def close_groups() -> None:
    """Destroy the process groups of the last layout. megatron-core only drops its references, but each gloo group has
    threads that wake up a hundred times per second."""
    # Uses megatron-core's private list. Its public `destroy_model_parallel` sets names to None and destroys only gloo
    # groups, its getters return only some groups, and torch's public `destroy_process_group` destroys one group or the
    # world.
    if parallel_state.model_parallel_is_initialized():
        made = [group for group in parallel_state._global_process_group_list if group is not None]  # None is the world
        parallel_state.destroy_model_parallel()
        for group in made:
            dist.destroy_process_group(group)


def seed_step(seed: int, step: int, ranks: Ranks) -> None:
    """Seed all random generators of this process for one training step.

    Dropout is a function of (run seed, step, replica, stage) and, if tensor ranks hold different slices, of the
    tensor rank. No generator state is stored to resume bitwise on the same layout. Another layout has other dropout
    masks: fused attention takes one seed for all samples of a micro-batch, so masks cannot depend on the sample.
    """
    generator = torch.cuda if torch.cuda.is_available() else torch.default_generator
    generator.manual_seed(stream_seed(seed, step, ranks.replica, ranks.pipeline))
    # megatron-core's own function adds the tensor rank to one seed, so streams of neighbors would coincide.
    tracker = get_cuda_rng_tracker()
    tracker.reset()
    tracker.add(TENSOR_RANK_RNG, stream_seed(seed, step, ranks.replica, ranks.pipeline, ranks.tensor))


def stream_seed(*key: int) -> int:
    """Return a 64-bit dropout seed of (run seed, step, replica, stage) and optionally the tensor rank. Hashed, so that
    seeds are never close."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")
