"""Check of processes and nodes: whether the requested allocation matches the layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megaptm.check.finding import CheckInput, Finding, ResourceRequest, number_with_noun
from megaptm.errors import UserError
from megaptm.schedulers.slurm.options import sbatch_option_value


@dataclass(frozen=True)
class Allocation:
    """Allocation that a run requests: nodes of a job, and processes on each."""

    nodes: int
    per_node: int


def requested_allocation(case: CheckInput) -> Allocation | None:
    """Return the allocation that a run requests; missing values follow from layout and machine. None if neither
    determines them."""
    request, processes = case.request, case.config.layout.processes
    _refuse_none("--nodes", request.nodes, "node")
    _refuse_none("--per-node", request.processes_per_node, "process on each node")
    nodes, per_node = request.nodes, request.processes_per_node
    if per_node is None and nodes is not None:
        per_node = -(-processes // nodes)
    elif per_node is None and case.machine is not None:
        per_node = min(case.machine.devices, processes)
    if per_node is None:
        return None
    nodes = -(-processes // per_node) if nodes is None else nodes
    if nodes * per_node != processes:
        layout = case.config.layout
        raise UserError(
            f"{nodes} nodes x {per_node} processes are {nodes * per_node:,}, but the layout needs {processes:,} "
            f"({layout.axes_text}): change --nodes, --per-node or layout.data."
        )
    return Allocation(nodes, per_node)


def check_processes(case: CheckInput) -> Iterator[Finding]:
    """Check that nodes x processes per node match the layout, and that tensor ranks share a node."""
    allocation, layout, machine = requested_allocation(case), case.config.layout, case.machine
    if allocation is None:
        return
    nodes, processes = (
        number_with_noun(allocation.nodes, "node", "nodes"),
        number_with_noun(allocation.per_node, "process", "processes"),
    )
    if machine is not None and allocation.per_node > machine.devices:
        raise UserError(
            f"{processes} on each node are more than the {number_with_noun(machine.devices, 'device', 'devices')} of "
            f"{machine.name}: use --per-node {machine.devices} and more nodes, or another --machine."
        )
    _refuse_other_gpus(case.request, allocation.per_node)
    yield Finding(
        "processes",
        "ok",
        f"{nodes} x {processes} match the layout.",
        {"nodes": allocation.nodes, "processes_per_node": allocation.per_node},
    )
    if allocation.nodes > 1 and allocation.per_node % layout.tensor:
        yield Finding(
            "processes",
            "warning",
            f"layout.tensor ({layout.tensor}) does not divide the {processes} of a node: tensor ranks communicate in "
            "every layer, here partly between nodes; change layout.tensor or --per-node.",
        )


def _refuse_other_gpus(request: ResourceRequest, per_node: int) -> None:
    """Refuse a number of GPUs in --sbatch that differs from --gpus-per-node; --sbatch may only add the GPU type."""
    written, gpus = sbatch_option_value(request.slurm_options or (), "gpus-per-node"), request.gpus_on_node(per_node)
    kind, _, num_gpus = (written or f":{gpus}").rpartition(":")
    if num_gpus != str(gpus) or (written and not kind):
        raise UserError(
            f"--sbatch=--gpus-per-node={written}: set the number of GPUs with --gpus-per-node (now {gpus}). --sbatch "
            f"may only add their type, with the same number: --sbatch=--gpus-per-node=TYPE:{gpus}."
        )


def _refuse_none(option: str, count: int | None, unit: str) -> None:
    if count is not None and count < 1:
        raise UserError(f"{option} {count}: a job needs at least one {unit}.")
