"""Simulated detector output for images of several colored shapes, with texts that name them. Tests and tiny configs use
it instead of photographs and a detector."""

# R regions

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NUM_IMAGES = 2048
COLORS = ("red", "green", "blue", "yellow")
SHAPES = ("circle", "square", "triangle", "cross")
SIDES = ("left", "right")
"""Halves of a synthetic image, each with at most one shape."""
REGIONS = (3, 6)
"""Minimum and maximum number of regions of a drawn image. Regions without a shape are background, and wide."""
DETECTOR = (24, 1 + len(COLORS) * len(SHAPES))
"""Sizes of the simulated detector: number of a region's features; number of classes, the first of which is the
background."""
TEXTS = ("{}.", "{} here.", "{} on a plain ground.")


def write_region_shapes(folder: Path, *, images: int = NUM_IMAGES) -> None:
    """Write simulated detections to `folder/0017.npz` in the format of `families.uniter.region_files`, with `0017.txt`.
    The files are the same each time.

    Text and region determine each other: a text names color, shape and side; the features of a region are the sum of
    vectors for color and shape, and its box shows the side.
    """
    rng = np.random.default_rng(0)
    looks = _class_features(rng)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(images):
        sides = np.sort(rng.permutation(len(SIDES))[: rng.integers(1, len(SIDES), endpoint=True)])
        classes = 1 + rng.permutation(DETECTOR[1] - 1)[: len(sides)]
        names = [
            f"{_class_name(class_index)} {SIDES[side]}"
            for class_index, side in zip(classes.tolist(), sides.tolist(), strict=True)
        ]
        (folder / f"{number:04d}.txt").write_text(str(rng.choice(TEXTS)).format(" and ".join(names)))
        arrays: dict[str, Any] = _region_arrays(classes, sides, looks, rng)
        np.savez(folder / f"{number:04d}.npz", **arrays)


def _class_name(number: int) -> str:
    color, shape = divmod(number - 1, len(SHAPES))
    return f"a {COLORS[color]} {SHAPES[shape]}"


def _class_features(rng: np.random.Generator) -> np.ndarray:
    """Return the features of a region of each class of drawn shapes, [C, F]."""
    ground, colors, shapes = (rng.normal(size=(number, DETECTOR[0])) for number in (1, len(COLORS), len(SHAPES)))
    return np.concatenate([ground, (colors[:, None] + shapes).reshape(-1, DETECTOR[0])])


def _region_arrays(
    classes: np.ndarray, sides: np.ndarray, looks: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return the arrays of a file of simulated detections: noisy features of each class, which the detector mostly
    assigns a high probability."""
    count = int(rng.integers(*REGIONS, endpoint=True))
    classes_R = np.concatenate([classes, np.zeros(count - len(classes), dtype=np.int64)])
    is_shape_R = classes_R > 0
    size = rng.uniform(0.1, 0.2, (count, 2))
    corner = rng.uniform(0, 0.1, (count, 2))
    corner[: len(classes), 0] += 0.6 * sides
    corner[:, 1] += rng.uniform(0, 0.5, count)
    size[~is_shape_R, 0] += 0.6
    likely = rng.dirichlet(np.full(len(looks), 0.1), count) * 0.2
    likely[np.arange(count), classes_R] += 0.8
    confidence = np.where(is_shape_R, rng.uniform(0.5, 1, count), rng.uniform(0.2, 0.5, count))
    order = np.argsort(-confidence)
    arrays = {
        "features": looks[classes_R] + 0.2 * rng.normal(size=(count, looks.shape[1])),
        "norm_bb": np.concatenate([corner, corner + size, size], 1),
        "soft_labels": likely,
        "conf": confidence,
    }
    return {name: array[order].astype(np.float16) for name, array in arrays.items()}
