"""The digits of scikit-learn as a folder of images per label, for tests and tiny configs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megaptm.errors import UserError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEXTS = ("a photo of a {}.", "the number {}.", "a handwritten {}.", "a {}, drawn by hand.")


def write_digits(folder: Path, *, texts: bool = False) -> None:
    """Write the digits of scikit-learn, 1,797 images `folder/3/0017.png` of 8 x 8 pixels, rescaled from 0-16 to 0-255.
    With `texts`, add `0017.txt` for each. The files are the same each time."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise UserError("the digits need scikit-learn: `pip install 'megaptm[images]'`.") from None
    from PIL import Image

    data = load_digits()
    pixels = (data.images * (255 / 16)).round().astype(np.uint8)
    for number, (label, picture) in enumerate(zip(data.target.tolist(), pixels, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
        if texts:
            path.with_suffix(".txt").write_text(TEXTS[number % len(TEXTS)].format(NAMES[label]))
