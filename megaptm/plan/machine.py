"""Machine descriptions: YAML files of nodes and networks (`configs/machines/`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from megaptm.config.schema import Count, Section
from megaptm.config.shipped import CONFIGS
from megaptm.config.yamls import read_yaml_file
from megaptm.errors import UserError, describe_invalid_value, nearest_name_advice

# Plausible ranges of devices, links and disks; outside of them formulas overflow.
Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
Duration = Annotated[float, Field(ge=0.0, le=1e9)]
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]

FOLDER = CONFIGS / "machines"


class Efficiency(Section):
    """Measured efficiency of a machine's devices, used for all models."""

    matmul: PositiveShare
    """Share of peak FLOP/s that a large matrix product reaches. Small products are also bound by memory traffic."""
    attention: PositiveShare
    """Share of peak FLOP/s that fused attention reaches, on the half of the square that a causal mask leaves."""
    memory: PositiveShare
    """Share of memory bandwidth that reading and writing long tensors reaches."""
    overlap_slowdown: Annotated[float, Field(ge=0.0, le=1.0)]
    """Share of hidden communication time that still slows compute, because both use memory bandwidth."""
    kernel_microseconds: Duration
    """Microseconds between two kernels on a GPU, or to start one on a CPU."""
    device_spread: Annotated[float, Field(ge=0.0, le=0.5)]
    """Standard deviation of the speed of equal devices, relative to its mean. All wait for the slowest one."""
    launch_microseconds: Duration
    """Time in which the host launches a kernel of a training step, Python and autograd included; 0 on a CPU."""
    gather_picoseconds: Duration
    """Time of a device to gather one element by index, or half of that to add one by index."""
    source: str
    """Source of the measurements of a machine."""


class DeviceLink(Section):
    """Network link between devices of a machine."""

    gigabytes_per_second: Positive
    """Bandwidth of one device in one direction, as in the data sheet."""
    efficiency: PositiveShare
    """Share of the bandwidth that a collective with large messages reaches."""
    microseconds: Duration
    """Latency of one hop of a ring with the smallest message."""


class Machine(Section):
    """Node of a cluster, and the network between nodes."""

    name: str
    """Name of the machine in plans."""
    device_name: str | None = None
    """Name of the device that torch reports (`torch.cuda.get_device_name`), so that a run knows its peak."""
    devices: Count
    """Number of GPUs of a node; of processes if the device is a CPU."""
    memory_gib: Positive
    """Memory of one device in GiB."""
    reserved_gib: Annotated[float, Field(ge=0.0)]
    """Memory in GiB taken by driver, libraries, communicators and fragmentation."""
    memory_gigabytes_per_second: Positive
    """Memory bandwidth of a device."""
    multiprocessors: Annotated[int, Field(ge=0)]
    """Number of multiprocessors of a device, each of which computes a tile of a matrix product; 0 for a CPU."""
    teraflops: dict[str, Positive]
    """Peak dense TFLOP/s by number format (bf16, fp16, fp32)."""
    efficiency: Efficiency
    intra_node: DeviceLink
    """Link between devices of a node."""
    inter_node: DeviceLink
    """Link between nodes: one device's share of the node's network."""
    host_gib: Positive | None = None
    """Memory of a node's CPUs in GiB. None if the device is a CPU."""
    host_gigabytes_per_second: Positive
    """Bandwidth from one device to host memory, with all devices of a node copying."""
    disk_gigabytes_per_second: Positive
    """Bandwidth at which one node writes checkpoints."""
    node_mtbf_days: Positive
    """Mean time between failures of one node that stop the job."""
    restart_minutes: Duration
    """Time from a failure to the next step, without reading the checkpoint."""
    sources: Annotated[list[str], Field(min_length=1)]
    """Data sheets and measurements behind the numbers."""

    def peak_flops(self, precision: str) -> float:
        """Return the peak FLOP/s of one device of the machine in a number format. Raises `UserError` if the format is
        not listed."""
        if precision not in self.teraflops:
            known = ", ".join(self.teraflops)
            raise UserError(
                f"{self.name} has no peak for {precision} (teraflops: {known}); set train.precision to one of them."
            )
        return self.teraflops[precision] * 1e12

    @property
    def bandwidth(self) -> float:
        """Return the memory bandwidth of a device that long tensors reach, in bytes per second."""
        return self.memory_gigabytes_per_second * 1e9 * self.efficiency.memory

    @property
    def usable_bytes(self) -> float:
        """Return the bytes of a device's memory that a job may use."""
        return (self.memory_gib - self.reserved_gib) * 2**30


def load_machine(name: str, *, where: str = "--machine") -> Machine:
    """Load a machine from a YAML file, or by its name in `configs/machines`. `where`: option or key of the name."""
    path = Path(name)
    if path.suffix not in (".yaml", ".yml") and not path.exists():
        path = FOLDER / f"{name}.yaml"
        if not path.exists():
            raise UserError(_unknown_machine_message(name, where))
    layer = read_yaml_file(path)
    try:
        machine = Machine.model_validate(layer.values)
    except ValidationError as error:
        raise UserError(_error_sentence(error, layer.origins, str(path))) from None
    if machine.reserved_gib >= machine.memory_gib:
        raise UserError(
            f"{layer.origins['reserved_gib']}: reserved_gib ({machine.reserved_gib:g}) must be less than memory_gib "
            f"({machine.memory_gib:g}): it is the part of a device's memory that no job can use."
        )
    return machine


def machine_of_device(device_name: str) -> Machine | None:
    """Return the machine in `configs/machines` with this name of the device."""
    machines = map(load_machine, known_machines())
    return next((machine for machine in machines if machine.device_name == device_name), None)


def known_machines() -> list[str]:
    """Return the names of the machines in `configs/machines`."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def _unknown_machine_message(name: str, where: str) -> str:
    hint = nearest_name_advice(name, known_machines(), "use one of {}, or the path of a YAML file.")
    return f"{where} {name}: no such machine; {hint}"


def _error_sentence(error: ValidationError, origins: dict[str, str], path: str) -> str:
    """Return the first mistake of a machine file as a sentence. Unknown keys come first, because they often cause
    missing ones."""
    details = sorted(error.errors(), key=lambda error_details: error_details["type"] != "extra_forbidden")[0]
    key = ".".join(str(step) for step in details["loc"])
    where = origins.get(key, path)
    if details["type"] == "extra_forbidden":
        return f"{where}: unknown key {key}; a machine has {', '.join(Machine.model_fields)}."
    if details["type"] == "missing":
        return f"{where}: {key} is missing."
    return f"{where}: {key} {describe_invalid_value(details)}"
