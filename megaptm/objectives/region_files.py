"""Files with detector output for an image: `.npz` with the array names of UNITER's published files.

    features      [n, F]  region features
    norm_bb       [n, 6]  left, top, right, bottom, width, height, relative to the image's sides
    soft_labels   [n, C]  class probabilities, background first
    conf          [n]     detector confidence; may be absent

Regions are in the order of the file, which is by confidence.
"""

# R regions, F features, C classes

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass

import numpy as np

from megaptm.batch import BOX_NUMBERS

SUFFIX = "npz"
MOST_BYTES = 64 << 20
"""Maximum unpacked size of a file; 100 regions of 2,048 features and 1,601 classes take 1.5 MiB."""
NEEDED = {"features": 2, "norm_bb": 2, "soft_labels": 2}
"""Array -> number of axes."""
ARRAYS = (*NEEDED, "conf")
"""Arrays that are read. The last one may be absent."""
OF_A_BOX = 6
BEYOND = 0.1
"""Tolerance of relative coordinates below 0 and above 1: detectors round."""
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression types that numpy uses. For others zipfile unpacks without limit: 1,300 bytes of bzip2 become 2 GiB."""


class RefusedRegions(Exception):  # noqa: N818 # no end, a reason
    """Reason for refusing a file: a common reason, and details of this file."""

    def __init__(self, reason: str, said: str = "") -> None:
        super().__init__(f"{reason} ({said})" if said else reason)
        self.reason, self.said = reason, said


@dataclass(frozen=True)
class Regions:
    """Detector output for an image."""

    features: np.ndarray
    """Features, float16 [R, F]."""
    boxes: np.ndarray
    """Boxes, float32 [R, 7]: left, top, right, bottom, width, height, area, relative to the image."""
    likely: np.ndarray
    """Class probabilities, float16 [R, C]."""
    confidence: np.ndarray
    """Confidence, float32 [R]."""

    def __len__(self) -> int:
        return len(self.features)

    def first(self, number: int) -> Regions:
        """Return the first `number` regions."""
        return Regions(*(array[:number] for array in vars(self).values()))


def read_regions(content: bytes, *, features: int, classes: int) -> Regions:
    """Read a file. Raises `RefusedRegions` if it is damaged, or from a detector with other dimensions."""
    arrays = _arrays(content)
    lacking = [name for name in NEEDED if name not in arrays]
    if lacking:
        raise RefusedRegions(f"regions without {lacking[0]}")
    if any(arrays[name].ndim != axes for name, axes in NEEDED.items()) or any(
        array.dtype.kind not in "fiu" for array in arrays.values()
    ):
        raise RefusedRegions("regions of another shape", ", ".join(f"{n} {[*arrays[n].shape]}" for n in NEEDED))
    number, wide = arrays["features"].shape
    known = arrays["soft_labels"].shape[1]
    numbers = {len(arrays["norm_bb"]), len(arrays["soft_labels"]), arrays["conf"].size if "conf" in arrays else number}
    if numbers != {number}:
        raise RefusedRegions("regions of another shape", f"{number} features, {len(arrays['norm_bb'])} boxes")
    if arrays["norm_bb"].shape[1] != OF_A_BOX:
        raise RefusedRegions("regions of another shape", f"boxes of {arrays['norm_bb'].shape[1]} numbers")
    if (wide, known) != (features, classes):
        raise RefusedRegions(
            "regions of another detector", f"{wide:,} features and {known:,} classes, not {features:,} and {classes:,}"
        )
    if not number:
        raise RefusedRegions("no regions")
    # Allocated after the length is known: a header can claim any length for arrays of width 0.
    confidence = arrays.get("conf", np.ones(number, dtype=np.float32)).reshape(-1)
    with np.errstate(over="ignore"):  # too large values are refused below
        boxes = arrays["norm_bb"].astype(np.float32)
        made = Regions(
            arrays["features"].astype(np.float16),
            np.concatenate([boxes, boxes[:, 4:5] * boxes[:, 5:6]], 1),
            arrays["soft_labels"].astype(np.float16),
            confidence.astype(np.float32),
        )
    assert made.boxes.shape[1] == BOX_NUMBERS
    if not all(np.isfinite(array).all() for array in vars(made).values()):
        raise RefusedRegions("regions with numbers that are none, or too large for half precision")
    # Detects coordinates in pixels, and scores before the softmax, which would make the loss NaN.
    _refuse_outside(boxes, -BEYOND, 1 + BEYOND, "boxes that are no shares of an image")
    _refuse_outside(made.likely, 0, 1, "classes that are no probabilities")
    return made


def _refuse_outside(numbers: np.ndarray, least: float, most: float, what: str) -> None:
    found = numbers.min(), numbers.max()
    if found[0] < least or found[1] > most:
        raise RefusedRegions(f"regions with {what}", f"{found[0]:g} to {found[1]:g}")


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if sum(member.file_size for member in file.infolist()) > MOST_BYTES:
                raise RefusedRegions(f"regions of more than {MOST_BYTES >> 20} MiB")
            there = {*file.namelist()}
            names = [name for name in ARRAYS if f"{name}.npy" in there]
            if any(file.getinfo(f"{name}.npy").compress_type not in PACKED for name in names):
                raise RefusedRegions("regions that are packed otherwise than numpy packs them")
            return {name: _array(_content(file, f"{name}.npy")) for name in names}
    except RefusedRegions:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise errors of their own
        raise RefusedRegions("damaged", f"{type(error).__name__}: {error}"[:200]) from None


def _content(file: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a member, limited: it may be larger than its header claims."""
    with file.open(name) as member:
        return member.read(MOST_BYTES)


def _array(content: bytes) -> np.ndarray:
    """Parse a `.npy` file without objects. `numpy.load` would allocate what the header claims before it finds the data
    missing."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read_header(file)
    number = math.prod(shape)
    if number * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"its header says {[*shape]} of {dtype}, and there are {len(content) - file.tell():,} bytes")
    if not number:
        return np.zeros(shape, dtype)
    numbers = np.frombuffer(content, dtype, number, file.tell())  # refuses objects
    return numbers.reshape(shape, order="F" if columns_first else "C")
