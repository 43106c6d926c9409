"""Libraries of fused kernels that megatron-core takes by itself where it finds them; and those that break it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PATIENCE_SECONDS = 60
BROKEN = "broken: "


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
    command = [sys.executable, "-c", "import transformer_engine.pytorch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"{BROKEN}nothing in {PATIENCE_SECONDS} s"
    if done.returncode == 0:
        return "found"
    said = done.stderr.strip().rpartition("\n")[2]
    return BROKEN + (said[:200] or f"exit code {done.returncode}")
