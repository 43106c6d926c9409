"""Small HDF5 files that need much memory to read."""

from pathlib import Path

import pytest

from megaptm.errors import UserError
from megaptm.families.elmo.hdf5 import read_hdf5


@pytest.mark.parametrize("kind", ["never written", "one chunk"])
def test_small_file_with_large_array_is_refused(tmp_path: Path, kind: str) -> None:
    h5py = pytest.importorskip("h5py")
    shape = (1 << 24,) if kind == "never written" else (4,)
    with h5py.File(tmp_path / "it.hdf5", "w") as file:
        if kind == "never written":
            file.create_dataset("a", shape=shape, dtype="f4")
        else:
            options = {"maxshape": (None,), "chunks": (1 << 25,), "dtype": "f4", "compression": "gzip"}
            file.create_dataset("a", shape=shape, **options)[:] = 1
    with pytest.raises(UserError, match="far more memory than the file"):
        read_hdf5(tmp_path / "it.hdf5", {"a": shape})
