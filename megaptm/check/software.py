"""Topic `software`: versions of libraries, fused ones, and the GPUs' driver, of this machine. No torch."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Iterator
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from megaptm.check.finding import Case, Finding
from megaptm.check.fused import fused, wrong_fused
from megaptm.check.gpus import gpus, wrong_build

TOPIC = "software"
BESIDE = ("ray", "transformers")
"""Not always needed; told and compared where they are installed."""
TOLD = ("python", "torch", "megatron-core", "mlflow", *BESIDE)


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
