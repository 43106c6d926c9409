"""Check of processes and nodes: whether the requested allocation matches the layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from megaptm.check.finding import Case, Finding, Request, counted
from megaptm.errors import UserError
from megaptm.schedulers.slurm.options import option_value


@dataclass(frozen=True)
class Allocation:
    """Nodes of a job, and processes on each."""

    nodes: int
    per_node: int


def allocation(case: Case) -> Allocation | None:
    """Return the allocation as requested; missing values follow from layout and machine. None if neither determines
    them."""
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
            f"{nodes} nodes x {per_node} processes are {nodes * per_node:,}, but the layout needs {processes:,} (data "
            f"{layout.data} x tensor {layout.tensor} x pipeline {layout.pipeline}): change --nodes, --per-node or "
            "layout.data."
        )
    return Allocation(nodes, per_node)


def arithmetic(case: Case) -> Iterator[Finding]:
    """Check that nodes x processes per node match the layout, and that tensor ranks share a node."""
    found, layout, machine = allocation(case), case.config.layout, case.machine
    if found is None:
        return
    nodes, each = counted(found.nodes, "node", "nodes"), counted(found.per_node, "process", "processes")
    if machine is not None and found.per_node > machine.devices:
        raise UserError(
            f"{each} on each node are more than the {counted(machine.devices, 'device', 'devices')} of {machine.name}: "
            f"give --per-node {machine.devices} and more nodes, or another --machine."
        )
    _refuse_other_gpus(case.request, found.per_node)
    yield Finding(
        "processes",
        "good",
        f"{nodes} x {each} are the layout's.",
        {"nodes": found.nodes, "processes_per_node": found.per_node},
    )
    if found.nodes > 1 and found.per_node % layout.tensor:
        yield Finding(
            "processes",
            "warning",
            f"layout.tensor ({layout.tensor}) does not divide the {each} of a node: tensor ranks talk in every layer, "
            "and some of them would from node to node; change layout.tensor or --per-node.",
        )


def _refuse_other_gpus(request: Request, per_node: int) -> None:
    """Refuse another number of GPUs in --sbatch, which may only name their type."""
    written, gpus = option_value(request.slurm_options or (), "gpus-per-node"), request.gpus_on_node(per_node)
    kind, _, number = (written or f":{gpus}").rpartition(":")
    if number != str(gpus) or (written and not kind):
        raise UserError(
            f"--sbatch=--gpus-per-node={written}: give the number of GPUs by --gpus-per-node (it is {gpus}); here only "
            f"a kind of them may stand, with the same number: --sbatch=--gpus-per-node=KIND:{gpus}."
        )


def _refuse_none(option: str, number: int | None, what: str) -> None:
    if number is not None and number < 1:
        raise UserError(f"{option} {number}: a job needs at least one {what}.")
