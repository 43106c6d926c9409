"""The GPUs of this machine, their driver, and whether torch's build fits it, without importing torch."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 30


def gpus() -> dict[str, Any]:
    """GPUs, their driver, the newest CUDA that it knows (nvidia-smi says), and the one that torch is built for."""
    lines = nvidia_smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader").splitlines()
    listed = [line.split(", ") for line in lines if line.count(", ") == 2]
    known = re.search(r"CUDA Version:\s*([\d.]+)", nvidia_smi()) if listed else None
    return {
        "gpus": [f"{name} {memory}" for name, memory, _ in listed],
        "driver": listed[0][2] if listed else None,
        "driver_cuda": known[1] if known else None,
        "torch_cuda": torch_cuda(),
    }


def wrong_build(facts: dict[str, Any], where: str) -> Iterator[str]:
    """A sentence where there are GPUs that torch, as it is built, cannot use."""
    built, known = facts["torch_cuda"], facts["driver_cuda"]
    if facts["gpus"] and built is None:
        yield f"torch {where} is built without CUDA though there are GPUs: install its build for CUDA {known or ''}."
    # Within a major version an older driver runs what a newer toolkit built.
    elif facts["gpus"] and known and major(built) > major(known):
        yield (
            f"torch {where} is built for CUDA {built} but the GPUs' driver {facts['driver']} ends at CUDA {known}: "
            f"update the driver, or install torch's build for CUDA {major(known)}."
        )


def torch_cuda() -> str | None:
    """From the file in which torch's build notes it; torch itself takes seconds to import."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    noted = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    built = re.search(r"^cuda\b.*=\s*'([\d.]+)'", noted, re.MULTILINE)
    return built[1] if built else None


def nvidia_smi(*arguments: str) -> str:
    """What it prints; nothing where it is not, or fails."""
    try:
        command = ["nvidia-smi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def major(version: str) -> int:
    return int(version.partition(".")[0])
