"""HDF5 files: round trip, and refusal of links and external data."""

import re

import pytest
import torch

from megaptm.errors import UserError
from megaptm.families.elmo.hdf5 import read_hdf5, write_hdf5

h5py = pytest.importorskip("h5py")
SHAPES = {"one": (2, 3), "deep/er/two": (4,)}


@pytest.fixture
def file(tmp_path):
    write_hdf5(
        tmp_path / "a.hdf5",
        {name: torch.arange(float(torch.Size(shape).numel())).reshape(shape) for name, shape in SHAPES.items()},
    )
    return tmp_path / "a.hdf5"


def test_round_trip(file):
    tensors = read_hdf5(file, SHAPES)
    assert tensors["one"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["deep/er/two"].tolist() == [0, 1, 2, 3]
    with h5py.File(file) as opened:
        assert opened["deep"]["er"]["two"].dtype == "float32"


def replace_with_link(opened, name, link):
    del opened[name]
    opened[name] = link


def replace_with_external(opened, name):
    del opened[name]
    opened.create_dataset(name, (2, 3), "float32", external=[("/etc/hostname", 0, 24)])


def replace_with_bits(opened, name):
    del opened[name]
    h5py.h5d.create(opened.id, name.encode(), h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((2, 3)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda opened: opened.pop("one"), "a.hdf5 has no one, which options.json requires"),
        (
            lambda opened: replace_with_link(opened, "one", h5py.SoftLink("/deep/er/two")),
            "a.hdf5: one is a link",
        ),
        (
            lambda opened: replace_with_link(opened, "deep", h5py.ExternalLink("a.hdf5", "/")),
            "a.hdf5: deep/er/two is a link",
        ),
        (lambda opened: replace_with_external(opened, "one"), "a.hdf5: one is not an array of floats in this file"),
        (
            lambda opened: replace_with_link(opened, "one", "a text"),
            "a.hdf5: one is not an array of floats in this file",
        ),
        (
            lambda opened: replace_with_link(opened, "one", [1.0, 2.0]),
            r"a.hdf5: one has shape \(2,\), but options.json requires",
        ),
        (
            lambda opened: replace_with_bits(opened, "one"),
            r"a.hdf5 is not an HDF5 file, or is damaged \(No NumPy",
        ),
    ],
)
def test_invalid_dataset_is_refused(file, damage, message):
    with h5py.File(file, "a") as opened:
        damage(opened)
    with pytest.raises(UserError, match=f"^{re.escape(str(file.parent))}/{message}"):
        read_hdf5(file, SHAPES)


def test_damaged_file_is_refused(file):
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match="is not an HDF5 file, or is damaged"):
        read_hdf5(file, SHAPES)


def test_missing_h5py(file, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"need h5py: `pip install 'megaptm\[elmo\]'`"):
        read_hdf5(file, SHAPES)
