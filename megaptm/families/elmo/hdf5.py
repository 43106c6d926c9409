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
from megaptm.hub.library import h5py
from megaptm.storage import write_atomically

MOST_PACKED = 64
"""Largest ratio of array size to stored size; only zeros compress more with deflate."""
MOST_OF_A_CHUNK = 1 << 24
"""Largest number of elements of a chunk."""


def write_hdf5(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write each tensor as a float32 data set, atomically. A `/` in a name separates groups."""
    library, content = h5py(), io.BytesIO()
    with library.File(content, "w") as file:
        for name, tensor in tensors.items():
            file.create_dataset(name, data=tensor.to(torch.float32).numpy())
    write_atomically(path, content.getvalue())


def read_hdf5(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read tensors of these names and shapes in float32. Raise UserError if one is missing, has another shape, or is
    stored outside the file."""
    library = h5py()
    try:
        with library.File(path, "r") as file:
            return {name: _read(library, file, name, shape, path) for name, shape in shapes.items()}
    except UserError:
        raise
    # Damaged files raise many types of errors.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no HDF5 file, or damaged ({error}): fetch it again.") from None


def _read(library: Any, file: Any, name: str, shape: tuple[int, ...], path: Path) -> Tensor:
    steps = name.split("/")
    for number in range(len(steps)):
        # Links, external and virtual data sets could expose any file of this machine.
        link = file.get("/".join(steps[: number + 1]), getlink=True)
        if link is None:
            raise UserError(f"{path} has no {name}: it is of another model than its options say.")
        if not isinstance(link, library.HardLink):
            raise UserError(f"{path}: {name} is a link to another place, which is never followed: fetch it again.")
    found = file[name]
    if not isinstance(found, library.Dataset) or found.external or found.is_virtual or found.dtype.kind != "f":
        raise UserError(f"{path}: {name} is not an array of numbers in this file: fetch it again.")
    if found.shape != shape:
        raise UserError(f"{path}: {name} is {found.shape}, and by the options {shape}: they are of two models.")
    # Unwritten data takes no space in a file, and a chunk is decompressed completely for any read.
    if found.id.get_storage_size() * MOST_PACKED < found.nbytes or math.prod(found.chunks or (0,)) > MOST_OF_A_CHUNK:
        raise UserError(f"{path}: {name} takes far more memory than its file has bytes: fetch it again.")
    return torch.from_numpy(found[()].astype(np.float32))
