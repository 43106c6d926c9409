"""Regions of many images in one HDF5 file: one group per image, named after it, with the arrays of
`families.uniter.region_files`. A group is converted to `.npz`.

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
from megaptm.families.uniter.region_files import ARRAYS, MAX_BYTES, RegionError

SUFFIXES = (".h5", ".hdf5")
MAX_COMPRESSION = 64
"""Maximum ratio of unpacked to stored bytes of an array of regions. Only zeros compress better with deflate."""
MAX_CHUNK_ELEMENTS = 1 << 24
"""Maximum elements of a chunk of an HDF5 file with regions, because a chunk is always decompressed completely."""
FAILURES = (OSError, RuntimeError, KeyError, ValueError, TypeError)
"""Exceptions that h5py raises for damaged HDF5 files."""


def list_region_images(path: Path) -> list[str]:
    """Return the sorted names of images in an HDF5 file of regions; raise `RegionError` if the file is damaged."""
    with _errors_as_refused(), _import_h5py().File(path, "r") as file:
        return sorted(file)


def read_image_regions(path: Path, name: str) -> bytes:
    """Return the regions of an image in an HDF5 file as `.npz`; raise `RegionError` if they are invalid."""
    library = _import_h5py()
    with _errors_as_refused(), library.File(path, "r") as file:
        group = _own_item(library, file, name)
        if not isinstance(group, library.Group):
            raise RegionError("HDF5 regions outside of a group")
        read: dict[str, Any] = {
            array: _read_array(library, _own_item(library, group, array)) for array in ARRAYS if array in group
        }
    content = io.BytesIO()
    np.savez(content, **read)
    return content.getvalue()


@contextmanager
def _errors_as_refused() -> Iterator[None]:
    """Convert errors of h5py about a file of regions to `RegionError`. Errors of the disk are re-raised unchanged."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise RegionError("damaged", f"{type(error).__name__}: {error}"[:200]) from None


def _own_item(library: Any, group: Any, name: str) -> Any:
    """Return the item of a group in an HDF5 file of regions. Links and virtual data sets are rejected: they could read
    any file of this machine."""
    if not isinstance(group.get(name, getlink=True), library.HardLink):
        raise RegionError("HDF5 regions behind a link")
    return group[name]


def _read_array(library: Any, item: Any) -> np.ndarray:
    if not isinstance(item, library.Dataset) or item.external or item.is_virtual or item.dtype.kind not in "fiu":
        raise RegionError("regions of another shape", "not numbers in this file")
    if item.nbytes > MAX_BYTES or item.id.get_storage_size() * MAX_COMPRESSION < item.nbytes:
        raise RegionError(f"regions of more than {MAX_BYTES >> 20} MiB", f"{item.nbytes:,} bytes")
    if math.prod(item.chunks or (0,)) > MAX_CHUNK_ELEMENTS:
        raise RegionError(f"regions of more than {MAX_BYTES >> 20} MiB", f"chunks of {item.chunks}")
    return np.asarray(item[()])


def _import_h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise UserError("regions in HDF5 files need h5py: `pip install megaptm[images]`.") from None
    return h5py
