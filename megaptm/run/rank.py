"""Rank of this process, from the variables of torchrun, srun or our launcher. Does not import torch."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass

from megaptm.config import Layout
from megaptm.errors import UserError, read_integer_variable
from megaptm.schedulers.slurm.environment import torch_variables

LISTENER = "MEGAPTM_RENDEZVOUS_FD"
"""Environment variable of rank 0: descriptor of a listening socket that the launcher opened. The socket reserves the
port until rank 0 has loaded torch."""


@dataclass(frozen=True)
class RankEnvironment:
    """Rank of a process in a run, and the number of processes of the run."""

    rank: int
    world: int
    local_rank: int
    """Index of the process on its machine, which selects the GPU."""
    listener: int | None = None
    """Descriptor of rank 0's listening socket for rendezvous (`LISTENER`). If None, rank 0 opens one at MASTER_PORT."""


def worker_environment(environ: MutableMapping[str, str] = os.environ) -> RankEnvironment | None:
    """Return the rank of this process, or None if it was not started as one of several.

    Under srun, the five variables of `torch.distributed` are derived from Slurm's and written to `environ`.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        # Uses variables of the step: a batch script itself has SLURM_PROCID=0 and the job's SLURM_NTASKS, but is no
        # rank.
        if "SLURM_PROCID" not in environ or read_integer_variable(environ, "SLURM_STEP_NUM_TASKS", 1) == 1:
            return None
        environ.update({name: value for name, value in torch_variables(environ).items() if name not in environ})
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise UserError(
            f"{missing[0]} is not set, but other environment variables of a launcher are: set it, or unset RANK."
        )
    world = read_integer_variable(environ, "WORLD_SIZE")
    rank = read_integer_variable(environ, "RANK", maximum=max(0, world - 1))
    read_integer_variable(environ, "MASTER_PORT", maximum=65_535)  # validated here, used by torch
    listener = environ.pop(LISTENER, None)  # must not be inherited
    return RankEnvironment(
        rank=rank,
        world=world,
        local_rank=read_integer_variable(environ, "LOCAL_RANK", rank),
        listener=None if listener is None else int(listener),
    )


def check_world_size(rank_env: RankEnvironment, layout: Layout) -> None:
    """Raise `UserError` if the number of processes does not match the layout."""
    if rank_env.world == layout.processes:
        return
    comparison = "more" if rank_env.world > layout.processes else "fewer"
    raise UserError(
        f"{rank_env.world} processes are {comparison} than the {layout.processes} the layout needs "
        f"({layout.axes_text}): start {layout.processes}, or change layout.data."
    )
