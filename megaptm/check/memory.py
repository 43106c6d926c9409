"""Check of memory: whether the fullest rank fits on a device, and checkpoint copies in host memory."""

from __future__ import annotations

from collections.abc import Iterator

from megaptm.check.finding import Case, Finding
from megaptm.config import Config, resolve
from megaptm.families.words import WordSpec
from megaptm.plan.count import count
from megaptm.plan.machine import Machine
from megaptm.plan.memory import fullest
from megaptm.plan.memory import memory as planned
from megaptm.plan.saving import saving
from megaptm.plan.search import FULL
from megaptm.plan.workload import workload_of

TOPIC = "memory"
GIB = 2**30
HOST_SHARE = 0.75
"""Share of host memory for checkpoint copies; the rest is for the processes, some GiB each, and the system."""


def memory(case: Case) -> Iterator[Finding]:
    """Compare the planned memory of the fullest stage with the machine."""
    machine = case.machine
    if case.mistakes or machine is None:
        how = "the config must be right first" if case.mistakes else "name one with --machine"
        yield Finding(TOPIC, "unknown", f"whether a rank fits on its device is not known: {how}.")
        return
    if isinstance(spec := resolve(case.config), WordSpec):
        yield _tables(case.config, machine, spec)
        return
    work = workload_of(case.config)
    held = planned(work)
    stage = fullest(held)
    needed, usable = held[stage].total, machine.usable_bytes
    free, share = usable - needed, (usable - needed) / usable
    rank = f"a rank of stage {stage}" if len(held) > 1 else "a rank"
    device = f"the {usable / GIB:,.1f} GiB that a device of {machine.name} has for it"
    numbers = {"stage": stage, "bytes": needed, "usable_bytes": usable, "free_bytes": free}
    if free < 0:
        remedy = "raise layout.tensor or layout.pipeline, set layout.recompute=full, or see megaptm plan --search."
        if held[stage].compared:
            remedy = "comparing all rows is what takes most: raise layout.data, or lower train.batch."
        yield Finding(TOPIC, "fault", f"{rank} needs {_gib(needed)} GiB of {device}: {remedy}", numbers)
    elif needed > FULL * usable:
        remedy = (
            f"the plan is right to some percent, only {share:.1%} are left; leave more, or try it on one node first."
        )
        yield Finding(TOPIC, "warning", f"{rank} needs {_gib(needed)} GiB of {device}: {remedy}", numbers)
    else:
        left = f"{free / GIB:,.1f} GiB ({share:.0%}) are left"
        yield Finding(TOPIC, "good", f"{rank} needs {_gib(needed)} GiB of {device}; {left}.", numbers)
    if free >= 0:
        yield from _copies(case.config, machine, count(work.spec, with_heads=True), free)


def _tables(config: Config, machine: Machine, spec: WordSpec) -> Finding:
    """Return the finding for word vectors, whose tables are in host memory, sharded over ranks on all nodes. Networks
    are small."""
    on_node = min(machine.devices, config.layout.processes)
    needed = spec.bytes * on_node // (1 if spec.family.network else config.layout.processes)
    says, numbers = f"tables of {_gib(needed)} GiB are in the memory of a node", {"bytes": needed}
    if machine.host_gib is None:
        return Finding(TOPIC, "good", f"{says}.", numbers)
    says += f", which has {machine.host_gib:,.0f} GiB"
    if needed > HOST_SHARE * machine.host_gib * GIB:
        return Finding(TOPIC, "fault", f"{says}: raise layout.data, on more nodes.", numbers)
    return Finding(TOPIC, "good", f"{says}.", numbers)


def _copies(config: Config, machine: Machine, parameters: int, free: float) -> Iterator[Finding]:
    """Check the host memory for checkpoint copies. `free`: bytes of a device that the run leaves."""
    needed = saving(config, machine, parameters).host_bytes
    if not needed:
        return
    on_node = min(machine.devices, config.layout.processes)
    room = on_node * free if machine.host_gib is None else HOST_SHARE * machine.host_gib * GIB
    numbers = {"host_bytes": needed, "usable_host_bytes": room}
    says = (
        f"copies that checkpoints are written from take {_gib(needed)} of the {_gib(room)} GiB that a host has for them"
    )
    if needed > room:
        yield Finding(TOPIC, "fault", f"{says}: set checkpoint.asynchronous=false, or use more nodes.", numbers)
    else:
        yield Finding(TOPIC, "good", f"{says}.", numbers)


def _gib(size: float) -> str:
    """Return GiB with significant digits: 0.02, 61.3."""
    return f"{size / GIB:,.{1 if size > GIB else 2}f}"
