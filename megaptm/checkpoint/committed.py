"""Which checkpoints of a run count: looked up without reading them."""

from __future__ import annotations

from pathlib import Path

FOLDER = "checkpoints"
MANIFEST = "manifest.json"


def committed(run: Path) -> dict[int, Path]:
    """Step -> folder of each committed checkpoint. Nothing is said of their health."""
    found = {}
    # Sorted: `step-1.replaced`, met when a job died while replacing it, comes before `step-1` and gives way to it.
    for folder in sorted((run / FOLDER).glob("step-*"), key=lambda path: path.suffix == ""):
        if folder.suffix in ("", ".replaced") and (folder / MANIFEST).exists():
            found[int(folder.stem.removeprefix("step-"))] = folder
    return found
