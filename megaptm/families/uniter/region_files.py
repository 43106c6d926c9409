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

from megaptm.families.uniter.spec import NUM_BOX_VALUES

SUFFIX = "npz"
MAX_BYTES = 64 << 20
"""Maximum bytes of an unpacked file of regions; 100 regions of 2,048 features and 1,601 classes take 1.5 MiB."""
REQUIRED_ARRAYS = {"features": 2, "norm_bb": 2, "soft_labels": 2}
"""Required arrays of a file of regions, with their numbers of axes."""
ARRAYS = (*REQUIRED_ARRAYS, "conf")
"""Arrays that are read from a file of regions. The last one may be absent."""
BOX_COLUMNS = 6
TOLERANCE = 0.1
"""Tolerance of relative coordinates below 0 and above 1: detectors round."""
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression types that are allowed in a file of regions: those that numpy uses. With others zipfile unpacks without
limit: 1,300 bytes of bzip2 become 2 GiB."""


class RegionError(Exception):
    """Raised for an invalid file of regions: a common reason, and details of this file."""

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(f"{reason} ({details})" if details else reason)
        self.reason, self.details = reason, details


@dataclass(frozen=True)
class Regions:
    """Detector output for an image: its regions."""

    features: np.ndarray
    """Features of the regions, float16 [R, F]."""
    boxes: np.ndarray
    """Boxes of the regions, float32 [R, 7]: left, top, right, bottom, width, height, area, relative to the image."""
    probabilities: np.ndarray
    """Class probabilities of the regions, float16 [R, C]."""
    confidence: np.ndarray
    """Confidence of the detector, float32 [R]."""

    def __len__(self) -> int:
        return len(self.features)

    def first(self, number: int) -> Regions:
        """Return the first `number` regions of the image."""
        return Regions(*(array[:number] for array in vars(self).values()))


def read_regions(content: bytes, *, features: int, classes: int) -> Regions:
    """Read the regions of an image from a file. Raises `RegionError` if the file is damaged, or from a detector with
    other dimensions."""
    arrays = _read_arrays(content)
    if missing := [name for name in REQUIRED_ARRAYS if name not in arrays]:
        raise RegionError(f"regions without {missing[0]}")
    if any(arrays[name].ndim != axes for name, axes in REQUIRED_ARRAYS.items()) or any(
        array.dtype.kind not in "fiu" for array in arrays.values()
    ):
        raise RegionError("regions of another shape", ", ".join(f"{n} {[*arrays[n].shape]}" for n in REQUIRED_ARRAYS))
    num_regions, width = arrays["features"].shape
    num_classes = arrays["soft_labels"].shape[1]
    lengths = {len(arrays["norm_bb"]), len(arrays["soft_labels"])}
    if "conf" in arrays:
        lengths.add(arrays["conf"].size)
    if lengths != {num_regions}:
        raise RegionError("regions of another shape", f"{num_regions} features, {len(arrays['norm_bb'])} boxes")
    if arrays["norm_bb"].shape[1] != BOX_COLUMNS:
        raise RegionError("regions of another shape", f"boxes of {arrays['norm_bb'].shape[1]} values")
    if (width, num_classes) != (features, classes):
        raise RegionError(
            "regions of another detector",
            f"{width:,} features and {num_classes:,} classes, not {features:,} and {classes:,}",
        )
    if not num_regions:
        raise RegionError("no regions")
    # Allocated after the length is known: a header can claim any length for arrays of width 0.
    confidence = arrays.get("conf", np.ones(num_regions, dtype=np.float32)).reshape(-1)
    with np.errstate(over="ignore"):  # too large values are refused below
        boxes = arrays["norm_bb"].astype(np.float32)
        regions = Regions(
            arrays["features"].astype(np.float16),
            np.concatenate([boxes, boxes[:, 4:5] * boxes[:, 5:6]], 1),
            arrays["soft_labels"].astype(np.float16),
            confidence.astype(np.float32),
        )
    assert regions.boxes.shape[1] == NUM_BOX_VALUES
    if not all(np.isfinite(array).all() for array in vars(regions).values()):
        raise RegionError("regions with NaN, or with values too large for half precision")
    # Detects coordinates in pixels, and scores before the softmax, which would make the loss NaN.
    _refuse_outside(boxes, -TOLERANCE, 1 + TOLERANCE, "boxes that are not relative to the image")
    _refuse_outside(regions.probabilities, 0, 1, "class scores that are not probabilities")
    return regions


def _refuse_outside(values: np.ndarray, minimum: float, maximum: float, problem: str) -> None:
    if values.min() < minimum or values.max() > maximum:
        raise RegionError(f"regions with {problem}", f"{values.min():g} to {values.max():g}")


def _read_arrays(content: bytes) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if sum(member.file_size for member in file.infolist()) > MAX_BYTES:
                raise RegionError(f"regions of more than {MAX_BYTES >> 20} MiB")
            members = {*file.namelist()}
            names = [name for name in ARRAYS if f"{name}.npy" in members]
            if any(file.getinfo(f"{name}.npy").compress_type not in PACKED for name in names):
                raise RegionError("regions with a compression type that numpy does not use")
            return {name: _parse_array(_read_member(file, f"{name}.npy")) for name in names}
    except (RegionError, MemoryError):
        raise
    except Exception as error:  # numpy, zipfile and zlib raise errors of their own
        raise RegionError("damaged", f"{type(error).__name__}: {error}"[:200]) from None


def _read_member(file: zipfile.ZipFile, name: str) -> bytes:
    """Return the content of a member of a file of regions, limited: the member may be larger than its header claims."""
    with file.open(name) as member:
        return member.read(MAX_BYTES)


def _parse_array(content: bytes) -> np.ndarray:
    """Parse a `.npy` file without objects. `numpy.load` would allocate what the header claims before it finds the data
    missing."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, columns_first, dtype = read_header(file)
    size = math.prod(shape)
    if size * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"its header has shape {[*shape]} of {dtype}, but {len(content) - file.tell():,} bytes follow")
    if not size:
        return np.zeros(shape, dtype)
    values = np.frombuffer(content, dtype, size, file.tell())  # refuses objects
    return values.reshape(shape, order="F" if columns_first else "C")
