"""Tar headers and .npy arrays are written and read as by tarfile and NumPy."""

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaptm.data.files import npy_bytes, open_tar, tar_header, tar_members


@given(
    name=st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=100),
    size=st.integers(0, 8**11 - 1),
)
def test_tar_header_equals_tarfile(name, size):
    try:
        expected = tarfile.TarInfo(name)
        expected.size = size
        written = expected.tobuf(tarfile.USTAR_FORMAT)
    except ValueError:
        with pytest.raises(ValueError, match="too long"):
            tar_header(name, size)
    else:
        assert tar_header(name, size) == written


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(
    ("size", "pax"),
    [(-512, {}), (1 << 61, {}), (0, {"GNU.sparse.size": "0,1"}), (0, {"GNU.sparse.major": "1", "size": "-1"})],
)
def test_invalid_tar_raises_tar_error(size, pax, is_first, tmp_path):
    with (tmp_path / "invalid.tar").open("wb") as file:
        if not is_first:
            file.write(tarfile.TarInfo("good").tobuf())
        member = tarfile.TarInfo("bad")
        member.size, member.pax_headers = size, pax
        file.write(member.tobuf(tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(tarfile.TarError), open_tar(tmp_path / "invalid.tar") as tar:
        assert len([*tar_members(tar)]) < 3


def test_long_names_are_refused(tmp_path):
    """tarfile would read them into memory, and reserve the stated size before."""
    member = tarfile.TarInfo("a")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(tarfile.ReadError, match="invalid header: names of 1,099,511,627,776 bytes"):
        open_tar(tmp_path / "a.tar")


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i4"])
@pytest.mark.parametrize("shape", [(0,), (7,), (5, 3)])
def test_npy_bytes_equal_numpy(dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0))
    assert npy_bytes(array) == buffer.getvalue()
    assert np.array_equal(np.load(io.BytesIO(npy_bytes(array.T))), array.T)
