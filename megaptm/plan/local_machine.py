"""Machine of this computer: its GPUs, listed by nvidia-smi, and their description in `configs/machines`."""

from __future__ import annotations

import os
import re
import subprocess

from megaptm.errors import UserError
from megaptm.plan.machine import Machine, known_machines, load_machine

NVIDIA_SMI_SECONDS = 30
TOLERANCE = 0.05
"""Maximum difference between the memory of a GPU and that of its machine description."""


def nvidia_smi(*arguments: str) -> str:
    """Return the output of nvidia-smi; empty if it is missing or fails."""
    try:
        command = ["nvidia-smi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def find_local_machine() -> Machine:
    """Return the machine description of this computer with its number of GPUs. Raises `UserError` if it has no GPU, or
    if no file of `configs/machines` describes its GPUs."""
    listed = nvidia_smi("--query-gpu=name,memory.total", "--format=csv,noheader,nounits").splitlines()
    # Of GPUs that share the memory of the processor, nvidia-smi writes `[N/A]`.
    sizes = ((name.strip(), mebibytes.strip()) for name, _, mebibytes in (line.rpartition(",") for line in listed))
    gpus = _visible_gpus([(name, int(size) if size.isdecimal() else 0) for name, size in sizes])
    known = ", ".join(known_machines())
    if not gpus:
        raise UserError(
            f"layout (auto): nvidia-smi lists no GPU here; set machine to one of {known}, or a YAML file, and devices."
        )
    if len({name for name, _ in gpus}) > 1:
        names = ", ".join(dict.fromkeys(name for name, _ in gpus))
        raise UserError(f"layout (auto): this computer has several kinds of GPUs ({names}); set machine and devices.")
    name, gibibytes = gpus[0][0], min(mebibytes for _, mebibytes in gpus) / 1024
    for machine in map(load_machine, known_machines()):
        if _is_model(machine, name) and abs(gibibytes / machine.memory_gib - 1) <= TOLERANCE:
            return machine.model_copy(update={"devices": len(gpus)})
    raise UserError(
        f"layout (auto): no machine is known for {name} with {gibibytes:.0f} GiB; set machine to one of {known}, or a "
        "YAML file like those in configs/machines."
    )


def _visible_gpus(gpus: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, which lists indexes or UUIDs. For UUIDs, return as many of the first
    GPUs."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is None:
        return gpus
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    if all(name.isdecimal() for name in names):
        return [gpus[int(name)] for name in names if int(name) < len(gpus)]
    return gpus[: len(names)]


def _is_model(machine: Machine, gpu: str) -> bool:
    """Whether a machine description with a name such as `RTX 4090 24 GB` has GPUs such as `NVIDIA GeForce RTX 4090`."""
    *model, _, _ = machine.name.split()
    return {*model} <= {*re.split(r"[\s-]+", gpu)}
