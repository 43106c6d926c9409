"""Machines as data: what a node is, in a YAML file (`configs/machines/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from megaptm.config.schema import Count, Section
from megaptm.config.shipped import CONFIGS
from megaptm.config.yamls import read_file
from megaptm.errors import UserError, must_be, nearest

# What a device, a link or a disk can be; outside of it, formulas overflow.
Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
Duration = Annotated[float, Field(ge=0.0, le=1e9)]
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]

FOLDER = CONFIGS / "machines"


class Efficiency(Section):
    """The one model of a chip: what it reaches of its data sheet, whatever is computed on it."""

    matmul: PositiveShare
    """Share of the peak that a large matrix product reaches; small ones pay for reading and writing besides."""
    attention: PositiveShare
    """Share of the peak that fused attention reaches, on the half of the square that a causal mask leaves."""
    memory: PositiveShare
    """Share of the memory's bandwidth that reading and writing long tensors reaches."""
    beside: Annotated[float, Field(ge=0.0, le=1.0)]
    """Share of its time that communication costs although products hide it: both want the memory."""
    kernel_microseconds: Duration
    """Time between two kernels, or to start one on a CPU."""
    source: str
    """Where these numbers come from."""


class Link(Section):
    """What joins devices."""

    gigabytes_per_second: Positive
    """Of one device, in one direction, as the data sheet says."""
    efficiency: PositiveShare
    """Share of it that a collective of large messages reaches."""
    microseconds: Duration
    """Time of one hop of a ring: to hand on the smallest message."""


class Machine(Section):
    """A node of a cluster, and the network between nodes."""

    name: str
    """What is printed."""
    devices: Count
    """GPUs of a node; processes, where the device is a CPU."""
    memory_gib: Positive
    """Memory of one device."""
    reserved_gib: Annotated[float, Field(ge=0.0)]
    """What driver, libraries, communicators and the allocator's gaps take of it."""
    memory_gigabytes_per_second: Positive
    """Bandwidth of the device's memory."""
    teraflops: dict[str, Positive]
    """Peak by number format (bf16, fp16, fp32), dense."""
    efficiency: Efficiency
    inside: Link
    """Between devices of a node."""
    between: Link
    """Between nodes: each device's share of the node's network."""
    host_gib: Positive | None = None
    """Memory of a node's CPUs; absent where the device is a CPU, whose own it is."""
    host_gigabytes_per_second: Positive
    """Rate at which one device copies to the host's memory, all of a node at once."""
    disk_gigabytes_per_second: Positive
    """Rate at which one node writes checkpoints."""
    node_mtbf_days: Positive
    """Mean time between failures of one node that stop the job."""
    restart_minutes: Duration
    """From a failure to the first step after it, reading the checkpoint left out."""
    sources: Annotated[list[str], Field(min_length=1)]
    """Data sheets and measurements behind the numbers."""

    def peak(self, precision: str) -> float:
        """FLOP/s of one device in a number format."""
        if precision not in self.teraflops:
            known = ", ".join(self.teraflops)
            raise UserError(
                f"{self.name} has no peak for {precision} (teraflops: {known}); set train.precision to one of them."
            )
        return self.teraflops[precision] * 1e12

    @property
    def bandwidth(self) -> float:
        """Bytes a second that reading and writing long tensors reaches."""
        return self.memory_gigabytes_per_second * 1e9 * self.efficiency.memory

    @property
    def usable_bytes(self) -> float:
        """Memory that a job may fill."""
        return (self.memory_gib - self.reserved_gib) * 2**30


def load_machine(name: str) -> Machine:
    """The machine in a YAML file, or that of a name in `configs/machines`."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") and not path.exists():
        path = FOLDER / f"{name}.yaml"
        if not path.exists():
            raise UserError(_unknown(name))
    layer = read_file(path)
    try:
        machine = Machine.model_validate(layer.values)
    except ValidationError as error:
        raise UserError(_sentence(error, layer.origins, str(path))) from None
    if machine.reserved_gib >= machine.memory_gib:
        raise UserError(
            f"{layer.origins['reserved_gib']}: reserved_gib ({machine.reserved_gib:g}) must be less than memory_gib "
            f"({machine.memory_gib:g}): it is the part of a device's memory that no job gets."
        )
    return machine


def known_machines() -> list[str]:
    """Names of the machines that come with the project."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _unknown(name: str) -> str:
    hint = nearest(name, known_machines(), "use one of {}, or the path of a YAML file.")
    return f"--machine {name}: no such machine; {hint}"


def _sentence(error: ValidationError, origins: dict[str, str], path: str) -> str:
    """The first mistake; an unknown key comes before what is missing, since it is often its cause."""
    details = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")[0]
    key = ".".join(str(step) for step in details["loc"])
    where = origins.get(key, path)
    if details["type"] == "extra_forbidden":
        return f"{where}: unknown key {key}; a machine has {', '.join(Machine.model_fields)}."
    if details["type"] == "missing":
        return f"{where}: {key} is missing."
    return f"{where}: {key} {must_be(details)}"
