"""Images of every kind that a folder may hold, valid and invalid, and corpora of them."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console

from megaptm.families.vit.corpus.build import build_images
from megaptm.families.vit.corpus.recipe import recipe_class

QUIET = Console(file=io.StringIO())


def build(source: Path | str, out: Path, **options: Any) -> Any:
    """A corpus, built in this process, and its report."""
    return build_images(recipe_class(options)(source=str(source), **options), out, workers=0, console=QUIET)


def digits(out: Path, **options: Any) -> Path:
    """A corpus of scikit-learn's digits."""
    build("digits", out, **options)
    return out


def pixels(width: int, height: int, *, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3]: a smooth image, so that its JPEG is close to it."""
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / 9 + seed) + np.cos(columns / 7 + phase) for phase in range(3)]
    return ((np.stack(waves, -1) + 2) / 4 * 255).astype(np.uint8)


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def picture(form: str = "JPEG", width: int = 40, height: int = 30, *, mode: str = "RGB", seed: int = 0) -> bytes:
    return encoded(Image.fromarray(pixels(width, height, seed=seed)).convert(mode), form)


def huge() -> bytes:
    """A PNG of 30,000 x 30,000 pixels, according to its header."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def animated(form: str) -> bytes:
    first, *other_items = (Image.fromarray(pixels(24, 20, seed=number)) for number in range(3))
    options = {"lossless": True} if form == "WEBP" else {}
    return encoded(first, form, save_all=True, append_images=other_items, **options)


def sixteen_bits() -> bytes:
    levels = np.linspace(0, 65_535, 20 * 24).reshape(20, 24).astype(np.uint16)
    return encoded(Image.fromarray(levels), "PNG")


GOOD: Mapping[str, bytes] = {
    "plain.jpg": picture(),
    "plain.webp": picture("WEBP"),
    "grey.png": picture("PNG", mode="L"),
    "cmyk.jpg": picture("JPEG", mode="CMYK"),
    "deep.png": sixteen_bits(),
    "clear.png": picture("PNG", mode="RGBA"),
    "palette.png": picture("PNG", mode="P"),
    "moving.webp": animated("WEBP"),
    "moving.gif": animated("GIF"),
    "old.bmp": picture("BMP"),
    "scanned.tif": picture("TIFF"),
}
BAD: Mapping[str, tuple[bytes, str]] = {
    "cut.jpg": (picture(width=200, height=160)[:-900], "damaged"),
    "cut.png": (picture("PNG")[:-300], "damaged"),
    "cut.webp": (picture("WEBP")[:-100], "damaged"),
    "dot.png": (picture("PNG", 1, 1), "too small"),
    "huge.png": (huge(), "too many pixels"),
    "line.png": (picture("PNG", 400, 10), "aspect ratio too large"),
    "text.jpg": (b"no image at all", "not a readable image"),
    "empty.png": (b"", "not a readable image"),
    # Pillow opens them; for the first it would start Ghostscript.
    "program.jpg": (picture("EPS"), "not a readable image"),
    "other.png": (picture("PPM"), "not a readable image"),
}
"""Name -> bytes, and why the image is dropped."""


def folder_of_labels(folder: Path, *, num_valid: int = 6) -> Path:
    """`cat` and `dog` with valid images, and with all the unusual and invalid ones."""
    for label, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for number in range(num_valid):
            (folder / name / f"{number}.jpg").write_bytes(picture(seed=10 * label + number))
    for name, content in GOOD.items():
        (folder / "cat" / name).write_bytes(content)
    for name, (content, _) in BAD.items():
        (folder / "dog" / name).write_bytes(content)
    (folder / "dog" / "notes.txt").write_text("no image")
    return folder


def write_tar(path: Path, files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    """Write a tar like shards of `webdataset`: suffixes in any order, files of one key adjacent."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path
