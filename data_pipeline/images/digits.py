"""The digits that scikit-learn brings, as a folder of images for each: what tests and tiny configs learn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from megaptm.errors import UserError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TEXTS = ("a photo of a {}.", "the number {}.", "a handwritten {}.", "a {}, drawn by hand.")


def write_digits(folder: Path, *, texts: bool = False) -> None:
    """`folder/3/0017.png` ..., 1,797 of 8 x 8 pixels, 0 to 16 there and 0 to 255 here; `texts`: with `0017.txt` beside
    each. The same files each time."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise UserError("the digits come with scikit-learn: install it with `pip install 'megaptm[images]'`.") from None
    from PIL import Image

    found = load_digits()
    pixels = (found.images * (255 / 16)).round().astype(np.uint8)
    for number, (label, picture) in enumerate(zip(found.target.tolist(), pixels, strict=True)):
        path = folder / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
        if texts:
            path.with_suffix(".txt").write_text(TEXTS[number % len(TEXTS)].format(NAMES[label]))
