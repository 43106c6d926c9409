"""Topic `software` of `megaptm check`: versions of libraries, fused libraries, and the GPU driver of this machine. No
torch."""

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

from megaptm.check.finding import CheckInput, Finding
from megaptm.plan.local_machine import nvidia_smi

TOPIC = "software"
OPTIONAL = ("ray", "transformers")
"""Optional libraries of megaptm, reported and compared if installed."""
REPORTED = ("python", "torch", "megatron-core", "mlflow", *OPTIONAL)
BROKEN = "broken: "
IMPORT_SECONDS = 45
"""Timeout of importing a library, possibly from a network disk. It is shorter than the timeout of a node in
`check.nodes`, so that the node itself reports the failure."""


def check_software(case: CheckInput) -> Iterator[Finding]:
    """Check software: compare the installed libraries with megaptm's requirements."""
    facts = software_facts()
    yield from check_versions(facts["versions"])
    problems = list(software_problems(facts, "here"))
    yield from (Finding(TOPIC, "fault", problem) for problem in problems)
    if not problems:
        names = " and ".join(name for name, state in facts["fused"].items() if state == "found")
        no_libraries = (
            "No fused libraries (Transformer Engine, NVIDIA apex) are installed: torch's own kernels are used."
        )
        yield Finding(TOPIC, "ok", f"Fused libraries: {names}." if names else no_libraries, {"fused": facts["fused"]})


def software_facts() -> dict[str, Any]:
    """Return the facts about this machine's software as JSON values."""
    return {"versions": installed_versions(), "fused": _fused_libraries(), **gpu_facts()}


def software_problems(facts: dict[str, Any], where: str) -> Iterator[str]:
    """Yield the problems of one machine's software, regardless of other nodes."""
    yield from _fused_library_problems(facts["fused"], where)
    yield from cuda_build_problems(facts, where)


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of installed libraries that megaptm requires or uses."""
    names = (*(requirement.name for requirement in _required_libraries()), *OPTIONAL)
    return {"python": platform.python_version()} | {
        name: installed for name in names if (installed := package_version(name))
    }


def check_versions(installed: dict[str, str]) -> Iterator[Finding]:
    """Yield a fault for each library that is missing or has an unsupported version."""
    requirements = _required_libraries()
    if not requirements:
        yield Finding(TOPIC, "unknown", "megaptm is not installed, so its requirements are unknown: pip install -e .")
        return
    unfit = [
        requirement
        for requirement in requirements
        if not requirement.specifier.contains(_public_version(installed.get(requirement.name, "0")), prereleases=True)
    ]
    for requirement in unfit:
        has = (
            f"{requirement.name} is {installed[requirement.name]}"
            if requirement.name in installed
            else f"{requirement.name} is missing"
        )
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        if _is_nvidia_build(installed.get(requirement.name, "0")):
            remedy = "use a newer NVIDIA image; its other libraries do not work with another build"
        yield Finding(TOPIC, "fault", f"{has}, megaptm needs {requirement.specifier}: {remedy}.")
    if not unfit:
        shown = ", ".join(f"{name} {installed[name]}" for name in REPORTED if name in installed)
        yield Finding(TOPIC, "ok", f"Versions are supported: {shown}.", {"versions": installed})


def _public_version(version: str) -> str:
    """Return the version of a library without its local part. NVIDIA's builds call themselves pre-releases: return the
    release."""
    parsed = Version(version)
    return parsed.base_version if _is_nvidia_build(version) else parsed.public


def _is_nvidia_build(version: str) -> bool:
    """Whether a library comes from an NVIDIA image, such as torch 2.10.0a0+b4e4ee81d3.nv25.12."""
    return re.search(r"\bnv\d+\.\d+", Version(version).local or "") is not None


def _required_libraries() -> list[Requirement]:
    """Return the libraries that megaptm requires, those in pyproject.toml without extras."""
    try:
        lines = importlib.metadata.requires("megaptm") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    requirements = [Requirement(line) for line in lines]
    return [
        requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]


def package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _fused_libraries() -> dict[str, str]:
    """Return the state of each fused library (Apex, Transformer Engine): `none`, `found`, or the problem."""
    return {"NVIDIA apex": _apex_state(), "Transformer Engine": _transformer_engine_state()}


def _fused_library_problems(states: dict[str, str], where: str) -> Iterator[str]:
    """Yield the problem of each fused library that breaks megatron-core."""
    if states["NVIDIA apex"] == "other":
        yield f"The package apex {where} is PyPI's, not NVIDIA's, and breaks megatron-core: pip uninstall apex."
    if states["NVIDIA apex"] == "not compiled":
        yield f"NVIDIA's apex {where} has no kernels (amp_C): build it with --cpp_ext and --cuda_ext, or uninstall it."
    reason = states["Transformer Engine"]
    if reason.startswith(BROKEN):
        yield (
            f"Transformer Engine {where} cannot be imported ({reason.removeprefix(BROKEN)}) and breaks megatron-core: "
            "pip uninstall transformer-engine, or install transformer-engine[pytorch]."
        )


def _apex_state() -> str:
    """Return the state of Apex: `none`, `found` (NVIDIA's), `not compiled` (NVIDIA's, without kernels), or `other`."""
    spec = importlib.util.find_spec("apex")
    if spec is None:
        return "none"
    # Only its folder is inspected; importing an unknown package of that name could do anything.
    if not any((Path(folder) / "optimizers").is_dir() for folder in spec.submodule_search_locations or ()):
        return "other"
    return "found" if importlib.util.find_spec("amp_C") else "not compiled"


def _transformer_engine_state() -> str:
    """Return the state of Transformer Engine: `none`, `found`, or `broken: why`. It can be installed without its torch
    parts, and then fails to import."""
    if importlib.util.find_spec("transformer_engine") is None:
        return "none"
    command = [sys.executable, "-P", "-c", "import transformer_engine.pytorch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{BROKEN}import not finished in {IMPORT_SECONDS} s"
    if done.returncode == 0:
        return "found"
    message = done.stderr.strip().rpartition("\n")[2]
    return BROKEN + (message[:200] or f"exit code {done.returncode}")


def gpu_facts() -> dict[str, Any]:
    """Return facts about GPUs: their names, the driver, the newest CUDA version that the driver supports (from
    nvidia-smi), and that of torch's build."""
    lines = nvidia_smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader").splitlines()
    gpus = [line.split(", ") for line in lines if line.count(", ") == 2]
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", nvidia_smi()) if gpus else None
    return {
        "gpus": [f"{name} {memory}" for name, memory, _ in gpus],
        "driver": gpus[0][2] if gpus else None,
        "driver_cuda": cuda[1] if cuda else None,
        "torch_cuda": torch_cuda_version(),
    }


def cuda_build_problems(facts: dict[str, Any], where: str) -> Iterator[str]:
    """Yield a problem if there are GPUs that this build of torch cannot use."""
    built, known = facts["torch_cuda"], facts["driver_cuda"]
    if facts["gpus"] and built is None:
        yield f"torch {where} is built without CUDA, but there are GPUs: install its build for CUDA {known or ''}."
    # Within a major version an older driver runs binaries of a newer toolkit.
    elif facts["gpus"] and known and _major_version(built) > _major_version(known):
        yield (
            f"torch {where} is built for CUDA {built}, but the GPU driver {facts['driver']} supports up to CUDA "
            f"{known}: update the driver, or install torch's build for CUDA {_major_version(known)}."
        )


def torch_cuda_version() -> str | None:
    """Return the CUDA version of torch's build from its version file; importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    built = re.search(r"^cuda\b.*=\s*'([\d.]+)'", text, re.MULTILINE)
    return built[1] if built else None


def _major_version(version: str) -> int:
    return int(version.partition(".")[0])
