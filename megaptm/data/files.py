"""Small files of a corpus: written whole or not at all, the same bytes for the same content."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np


def npy_bytes(array: np.ndarray) -> bytes:
    """The bytes of a `.npy` file, format version 1.0."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0))
    return buffer.getvalue()


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that a reader, or a crash, sees all of it or the old file."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
