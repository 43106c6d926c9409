"""Tables of unfinished work are read as written, or reported as damaged."""

import numpy as np
import pytest

from data_pipeline.deduplicate.tables import load_table, save_table
from megaptm.errors import UserError


@pytest.mark.parametrize("rows", [0, 3])
def test_table_round_trip(tmp_path, rows):
    save_table(str(tmp_path / "it.npy"), np.arange(rows))
    assert load_table(str(tmp_path / "it.npy")).tolist() == list(range(rows))


@pytest.mark.parametrize("spoil", [lambda content: b"", lambda content: content[:-1], lambda content: b"?" * 200])
def test_damaged_table_is_rejected(tmp_path, spoil):
    path = tmp_path / "it.npy"
    save_table(str(path), np.arange(9))
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(UserError, match=r"it.npy is damaged: run the build again"):
        load_table(str(path))


def test_pickled_table_is_rejected(tmp_path):
    # A file in numpy's format whose values are a pickle.
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    (tmp_path / "it.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\x80\x04N.")
    with pytest.raises(UserError, match=r"it.npy is damaged"):
        load_table(str(tmp_path / "it.npy"))
