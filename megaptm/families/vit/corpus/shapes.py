"""Images of drawn colored shapes with descriptive texts, for tests and tiny configs of image-text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NUM_IMAGES = 2048
SIDE = 32
"""Side length of a drawn image in pixels."""
COLORS = {"red": (210, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 220), "yellow": (225, 205, 40)}
SHAPES = ("circle", "square", "triangle", "cross")
SIZES = {"small": (5, 7), "large": (9, 12)}
"""Pixels from the center of a drawn shape to its edge, by size."""
TEXTS = ("a photo of a {}.", "a picture of one {}.", "there is a {} here.", "a {} on a plain ground.")


def write_shapes(folder: Path, *, texts: bool = False, number: int = NUM_IMAGES) -> None:
    """Write images of drawn shapes, `folder/red circle/0017.png` and so on. With `texts`, add `0017.txt` for each,
    which sometimes names the size. The files are the same each time."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(0)
    for index in range(number):
        color, shape, size = (str(rng.choice(names)) for names in ([*COLORS], SHAPES, [*SIZES]))
        radius = int(rng.integers(*SIZES[size], endpoint=True))
        x, y = rng.integers(radius, SIDE - radius, 2).tolist()
        ground = rng.normal(rng.integers(20, 236), 6, (SIDE, SIDE, 1)) + rng.normal(0, 6, (SIDE, SIDE, 3))
        image = Image.fromarray(ground.clip(0, 255).astype(np.uint8))
        shade = tuple((np.array(COLORS[color]) + rng.integers(-25, 26, 3)).clip(0, 255).tolist())
        _draw_shape(ImageDraw.Draw(image), shape, x, y, radius, shade)
        path = folder / f"{color} {shape}" / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
        if texts:
            name = f"{size} {color} {shape}" if rng.integers(2) else f"{color} {shape}"
            path.with_suffix(".txt").write_text(str(rng.choice(TEXTS)).format(name))


def _draw_shape(draw: Any, shape: str, x: int, y: int, radius: int, color: tuple[int, ...]) -> None:
    box = (x - radius, y - radius, x + radius, y + radius)
    if shape == "circle":
        draw.ellipse(box, fill=color)
    elif shape == "square":
        draw.rectangle(box, fill=color)
    elif shape == "triangle":
        draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=color)
    else:
        arm = max(1, radius // 3)
        draw.rectangle((x - radius, y - arm, x + radius, y + arm), fill=color)
        draw.rectangle((x - arm, y - radius, x + arm, y + radius), fill=color)
