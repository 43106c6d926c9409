"""Environment variables of torch.distributed for a process that srun started."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress

from megaptm.errors import UserError, read_integer_variable
from megaptm.schedulers.rendezvous import RENDEZVOUS_PORTS
from megaptm.schedulers.slurm.command import try_slurm


def torch_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torch.distributed from Slurm's: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
    MASTER_PORT."""
    job, step = read_integer_variable(environ, "SLURM_JOB_ID"), read_integer_variable(environ, "SLURM_STEP_ID")
    restart = read_integer_variable(environ, "SLURM_RESTART_COUNT")
    return {
        "RANK": environ["SLURM_PROCID"],
        "WORLD_SIZE": environ["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environ["SLURM_LOCALID"],
        # A container has no scontrol: slurm/common.sh sets MASTER_ADDR before it starts one.
        "MASTER_ADDR": environ.get("MASTER_ADDR") or _first_address(environ),
        # The port depends on the step, because two steps of a job may share a node, and on the restart, because
        # processes of the previous start may still listen.
        "MASTER_PORT": str(RENDEZVOUS_PORTS[(job * 64 + restart * 8 + step) % len(RENDEZVOUS_PORTS)]),
    }


def _first_address(environ: Mapping[str, str]) -> str:
    nodes = environ.get("SLURM_STEP_NODELIST") or environ["SLURM_JOB_NODELIST"]
    return _ip_address(_run_scontrol("show", "hostnames", nodes).split()[0])


def _ip_address(host: str) -> str:
    """Return the IP address of a node of a Slurm job. Node names need not be host names; Slurm's NodeAddr is the
    fallback."""
    if (address := _resolve(host)) is not None:
        return address
    for field in _run_scontrol("show", "node", host, "--oneliner").split():
        if field.startswith("NodeAddr=") and (address := _resolve(field.removeprefix("NodeAddr="))) is not None:
            return address
    raise UserError(f"the first node of this job, {host}, has no address: set MASTER_ADDR.")


def _resolve(host: str) -> str | None:
    """Return the IPv4 address of a host, or else its IPv6 address; None without any."""
    with suppress(OSError):
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return str(min(entries, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
    return None


def _run_scontrol(*arguments: str) -> str:
    reply = try_slurm("scontrol", *arguments)
    if reply.error:
        raise UserError(f"scontrol {' '.join(arguments)} failed ({reply.error}): set MASTER_ADDR and MASTER_PORT.")
    return reply.stdout
