"""Topic `software`: versions of libraries, fused ones, and the GPUs' driver, of this machine. No torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from megaptm.check.finding import Case, Finding

TOPIC = "software"
BESIDE = ("ray", "transformers")
"""Not always needed; told and compared where they are installed."""
TOLD = ("python", "torch", "megatron-core", "mlflow", *BESIDE)
BROKEN = "broken: "
IMPORT_SECONDS = 45
"""For a library, perhaps on a network disk. Less than `check.nodes` gives a node for all: it tells of it itself."""
NVIDIA_SMI_SECONDS = 30


def check_software(case: Case) -> Iterator[Finding]:
    """What is installed here, against what megaptm needs."""
    facts = software()
    yield from fit(facts["versions"])
    problems = list(wrong(facts, "here"))
    yield from (Finding(TOPIC, "fault", problem) for problem in problems)
    if not problems:
        found = " and ".join(name for name, state in facts["fused"].items() if state == "found")
        none = "No fused libraries (Transformer Engine, NVIDIA apex): torch's own kernels are used."
        yield Finding(TOPIC, "good", f"Fused libraries: {found}." if found else none, {"fused": facts["fused"]})


def software() -> dict[str, Any]:
    """Facts of this machine, for JSON."""
    return {"versions": versions(), "fused": fused(), **gpus()}


def wrong(facts: dict[str, Any], where: str) -> Iterator[str]:
    """What cannot work on one machine, whatever the others have."""
    yield from wrong_fused(facts["fused"], where)
    yield from wrong_build(facts, where)


def versions() -> dict[str, str]:
    """Of Python, and of each installed library that megaptm needs or uses."""
    names = (*(requirement.name for requirement in needed()), *BESIDE)
    return {"python": platform.python_version()} | {name: found for name in names if (found := version(name))}


def fit(found: dict[str, str]) -> Iterator[Finding]:
    """A fault for each library that is missing, or of a version that megaptm does not work with."""
    requirements = needed()
    if not requirements:
        yield Finding(TOPIC, "unknown", "megaptm is not installed, so its needs are not known: pip install -e .")
        return
    unfit = [
        one for one in requirements if not one.specifier.contains(release(found.get(one.name, "0")), prereleases=True)
    ]
    for one in unfit:
        has = f"{one.name} is {found[one.name]}" if one.name in found else f"{one.name} is missing"
        remedy = f"pip install '{one.name}{one.specifier}'"
        if is_nvidias(found.get(one.name, "0")):
            remedy = "take a newer image of NVIDIA's; beside another build its other libraries do not work"
        yield Finding(TOPIC, "fault", f"{has}, megaptm needs {one.specifier}: {remedy}.")
    if not unfit:
        told = ", ".join(f"{name} {found[name]}" for name in TOLD if name in found)
        yield Finding(TOPIC, "good", f"Versions fit: {told}.", {"versions": found})


def release(version: str) -> str:
    """The version without its local part; of what NVIDIA builds, the release that it calls itself a pre-release of."""
    found = Version(version)
    return found.base_version if is_nvidias(version) else found.public


def is_nvidias(version: str) -> bool:
    """Whether a library is of one of NVIDIA's images, as torch 2.10.0a0+b4e4ee81d3.nv25.12."""
    return re.search(r"\bnv\d+\.\d+", Version(version).local or "") is not None


def needed() -> list[Requirement]:
    """What pyproject.toml names, without the optional parts."""
    try:
        named = importlib.metadata.requires("megaptm") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(line) for line in named]
    return [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def fused() -> dict[str, str]:
    """State of each library: `none`, `found`, or what is wrong with it."""
    return {"NVIDIA apex": apex(), "Transformer Engine": transformer_engine()}


def wrong_fused(states: dict[str, str], where: str) -> Iterator[str]:
    """Sentences on those that break megatron-core."""
    if states["NVIDIA apex"] == "other":
        yield f"The apex {where} is PyPI's, not NVIDIA's, and breaks megatron-core: pip uninstall apex."
    if states["NVIDIA apex"] == "not compiled":
        yield f"NVIDIA's apex {where} has no kernels (amp_C): build it with --cpp_ext and --cuda_ext, or uninstall it."
    reason = states["Transformer Engine"]
    if reason.startswith(BROKEN):
        yield (
            f"Transformer Engine {where} cannot be imported ({reason.removeprefix(BROKEN)}), and stops megatron-core: "
            "pip uninstall transformer-engine, or install transformer-engine[pytorch]."
        )


def apex() -> str:
    """`none`, `found` (NVIDIA's), `not compiled` (NVIDIA's, without kernels), or `other`."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return "none"
    # Its folder is looked at and nothing imported: another package of that name does who knows what.
    if not any((Path(folder) / "optimizers").is_dir() for folder in spec.submodule_search_locations or ()):
        return "other"
    return "found" if importlib.util.find_spec("amp_C") else "not compiled"


def transformer_engine() -> str:
    """`none`, `found`, or `broken: why`: it installs without its parts for torch, and then fails to be imported."""
    if importlib.util.find_spec("transformer_engine") is None:
        return "none"
    command = [sys.executable, "-P", "-c", "import transformer_engine.pytorch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{BROKEN}nothing in {IMPORT_SECONDS} s"
    if done.returncode == 0:
        return "found"
    said = done.stderr.strip().rpartition("\n")[2]
    return BROKEN + (said[:200] or f"exit code {done.returncode}")


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
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def major(version: str) -> int:
    return int(version.partition(".")[0])
