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
import zipfile
from dataclasses import dataclass

import numpy as np

from megaptm.batch import BOX_NUMBERS

SUFFIX = "npz"
MOST_BYTES = 64 << 20
"""Of a file, unpacked: 100 regions of 2,048 features and 1,601 classes take 1.5 MiB."""
NEEDED = {"features": 2, "norm_bb": 2, "soft_labels": 2}
"""Array -> its number of axes."""
OF_A_BOX = 6


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
    if any(arrays[name].ndim != axes or arrays[name].dtype.kind not in "fiu" for name, axes in NEEDED.items()):
        raise RefusedRegions("regions of another shape", ", ".join(f"{n} {[*arrays[n].shape]}" for n in NEEDED))
    number, wide = arrays["features"].shape
    confidence = arrays.get("conf", np.ones(number, dtype=np.float32)).reshape(-1)
    known = arrays["soft_labels"].shape[1]
    if {len(arrays["norm_bb"]), len(arrays["soft_labels"]), len(confidence)} != {number}:
        raise RefusedRegions("regions of another shape", f"{number} features, {len(arrays['norm_bb'])} boxes")
    if arrays["norm_bb"].shape[1] != OF_A_BOX:
        raise RefusedRegions("regions of another shape", f"boxes of {arrays['norm_bb'].shape[1]} numbers")
    if (wide, known) != (features, classes):
        raise RefusedRegions(
            "regions of another detector", f"{wide:,} features and {known:,} classes, not {features:,} and {classes:,}"
        )
    if not number:
        raise RefusedRegions("no regions")
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
    return made


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if sum(member.file_size for member in file.infolist()) > MOST_BYTES:
                raise RefusedRegions(f"regions of more than {MOST_BYTES >> 20} MiB")
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return {name: found[name] for name in (*NEEDED, "conf") if name in found.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, NotImplementedError, SyntaxError) as error:
        raise RefusedRegions("damaged", f"{type(error).__name__}: {error}"[:200]) from None
