"""Check with Slurm: whether the partition exists with enough nodes, GPUs and time, and whether sbatch accepts the
job."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from math import ceil, isinf

from megaptm.check.allocation import Allocation, requested_allocation
from megaptm.check.finding import CheckInput, Finding, ResourceRequest
from megaptm.errors import UserError
from megaptm.schedulers.slurm.command import run_slurm
from megaptm.schedulers.slurm.options import quote_for_script, sbatch_option_value
from megaptm.schedulers.slurm.slurm_time import format_seconds, parse_slurm_time

TOPIC = "slurm"


def check_slurm(case: CheckInput) -> Iterator[Finding]:
    """Check the request to Slurm, if a Slurm job is requested. Other topics report conflicts with the layout."""
    request = case.request
    if request.slurm_options is None:
        return
    quote_for_script(case.config.run, "run")
    if shutil.which("sbatch") is None:
        message = "Slurm is not installed on this machine: check again where jobs are submitted."
        yield Finding(TOPIC, "unknown", message)
        return
    try:
        allocation = requested_allocation(case)
    except UserError:
        return
    case.tell("asking Slurm")
    partition = _requested_partition(request.slurm_options)
    yield from _check_partition(case, request, partition, allocation)
    if allocation is not None:
        _test_only(request, allocation)
        yield Finding(TOPIC, "ok", f"sbatch --test-only accepts the job for partition {partition['PartitionName']}.")


def _requested_partition(options: Sequence[str]) -> dict[str, str]:
    """Return Slurm's facts about the requested partition, or the default one."""
    partitions = [
        dict(re.findall(r"(\w+)=(\S*)", line)) for line in run_slurm("scontrol", "show", "partition", "--oneliner")
    ]
    name = sbatch_option_value(options, "partition")
    for partition in partitions:
        if partition["PartitionName"] == name or (name is None and partition.get("Default") == "YES"):
            return partition
    names = ", ".join(partition["PartitionName"] for partition in partitions) or "none"
    if name is None:
        raise UserError(f"Slurm has no default partition (partitions: {names}): set --sbatch=--partition=NAME.")
    raise UserError(f"Slurm has no partition {name} (partitions: {names}): set another --sbatch=--partition=NAME.")


def _check_partition(
    case: CheckInput, request: ResourceRequest, partition: dict[str, str], allocation: Allocation | None
) -> Iterator[Finding]:
    """Compare the requested Slurm partition with the request."""
    name, options = partition["PartitionName"], request.slurm_options or ()
    if partition.get("State", "UP") != "UP":
        raise UserError(f"Slurm's partition {name} is {partition['State']}: choose another, or wait.")
    written = sbatch_option_value(options, "time")
    seconds = parse_slurm_time(written) if written else request.seconds
    if seconds is not None and seconds > (longest := parse_slurm_time(partition.get("MaxTime", "UNLIMITED"))):
        raise UserError(
            f"Slurm's partition {name} allows jobs of at most {format_seconds(longest)}, not "
            f"{format_seconds(seconds)}: lower --time; the run continues in the next job."
        )
    if allocation is None:
        return
    node_limit, total_nodes = partition.get("MaxNodes", "UNLIMITED"), int(partition["TotalNodes"])
    max_nodes = min(total_nodes, int(node_limit)) if node_limit.isdigit() else total_nodes
    if allocation.nodes > max_nodes:
        raise UserError(
            f"Slurm's partition {name} allows jobs of at most {max_nodes:,} nodes, not {allocation.nodes:,}: change "
            "--nodes or the partition."
        )
    nodes = _gpus_by_node(name)
    # Cloud nodes are not listed while they are powered down; for those sbatch decides.
    if len(nodes) == total_nodes:
        yield _check_gpus(case, name, nodes, allocation)


def _check_gpus(case: CheckInput, name: str, nodes: dict[str, int], allocation: Allocation) -> Finding:
    """Check that as many nodes of the partition as requested declare as many GPUs."""
    gpus_per_node = case.request.gpus_on_node(allocation.per_node)
    num_fitting = sum(gpus >= gpus_per_node for gpus in nodes.values())
    max_gpus = max(nodes.values(), default=0)
    if gpus_per_node and not max_gpus:
        raise UserError(
            f"Slurm's partition {name} declares no GPUs, but the job requests {gpus_per_node} on each node: set "
            "GresTypes=gpu and Gres=gpu:N in slurm.conf, choose another partition, or use --gpus-per-node 0."
        )
    if num_fitting < allocation.nodes:
        raise UserError(
            f"Slurm's partition {name} has {num_fitting:,} nodes with {gpus_per_node} GPUs, but the job requests "
            f"{allocation.nodes:,}: change --nodes, --per-node or the partition (no node has more than {max_gpus})."
        )
    gpus = f"{gpus_per_node} GPUs" if gpus_per_node else "any number of GPUs"
    return Finding(
        TOPIC,
        "ok",
        f"partition {name} has {num_fitting:,} nodes with {gpus}; the job requests {allocation.nodes:,}.",
        {"partition": name, "nodes": num_fitting, "gpus_per_node": gpus_per_node},
    )


def _gpus_by_node(partition: str) -> dict[str, int]:
    """Return the number of GPUs of each node of a Slurm partition."""
    lines = run_slurm("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%G")
    return {node: _gpus_in(gres) for node, _, gres in (line.partition("|") for line in lines)}


def _gpus_in(gres: str) -> int:
    """Return the number of GPUs in Slurm's description of a node: 8 for `gpu:a100:8(S:0-1),nvme:1`."""
    kinds = [word.split(":") for word in re.sub(r"\([^)]*\)", "", gres).split(",")]
    return sum(int(words[-1]) if words[-1].isdigit() else 1 for words in kinds if words[0] == "gpu")


def _test_only(request: ResourceRequest, allocation: Allocation) -> None:
    """Let Slurm test a job against accounts, limits, features and site rules."""
    gpus = request.gpus_on_node(allocation.per_node)
    limit = request.seconds
    options = [
        *(f"--nodes={allocation.nodes}", f"--ntasks-per-node={allocation.per_node}"),
        *([f"--gpus-per-node={gpus}"] if gpus else []),
        *([f"--time={ceil(limit / 60)}"] if limit is not None and not isinf(limit) else []),
    ]
    run_slurm("sbatch", "--test-only", *options, *(request.slurm_options or ()), "--wrap=true")
