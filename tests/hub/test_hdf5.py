"""Tensors in HDF5: there and back, and what a file from elsewhere may not do."""

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


def test_what_is_written_is_read(file):
    found = read_hdf5(file, SHAPES)
    assert found["one"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["deep/er/two"].tolist() == [0, 1, 2, 3]
    with h5py.File(file) as opened:
        assert opened["deep"]["er"]["two"].dtype == "float32"


def linked(opened, name, link):
    del opened[name]
    opened[name] = link


def outside(opened, name):
    del opened[name]
    opened.create_dataset(name, (2, 3), "float32", external=[("/etc/hostname", 0, 24)])


def of_no_numbers(opened, name):
    del opened[name]
    h5py.h5d.create(opened.id, name.encode(), h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((2, 3)))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda opened: opened.pop("one"), "a.hdf5 has no one, which options.json requires"),
        (
            lambda opened: linked(opened, "one", h5py.SoftLink("/deep/er/two")),
            "a.hdf5: one is a link",
        ),
        (
            lambda opened: linked(opened, "deep", h5py.ExternalLink("a.hdf5", "/")),
            "a.hdf5: deep/er/two is a link",
        ),
        (lambda opened: outside(opened, "one"), "a.hdf5: one is not an array of floats in this file"),
        (lambda opened: linked(opened, "one", "a text"), "a.hdf5: one is not an array of floats in this file"),
        (
            lambda opened: linked(opened, "one", [1.0, 2.0]),
            r"a.hdf5: one has shape \(2,\), but options.json requires",
        ),
        (
            lambda opened: of_no_numbers(opened, "one"),
            r"a.hdf5 is not an HDF5 file, or is damaged \(No NumPy",
        ),
    ],
)
def test_what_is_not_there_or_from_elsewhere_is_refused(file, spoil, sentence):
    with h5py.File(file, "a") as opened:
        spoil(opened)
    with pytest.raises(UserError, match=f"^{re.escape(str(file.parent))}/{sentence}"):
        read_hdf5(file, SHAPES)


def test_a_damaged_file_is_told(file):
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(UserError, match="is not an HDF5 file, or is damaged"):
        read_hdf5(file, SHAPES)


def test_without_h5py_it_says_what_to_install(file, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"need h5py: `pip install 'megaptm\[elmo\]'`"):
        read_hdf5(file, SHAPES)
