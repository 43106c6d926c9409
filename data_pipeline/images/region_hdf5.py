"""Regions of many images in one HDF5 file: one group per image, named after it, with the arrays of
`objectives.region_files`. A group is converted to `.npz`.

Files are untrusted. Checks before reading ensure that nothing outside the file is read, and that memory use is not far
larger than the file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from megaptm.errors import UserError
from megaptm.objectives.region_files import ARRAYS, MOST_BYTES, RefusedRegions

SUFFIXES = (".h5", ".hdf5")
MOST_PACKED = 64
"""Maximum ratio of unpacked to stored bytes of an array. Only zeros compress better with deflate."""
MOST_OF_A_CHUNK = 1 << 24
"""Maximum elements of a chunk, because a chunk is always decompressed completely."""
FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""Exceptions that h5py raises for damaged files."""


def groups_in(path: Path) -> list[str]:
    """Return the sorted names of images; raise `RefusedRegions` if the file is damaged."""
    with _damage_told(), _library().File(path, "r") as file:
        return sorted(file)


def regions_of(path: Path, name: str) -> bytes:
    """Return the regions of an image as `.npz`; raise `RefusedRegions` if they are invalid."""
    library = _library()
    with _damage_told(), library.File(path, "r") as file:
        group = _own(library, file, name)
        if not isinstance(group, library.Group):
            raise RefusedRegions("regions of an HDF5 file that are in no group")
        read: dict[str, Any] = {
            array: _read(library, _own(library, group, array)) for array in ARRAYS if array in group
        }
    content = io.BytesIO()
    np.savez(content, **read)
    return content.getvalue()


@contextmanager
def _damage_told() -> Iterator[None]:
    """Convert errors of h5py to `RefusedRegions`. Errors of the disk are re-raised unchanged."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise RefusedRegions("damaged", f"{type(error).__name__}: {error}"[:200]) from None


def _own(library: Any, group: Any, name: str) -> Any:
    """Return the item of a group. Links and virtual data sets are rejected: they could read any file of this
    machine."""
    if not isinstance(group.get(name, getlink=True), library.HardLink):
        raise RefusedRegions("regions of an HDF5 file that are a link")
    return group[name]


def _read(library: Any, found: Any) -> np.ndarray:
    if not isinstance(found, library.Dataset) or found.external or found.is_virtual or found.dtype.kind not in "fiu":
        raise RefusedRegions("regions of another shape", "no numbers in this file")
    if found.nbytes > MOST_BYTES or found.id.get_storage_size() * MOST_PACKED < found.nbytes:
        raise RefusedRegions(f"regions of more than {MOST_BYTES >> 20} MiB", f"{found.nbytes:,} bytes")
    if math.prod(found.chunks or (0,)) > MOST_OF_A_CHUNK:
        raise RefusedRegions(f"regions of more than {MOST_BYTES >> 20} MiB", f"chunks of {found.chunks}")
    return np.asarray(found[()])


def _library() -> Any:
    try:
        import h5py
    except ImportError:
        raise UserError("regions in HDF5 files need h5py: `pip install megaptm[images]`.") from None
    return h5py
