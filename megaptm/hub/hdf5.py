"""Tensors in an HDF5 file, as ELMo's are published; what a file from elsewhere says is checked before it is read."""

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
from megaptm.storage import write_whole

MOST_PACKED = 64
"""Times the bytes of numbers are those that a file has of them: zeros in deflate alone are packed more."""
MOST_OF_A_CHUNK = 1 << 24
"""Numbers."""


def write_hdf5(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Each as a float32 data set; a `/` in a name begins what is in a group. The file is there whole or not at all."""
    library, content = h5py(), io.BytesIO()
    with library.File(content, "w") as file:
        for name, tensor in tensors.items():
            file.create_dataset(name, data=tensor.to(torch.float32).numpy())
    write_whole(path, content.getvalue())


def read_hdf5(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Those of these names, float32; a `UserError` where one is not there, is of another shape or not of this file."""
    library = h5py()
    try:
        with library.File(path, "r") as file:
            return {name: _read(library, file, name, shape, path) for name, shape in shapes.items()}
    except UserError:
        raise
    # A damaged file fails in as many ways as there are things in it.
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no HDF5 file, or damaged ({error}): fetch it again.") from None


def _read(library: Any, file: Any, name: str, shape: tuple[int, ...], path: Path) -> Tensor:
    steps = name.split("/")
    for number in range(len(steps)):
        # Links, data sets in files outside and those made of others could show any file of this machine.
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
    # What was never written takes no room in a file, and a chunk is unpacked whole, however little of it is asked for.
    if found.id.get_storage_size() * MOST_PACKED < found.nbytes or math.prod(found.chunks or (0,)) > MOST_OF_A_CHUNK:
        raise UserError(f"{path}: {name} takes far more memory than its file has bytes: fetch it again.")
    return torch.from_numpy(found[()].astype(np.float32))
