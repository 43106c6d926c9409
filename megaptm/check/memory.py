"""Check of memory: whether the fullest rank fits on a device, and whether copies of checkpoints fit in host memory."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.check.finding import CheckInput, Finding
from megaptm.config import Config, resolve_spec
from megaptm.plan.checkpoint_cost import estimate_checkpoint_cost
from megaptm.plan.count import count_parameters
from megaptm.plan.machine import Machine
from megaptm.plan.memory import estimate_memory as plan_memory
from megaptm.plan.memory import fullest_stage
from megaptm.plan.search import MAX_MEMORY_SHARE
from megaptm.plan.workload import make_workload
from megaptm.spec import LayerlessSpec

TOPIC = "memory"
GIB = 2**30
HOST_SHARE = 0.75
"""Share of host memory for checkpoint copies; the rest is for the processes, some GiB each, and the system."""


def check_memory(case: CheckInput) -> Iterator[Finding]:
    """Check memory: compare the planned memory of the fullest stage with the machine."""
    machine = case.machine
    if case.config_errors or machine is None:
        remedy = "correct the config first" if case.config_errors else "name a machine with --machine"
        yield Finding(TOPIC, "unknown", f"unknown whether a rank fits on its device: {remedy}.")
        return
    if isinstance(spec := resolve_spec(case.config), LayerlessSpec):
        yield _check_tables(case.config, machine, spec)
        return
    workload = make_workload(case.config)
    planned = plan_memory(workload)
    stage = fullest_stage(planned)
    needed, usable = planned[stage].total, machine.usable_bytes
    free, share = usable - needed, (usable - needed) / usable
    rank = f"a rank of stage {stage}" if len(planned) > 1 else "a rank"
    device = f"the {usable / GIB:,.1f} usable GiB of a device of {machine.name}"
    details = {"stage": stage, "bytes": needed, "usable_bytes": usable, "free_bytes": free}
    if free < 0:
        remedy = "raise layout.tensor or layout.pipeline, set layout.recompute=full, or see megaptm plan --search."
        if planned[stage].comparison:
            remedy = "the contrastive loss over all samples takes most of it; raise layout.data, or lower train.batch."
        yield Finding(TOPIC, "fault", f"{rank} needs {_format_gib(needed)} GiB of {device}: {remedy}", details)
    elif needed > MAX_MEMORY_SHARE * usable:
        remedy = (
            f"only {share:.1%} are left, and the plan may be wrong by a few percent; leave more, or try it on one node."
        )
        yield Finding(TOPIC, "warning", f"{rank} needs {_format_gib(needed)} GiB of {device}: {remedy}", details)
    else:
        left = f"{free / GIB:,.1f} GiB ({share:.0%}) are left"
        yield Finding(TOPIC, "ok", f"{rank} needs {_format_gib(needed)} GiB of {device}; {left}.", details)
    if free >= 0:
        yield from _check_host_copies(case.config, machine, count_parameters(workload.spec, with_heads=True), free)


def _check_tables(config: Config, machine: Machine, spec: LayerlessSpec) -> Finding:
    """Return the finding for a model without layers, whose tables are in host memory, on each rank or sharded over the
    ranks of all nodes."""
    on_node = min(machine.devices, config.layout.processes)
    needed = spec.bytes * on_node // (1 if spec.is_replicated else config.layout.processes)
    message, details = f"the embedding tables take {_format_gib(needed)} GiB of a node's memory", {"bytes": needed}
    if machine.host_gib is None:
        return Finding(TOPIC, "ok", f"{message}.", details)
    message += f", which is {machine.host_gib:,.0f} GiB"
    if needed > HOST_SHARE * machine.host_gib * GIB:
        return Finding(TOPIC, "fault", f"{message}: use more nodes and raise layout.data.", details)
    return Finding(TOPIC, "ok", f"{message}.", details)


def _check_host_copies(config: Config, machine: Machine, parameters: int, free: float) -> Iterator[Finding]:
    """Check whether host memory suffices for copies of checkpoints. `free`: bytes of a device that the run leaves."""
    needed = estimate_checkpoint_cost(config, machine, parameters).host_bytes
    if not needed:
        return
    on_node = min(machine.devices, config.layout.processes)
    room = on_node * free if machine.host_gib is None else HOST_SHARE * machine.host_gib * GIB
    details = {"host_bytes": needed, "usable_host_bytes": room}
    message = (
        f"copies for asynchronous checkpoints take {_format_gib(needed)} of the {_format_gib(room)} GiB of usable host "
        "memory"
    )
    if needed > room:
        yield Finding(TOPIC, "fault", f"{message}: set checkpoint.asynchronous=false, or use more nodes.", details)
    else:
        yield Finding(TOPIC, "ok", f"{message}.", details)


def _format_gib(size: float) -> str:
    """Format bytes as GiB with significant digits: 0.02, 61.3."""
    return f"{size / GIB:,.{1 if size > GIB else 2}f}"
