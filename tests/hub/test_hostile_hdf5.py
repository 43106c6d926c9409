"""Small HDF5 files that take much memory to read."""

from pathlib import Path

import pytest

from megaptm.errors import UserError
from megaptm.families.elmo.hdf5 import read_hdf5


@pytest.mark.parametrize("how", ["never written", "one chunk"])
def test_small_files_of_large_arrays_are_refused(tmp_path: Path, how: str) -> None:
    h5py = pytest.importorskip("h5py")
    shape = (1 << 24,) if how == "never written" else (4,)
    with h5py.File(tmp_path / "it.hdf5", "w") as file:
        if how == "never written":
            file.create_dataset("a", shape=shape, dtype="f4")
        else:
            options = {"maxshape": (None,), "chunks": (1 << 25,), "dtype": "f4", "compression": "gzip"}
            file.create_dataset("a", shape=shape, **options)[:] = 1
    with pytest.raises(UserError, match="far more memory than the file"):
        read_hdf5(tmp_path / "it.hdf5", {"a": shape})
