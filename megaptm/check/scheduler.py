"""Check with Slurm: whether the partition exists with enough nodes, GPUs and time, and whether sbatch accepts the
job."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from math import ceil, isinf

from megaptm.check.allocation import Allocation, allocation
from megaptm.check.finding import Case, Finding, Request
from megaptm.errors import UserError
from megaptm.schedulers.slurm.command import run_slurm
from megaptm.schedulers.slurm.options import option_value, quote_for_script
from megaptm.schedulers.slurm.slurm_time import format_seconds, parse_time

TOPIC = "slurm"


def scheduler(case: Case) -> Iterator[Finding]:
    """Check only if a Slurm job is requested. Other topics report conflicts with the layout."""
    request = case.request
    if request.slurm_options is None:
        return
    quote_for_script(case.config.run, "run")
    if shutil.which("sbatch") is None:
        says = "Slurm is not on this machine: check again where jobs are submitted."
        yield Finding(TOPIC, "unknown", says)
        return
    try:
        asked = allocation(case)
    except UserError:
        return
    case.tell("asking Slurm")
    partition = _partition(request.slurm_options)
    yield from _room(case, request, partition, asked)
    if asked is not None:
        _test_only(request, asked)
        yield Finding(TOPIC, "good", f"sbatch --test-only takes the job for partition {partition['PartitionName']}.")


def _partition(options: Sequence[str]) -> dict[str, str]:
    """Return Slurm's facts about the requested partition, or the default one."""
    found = [
        dict(re.findall(r"(\w+)=(\S*)", line)) for line in run_slurm("scontrol", "show", "partition", "--oneliner")
    ]
    wanted = option_value(options, "partition")
    for partition in found:
        if partition["PartitionName"] == wanted or (wanted is None and partition.get("Default") == "YES"):
            return partition
    names = ", ".join(partition["PartitionName"] for partition in found) or "none"
    if wanted is None:
        raise UserError(f"Slurm has no default partition (it has {names}): give --sbatch=--partition=NAME.")
    raise UserError(f"Slurm has no partition {wanted} (it has {names}): give another --sbatch=--partition=NAME.")


def _room(case: Case, request: Request, partition: dict[str, str], asked: Allocation | None) -> Iterator[Finding]:
    """Compare the partition with the request."""
    name, options = partition["PartitionName"], request.slurm_options or ()
    if partition.get("State", "UP") != "UP":
        raise UserError(f"partition {name} of Slurm is {partition['State']}: choose another, or wait.")
    written = option_value(options, "time")
    seconds = parse_time(written) if written else request.seconds
    if seconds is not None and seconds > (longest := parse_time(partition.get("MaxTime", "UNLIMITED"))):
        raise UserError(
            f"partition {name} of Slurm gives a job {format_seconds(longest)} at most, not {format_seconds(seconds)}: "
            "lower --time; the run goes on in the next job."
        )
    if asked is None:
        return
    limit, whole = partition.get("MaxNodes", "UNLIMITED"), int(partition["TotalNodes"])
    most = min(whole, int(limit)) if limit.isdigit() else whole
    if asked.nodes > most:
        raise UserError(
            f"partition {name} of Slurm gives a job {most:,} nodes at most, not {asked.nodes:,}: change --nodes or "
            "the partition."
        )
    nodes = _nodes(name)
    # Cloud nodes are not listed while they are powered down; for those sbatch decides.
    if len(nodes) == whole:
        yield _gpus(case, name, nodes, asked)


def _gpus(case: Case, name: str, nodes: dict[str, int], asked: Allocation) -> Finding:
    """Check that as many nodes as requested declare as many GPUs."""
    wanted = case.request.gpus_on_node(asked.per_node)
    fitting = sum(gpus >= wanted for gpus in nodes.values())
    most = max(nodes.values(), default=0)
    if wanted and not most:
        raise UserError(
            f"partition {name} of Slurm has no GPUs declared, and {wanted} are asked for on each node: have "
            "GresTypes=gpu and Gres=gpu:N set in slurm.conf, choose another partition, or give --gpus-per-node 0."
        )
    if fitting < asked.nodes:
        raise UserError(
            f"partition {name} of Slurm has {fitting:,} nodes of {wanted} GPUs, and {asked.nodes:,} are asked for: "
            f"change --nodes, --per-node or the partition (no node has more than {most})."
        )
    gpus = f"{wanted} GPUs" if wanted else "any number of GPUs"
    return Finding(
        TOPIC,
        "good",
        f"partition {name} has {fitting:,} nodes of {gpus}, {asked.nodes:,} are asked for.",
        {"partition": name, "nodes": fitting, "gpus_per_node": wanted},
    )


def _nodes(partition: str) -> dict[str, int]:
    """Return node of a partition -> number of its GPUs."""
    lines = run_slurm("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%G")
    return {node: _gpus_in(gres) for node, _, gres in (line.partition("|") for line in lines)}


def _gpus_in(gres: str) -> int:
    """Return the number of GPUs in `gpu:a100:8(S:0-1),nvme:1`: 8."""
    kinds = [word.split(":") for word in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(int(words[-1]) if words[-1].isdigit() else 1 for words in kinds if words[0] == "gpu")


def _test_only(request: Request, asked: Allocation) -> None:
    """Let Slurm decide about accounts, limits, features and site rules."""
    gpus = request.gpus_on_node(asked.per_node)
    limit = request.seconds
    given = [
        *(f"--nodes={asked.nodes}", f"--ntasks-per-node={asked.per_node}"),
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        *([f"--time={ceil(limit / 60)}"] if limit is not None and not isinf(limit) else []),
    ]
    run_slurm("sbatch", "--test-only", *given, *(request.slurm_options or ()), "--wrap=true")
