"""Which process of the run this one is, as torchrun, srun or our own launcher says. No torch."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import MutableMapping
from dataclasses import dataclass

from megaptm.config import Layout
from megaptm.errors import UserError

# Below the range that Linux gives to outgoing connections (32768 and up), above the well-known ports.
MEETING_PORTS = range(12000, 32000)


@dataclass(frozen=True)
class Environment:
    """The place of one process among those of the run."""

    rank: int
    world: int
    local_rank: int
    """Number on its own machine; picks the GPU."""


def worker_environment(environ: MutableMapping[str, str] = os.environ) -> Environment | None:
    """The place this process was given, or None where nobody started it as one of several.

    Under srun the five variables that `torch.distributed` reads are derived from Slurm's and written to `environ`.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        # Counted by step: a batch script itself has SLURM_PROCID=0 and the job's SLURM_NTASKS, and is nobody's worker.
        if "SLURM_PROCID" not in environ or int(environ.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
            return None
        environ.update({name: value for name, value in _from_slurm(environ).items() if name not in environ})
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing:
        raise UserError(f"{missing[0]} is not set though other variables of a launcher are: set it, or unset RANK.")
    rank, world = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    return Environment(rank=rank, world=world, local_rank=int(environ.get("LOCAL_RANK", rank)))


def check_processes(place: Environment, layout: Layout) -> None:
    """Refuse a number of processes that is not the layout's."""
    if place.world == layout.processes:
        return
    word = "more" if place.world > layout.processes else "fewer"
    raise UserError(
        f"{place.world} processes are {word} than the {layout.processes} the layout needs (data {layout.data} x tensor "
        f"{layout.tensor} x pipeline {layout.pipeline}): start {layout.processes}, or change layout.data."
    )


def _from_slurm(environ: MutableMapping[str, str]) -> dict[str, str]:
    job, step = int(environ["SLURM_JOB_ID"]), int(environ.get("SLURM_STEP_ID", "0"))
    restart = int(environ.get("SLURM_RESTART_COUNT") or 0)
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        # In a container there is no scontrol; whoever starts one says where to meet.
        "MASTER_ADDR": environ.get("MASTER_ADDR") or _first_address(environ),
        # Two steps of one job may share a node, so the step counts as well; and the restart: what was left of the start
        # before it may still listen.
        "MASTER_PORT": str(MEETING_PORTS[(job * 64 + restart * 8 + step) % len(MEETING_PORTS)]),
    }


def _first_address(environ: MutableMapping[str, str]) -> str:
    nodes = environ.get("SLURM_STEP_NODELIST") or environ["SLURM_JOB_NODELIST"]
    return _address(_scontrol("show", "hostnames", nodes).split()[0])


def _address(host: str) -> str:
    """The address of a node: by name where it resolves, else what Slurm has for it (node names need not be hosts)."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        pass
    for word in _scontrol("show", "node", host, "--oneliner").split():
        if word.startswith("NodeAddr="):
            return socket.gethostbyname(word.removeprefix("NodeAddr="))
    raise UserError(f"the first node of this job, {host}, has no address: set MASTER_ADDR.")


def _scontrol(*arguments: str) -> str:
    try:
        done = subprocess.run(["scontrol", *arguments], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"scontrol {' '.join(arguments)} failed ({error}): set MASTER_ADDR and MASTER_PORT.") from None
    return done.stdout
