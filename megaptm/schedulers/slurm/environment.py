"""What Slurm tells a process of its step, in the words of torch."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from megaptm.errors import UserError, integer_of
from megaptm.schedulers.rendezvous import RENDEZVOUS_PORTS
from megaptm.schedulers.slurm.command import answer


def variables_of_ranks(environ: Mapping[str, str]) -> dict[str, str]:
    """The five variables by which `torch.distributed` finds its peers, for a process that srun started."""
    job, step = integer_of(environ, "SLURM_JOB_ID"), integer_of(environ, "SLURM_STEP_ID")
    restart = integer_of(environ, "SLURM_RESTART_COUNT")
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        # In a container there is no scontrol; whoever starts one says where to meet.
        "MASTER_ADDR": environ.get("MASTER_ADDR") or _first_address(environ),
        # Two steps of one job may share a node, so the step counts as well; and the restart: what was left of the start
        # before it may still listen.
        "MASTER_PORT": str(RENDEZVOUS_PORTS[(job * 64 + restart * 8 + step) % len(RENDEZVOUS_PORTS)]),
    }


def _first_address(environ: Mapping[str, str]) -> str:
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
    given = answer("scontrol", *arguments)
    if given.refusal:
        raise UserError(f"scontrol {' '.join(arguments)} failed ({given.refusal}): set MASTER_ADDR and MASTER_PORT.")
    return given.stdout
