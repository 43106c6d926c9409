"""What a detector would say of images with several colored shapes, and texts that name these: what tests and tiny
configs learn from in the place of photographs and a detector."""

# R regions

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NUMBER = 2048
COLORS = ("red", "green", "blue", "yellow")
SHAPES = ("circle", "square", "triangle", "cross")
MOST = 3
"""Shapes of an image, at most; the rest of its regions are of the ground."""
REGIONS = (5, 8)
"""Of an image."""
DETECTOR = (24, 1 + len(COLORS) * len(SHAPES))
"""Numbers of a region's features; classes, of which the background comes first."""
TEXTS = ("a photo of {}.", "there is {} here.", "{} on a plain ground.")


def write_region_shapes(folder: Path, *, images: int = NUMBER) -> None:
    """`folder/0017.npz`, as `objectives.region_files` has it, with `0017.txt`. The same files each time."""
    rng = np.random.default_rng(0)
    looks = rng.normal(size=(DETECTOR[1], DETECTOR[0]))  # of a region of each class
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(images):
        there = 1 + rng.permutation(DETECTOR[1] - 1)[: rng.integers(1, MOST, endpoint=True)]
        names = [f"a {COLORS[(one - 1) // len(SHAPES)]} {SHAPES[(one - 1) % len(SHAPES)]}" for one in there.tolist()]
        (folder / f"{number:04d}.txt").write_text(str(rng.choice(TEXTS)).format(" and ".join(names)))
        ground = np.zeros(rng.integers(*REGIONS, endpoint=True) - len(there), dtype=np.int64)
        arrays: dict[str, Any] = _found(np.concatenate([there, ground]), looks, rng)
        np.savez(folder / f"{number:04d}.npz", **arrays)


def _found(classes_R: np.ndarray, looks: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Arrays of a file: features near those of the class, which the detector is mostly sure of."""
    count = len(classes_R)
    corner, size = rng.uniform(0, 0.6, (count, 2)), rng.uniform(0.1, 0.4, (count, 2))
    likely = rng.dirichlet(np.full(len(looks), 0.1), count) * 0.2
    likely[np.arange(count), classes_R] += 0.8
    confidence = np.where(classes_R > 0, rng.uniform(0.5, 1, count), rng.uniform(0.2, 0.5, count))
    order = np.argsort(-confidence)
    arrays = {
        "features": looks[classes_R] + 0.2 * rng.normal(size=(count, looks.shape[1])),
        "norm_bb": np.concatenate([corner, corner + size, size], 1),
        "soft_labels": likely,
        "conf": confidence,
    }
    return {name: array[order].astype(np.float16) for name, array in arrays.items()}
