"""Files of what a detector found in an image: `.npz`, by the names that UNITER's published ones have.

    features      [n, F]  numbers that tell regions apart
    norm_bb       [n, 6]  left, top, right, bottom, width, height, as shares of the image's sides
    soft_labels   [n, C]  how likely each class is, the background first
    conf          [n]     how sure the detector is of a region; absent: of all alike

Regions stand in the order of the file, which is that of confidence.
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
"""Of a file, unpacked: 100 regions of 2,048 features and 1,601 classes take 1.5 MiB."""
NEEDED = {"features": 2, "norm_bb": 2, "soft_labels": 2}
"""Array -> its number of axes."""
ARRAYS = (*NEEDED, "conf")
"""Those that are read; the last may be absent."""
OF_A_BOX = 6
BEYOND = 0.1
"""How far shares of an image's sides may be below 0 or above 1: detectors round."""
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How numpy packs members. Of others zipfile unpacks whatever is there at once: 1,300 bytes of bzip2 become 2 GiB."""


class RefusedRegions(Exception):  # noqa: N818  # no end, a reason
    """Why a file is not read: a reason that many may have in common, and more about this one."""

    def __init__(self, reason: str, said: str = "") -> None:
        super().__init__(f"{reason} ({said})" if said else reason)
        self.reason, self.said = reason, said


@dataclass(frozen=True)
class Regions:
    """What a detector found in an image."""

    features: np.ndarray
    """float16 [R, F]"""
    boxes: np.ndarray
    """float32 [R, 7]: left, top, right, bottom, width, height, area, all as shares of the image's."""
    likely: np.ndarray
    """float16 [R, C]: each class."""
    confidence: np.ndarray
    """float32 [R]"""

    def __len__(self) -> int:
        return len(self.features)

    def first(self, number: int) -> Regions:
        """The first of them."""
        return Regions(*(array[:number] for array in vars(self).values()))


def read_regions(content: bytes, *, features: int, classes: int) -> Regions:
    """Those of a file; `RefusedRegions` where it is none, or of a detector with other numbers."""
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
    # Made when it is known that there are so many: of features of no width a header says any number.
    confidence = arrays.get("conf", np.ones(number, dtype=np.float32)).reshape(-1)
    with np.errstate(over="ignore"):  # what is too large is refused below
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
    # Pixels in the place of shares, and scores of before a softmax, of which a loss is no number.
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
    except Exception as error:  # numpy, zipfile and zlib each have kinds of their own
        raise RefusedRegions("damaged", f"{type(error).__name__}: {error}"[:200]) from None


def _content(file: zipfile.ZipFile, name: str) -> bytes:
    """Of a member, which may hold more than its header says: no more than it may is unpacked."""
    with file.open(name) as member:
        return member.read(MOST_BYTES)


def _array(content: bytes) -> np.ndarray:
    """Of a `.npy` file, none of whose objects are made. `numpy.load` would make room for whatever a header says, before
    it sees that there is not so much."""
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
