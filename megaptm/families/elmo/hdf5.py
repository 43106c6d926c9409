"""Tensors in HDF5 files, the format of published ELMo models. Files are validated before their content is read."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.storage import write_atomically

MAX_COMPRESSION_RATIO = 64
"""Maximum ratio of array size to stored size in an HDF5 file; only zeros compress more with deflate."""
MAX_CHUNK_ELEMENTS = 1 << 24
"""Maximum number of elements of a chunk of an HDF5 file."""


def import_h5py() -> Any:
    """Return the module h5py, for ELMo's HDF5 files. Raise UserError if it is not installed."""
    try:
        import h5py as module
    except ImportError:
        raise UserError("HDF5 files need h5py: `pip install 'megaptm[elmo]'`.") from None
    return module


def write_hdf5(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write each tensor of an ELMo as a float32 data set of an HDF5 file, atomically. A `/` in a name separates
    groups."""
    library, content = import_h5py(), io.BytesIO()
    with library.File(content, "w") as file:
        for name, tensor in tensors.items():
            file.create_dataset(name, data=tensor.to(torch.float32).numpy())
    write_atomically(path, content.getvalue())


def read_hdf5(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read ELMo's tensors of these names and shapes from an HDF5 file in float32. Raise UserError if one is missing,
    has another shape, or is stored outside the file."""
    library = import_h5py()
    try:
        with library.File(path, "r") as file:
            return {name: _read_array(library, file, name, shape, path) for name, shape in shapes.items()}
    except UserError:
        raise
    # Damaged files raise many types of errors.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not an HDF5 file, or is damaged ({error}): fetch it again.") from None


def _read_array(library: Any, file: Any, name: str, shape: tuple[int, ...], path: Path) -> Tensor:
    groups = name.split("/")
    for index in range(len(groups)):
        # Links, external and virtual data sets could expose any file of this machine.
        link = file.get("/".join(groups[: index + 1]), getlink=True)
        if link is None:
            raise UserError(f"{path} has no {name}, which options.json requires: give files of one model.")
        if not isinstance(link, library.HardLink):
            raise UserError(f"{path}: {name} is a link, which megaptm never follows: fetch the file again.")
    data = file[name]
    if not isinstance(data, library.Dataset) or data.external or data.is_virtual or data.dtype.kind != "f":
        raise UserError(f"{path}: {name} is not an array of floats in this file: fetch it again.")
    if data.shape != shape:
        raise UserError(
            f"{path}: {name} has shape {data.shape}, but options.json requires {shape}: give files of one model."
        )
    # Unwritten data takes no space in a file, and a chunk is decompressed completely for any read.
    compressed, chunk = data.id.get_storage_size(), math.prod(data.chunks or (0,))
    if compressed * MAX_COMPRESSION_RATIO < data.nbytes or chunk > MAX_CHUNK_ELEMENTS:
        raise UserError(f"{path}: {name} would need far more memory than the file has bytes: fetch it again.")
    return torch.from_numpy(data[()].astype(np.float32))
