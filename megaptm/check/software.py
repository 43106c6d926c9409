"""Topic `software`: versions of libraries, fused libraries, and the GPU driver of this machine. No torch."""

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
"""Optional libraries; reported and compared if installed."""
TOLD = ("python", "torch", "megatron-core", "mlflow", *BESIDE)
BROKEN = "broken: "
IMPORT_SECONDS = 45
"""Timeout of importing a library, possibly from a network disk. Shorter than that of a node in `check.nodes`, so that
the node reports it itself."""
NVIDIA_SMI_SECONDS = 30


def check_software(case: Case) -> Iterator[Finding]:
    """Compare the installed software with megaptm's requirements."""
    facts = software()
    yield from fit(facts["versions"])
    problems = list(wrong(facts, "here"))
    yield from (Finding(TOPIC, "fault", problem) for problem in problems)
    if not problems:
        found = " and ".join(name for name, state in facts["fused"].items() if state == "found")
        none = "No fused libraries (Transformer Engine, NVIDIA apex): torch's own kernels are used."
        yield Finding(TOPIC, "good", f"Fused libraries: {found}." if found else none, {"fused": facts["fused"]})


def software() -> dict[str, Any]:
    """Return facts of this machine as JSON values."""
    return {"versions": versions(), "fused": fused(), **gpus()}


def wrong(facts: dict[str, Any], where: str) -> Iterator[str]:
    """Yield what cannot work on one machine, regardless of other nodes."""
    yield from wrong_fused(facts["fused"], where)
    yield from wrong_build(facts, where)


def versions() -> dict[str, str]:
    """Return the versions of Python and of installed libraries that megaptm requires or uses."""
    names = (*(requirement.name for requirement in needed()), *BESIDE)
    return {"python": platform.python_version()} | {name: found for name in names if (found := version(name))}


def fit(found: dict[str, str]) -> Iterator[Finding]:
    """Yield a fault for each library that is missing or has an unsupported version."""
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
    """Return the version without its local part. NVIDIA's builds call themselves pre-releases: return the release."""
    found = Version(version)
    return found.base_version if is_nvidias(version) else found.public


def is_nvidias(version: str) -> bool:
    """Whether a library comes from an NVIDIA image, such as torch 2.10.0a0+b4e4ee81d3.nv25.12."""
    return re.search(r"\bnv\d+\.\d+", Version(version).local or "") is not None


def needed() -> list[Requirement]:
    """Return the requirements in pyproject.toml without extras."""
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
    """Return the state of each fused library: `none`, `found`, or the problem."""
    return {"NVIDIA apex": apex(), "Transformer Engine": transformer_engine()}


def wrong_fused(states: dict[str, str], where: str) -> Iterator[str]:
    """Yield a sentence for each library that breaks megatron-core."""
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
    """Return `none`, `found` (NVIDIA's), `not compiled` (NVIDIA's, without kernels), or `other`."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return "none"
    # Only its folder is inspected; importing an unknown package of that name could do anything.
    if not any((Path(folder) / "optimizers").is_dir() for folder in spec.submodule_search_locations or ()):
        return "other"
    return "found" if importlib.util.find_spec("amp_C") else "not compiled"


def transformer_engine() -> str:
    """Return `none`, `found`, or `broken: why`. It can be installed without its torch parts, and then fails to
    import."""
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
    """Return GPUs, driver, the newest CUDA version that the driver supports (from nvidia-smi), and that of torch's
    build."""
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
    """Yield a sentence if there are GPUs that this build of torch cannot use."""
    built, known = facts["torch_cuda"], facts["driver_cuda"]
    if facts["gpus"] and built is None:
        yield f"torch {where} is built without CUDA though there are GPUs: install its build for CUDA {known or ''}."
    # Within a major version an older driver runs binaries of a newer toolkit.
    elif facts["gpus"] and known and major(built) > major(known):
        yield (
            f"torch {where} is built for CUDA {built} but the GPUs' driver {facts['driver']} ends at CUDA {known}: "
            f"update the driver, or install torch's build for CUDA {major(known)}."
        )


def torch_cuda() -> str | None:
    """Return the CUDA version from torch's version file; importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    noted = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    built = re.search(r"^cuda\b.*=\s*'([\d.]+)'", noted, re.MULTILINE)
    return built[1] if built else None


def nvidia_smi(*arguments: str) -> str:
    """Return the output; empty if it is missing or fails."""
    try:
        command = ["nvidia-smi", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout


def major(version: str) -> int:
    return int(version.partition(".")[0])
