"""Tensors can be read in any blocks, independent of the blocks and spans in which they were written."""

import itertools
import json
import math
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from megaptm.checkpoint import tensors
from megaptm.checkpoint.boxes import Box, span_boxes
from megaptm.checkpoint.records import ITEM_BYTES
from megaptm.checkpoint.tensors import TensorPiece, TensorReader, write_pieces
from megaptm.errors import UserError


def test_dtypes_have_their_bytes():
    assert {name: dtype.itemsize for name, dtype in tensors.DTYPES.items()} == ITEM_BYTES


shapes = st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64])


@st.composite
def draw_cuts(draw, size):
    """Return `size` in consecutive, uneven parts: (start, length) of each."""
    inner = sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))) if size > 1 else []
    edges = [0, *inner, size]
    return [(start, stop - start) for start, stop in itertools.pairwise(edges)]


@st.composite
def draw_blocks(draw, shape):
    """Return a grid of uneven blocks that tile `shape`."""
    grid = [((), ())]
    for size in shape:
        parts = draw(draw_cuts(size))
        grid = [((*offset, start), (*block, length)) for offset, block in grid for start, length in parts]
    return grid


@st.composite
def draw_written_tensor(draw):
    """Return a tensor and its pieces: blocks, some of them cut into flat spans, some written twice."""
    shape, dtype = draw(shapes), draw(dtypes)
    full_tensor = torch.arange(math.prod(shape)).to(dtype).reshape(shape)
    pieces = []
    for offset, block in draw(draw_blocks(shape)):
        data = full_tensor[tuple(slice(at, at + of) for at, of in zip(offset, block, strict=True))]
        if draw(st.booleans()):
            for start, length in draw(draw_cuts(data.numel())):
                span = (start, start + length)
                pieces.append(TensorPiece("w", shape, offset, block, data.reshape(-1)[slice(*span)], span))
        else:
            pieces += [TensorPiece("w", shape, offset, block, data)] * draw(st.integers(1, 2))
    return full_tensor, draw(st.permutations(pieces))


@st.composite
def draw_inner_block(draw, shape):
    offset = tuple(draw(st.integers(0, size)) for size in shape)
    return offset, tuple(draw(st.integers(0, size - at)) for size, at in zip(shape, offset, strict=True))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tensor=draw_written_tensor(), ranks=st.integers(1, 4), runs=st.sampled_from([0, 16, 1 << 20]))
def test_any_block_can_be_read(data, tensor, ranks, runs, monkeypatch):
    # Runs shorter than RUN_BYTES are read together: the values below select all three ways of reading.
    monkeypatch.setattr(tensors, "RUN_BYTES", runs)
    monkeypatch.setattr(tensors, "GROUP_BYTES", 64)
    full_tensor, pieces = tensor
    with TemporaryDirectory() as name:
        folder = Path(name)
        reader = TensorReader(folder, [write_pieces(folder / str(rank), pieces[rank::ranks]) for rank in range(ranks)])
        assert reader.names() == ["w"]
        assert (reader.shape("w"), reader.dtype("w")) == (tuple(full_tensor.shape), full_tensor.dtype)
        assert torch.equal(reader.read("w"), full_tensor)
        offset, block = data.draw(draw_inner_block(full_tensor.shape))
        part = full_tensor[tuple(slice(at, at + of) for at, of in zip(offset, block, strict=True))]
        assert torch.equal(reader.read("w", offset, block), part)


@given(data=st.data(), shape=shapes)
def test_boxes_of_span_cover_its_elements_in_order(data, shape):
    count = math.prod(shape)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    full_tensor, origin = torch.arange(count).reshape(shape), Box((0,) * len(shape), shape)
    boxes = list(span_boxes(shape, start, stop))
    elements = [element for box in boxes for element in full_tensor[box.slices_in(origin)].reshape(-1).tolist()]
    assert elements == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_missing_elements_are_reported(tmp_path):
    left = TensorPiece("weight/layer", (4, 6), (0, 0), (4, 3), torch.ones(4, 3))
    half = TensorPiece("weight/layer", (4, 6), (0, 3), (4, 3), torch.ones(5), span=(0, 5))
    reader = TensorReader(tmp_path, [write_pieces(tmp_path / "a", [left, half])])
    assert torch.equal(reader.read("weight/layer", (0, 0), (2, 4)), torch.ones(2, 4))
    with pytest.raises(UserError, match=r"contain only 17 elements of weight/layer, whose shape is \(4, 6\)"):
        reader.read("weight/layer")
    reader = TensorReader(tmp_path, [write_pieces(tmp_path / "a", [left, half, left])])
    with pytest.raises(UserError, match=r"no file contains the block of \(2, 3\) at \(2, 3\) of weight/layer"):
        reader.read("weight/layer")


def test_unknown_tensor_or_block_is_reported(tmp_path):
    reader = TensorReader(tmp_path, [write_pieces(tmp_path / "a", [TensorPiece("w", (2,), (0,), (2,), torch.ones(2))])])
    with pytest.raises(UserError, match="no tensor weight/missing"):
        reader.read("weight/missing")
    with pytest.raises(UserError, match=r"w has shape \(2,\), so it has no block of \(2,\) at \(1,\)"):
        reader.read("w", (1,), (2,))
    with pytest.raises(UserError, match="has no block"):
        reader.read("w", (0, 0), (1, 1))


def test_files_with_different_shapes_are_rejected(tmp_path):
    first = write_pieces(tmp_path / "a", [TensorPiece("w", (2,), (0,), (2,), torch.ones(2))])
    second = write_pieces(tmp_path / "b", [TensorPiece("w", (4,), (2,), (2,), torch.ones(2))])
    with pytest.raises(UserError, match="w has another shape or dtype in b than in a"):
        TensorReader(tmp_path, [first, second])


def test_truncated_file_is_reported(tmp_path):
    record = write_pieces(tmp_path / "a", [TensorPiece("w", (100,), (0,), (100,), torch.ones(100))])
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(record.size - 40)
    with pytest.raises(UserError, match="a is truncated at byte"):
        TensorReader(tmp_path, [record]).read("w")


def test_nonfinite_values_are_not_read(tmp_path):
    record = write_pieces(tmp_path / "a", [TensorPiece("w", (4, 2), (0, 0), (4, 2), torch.ones(4, 2))])
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-4] + struct.pack("<f", math.nan))
    reader = TensorReader(tmp_path, [record])
    assert reader.read("w", (0, 0), (3, 2)).sum() == 6
    with pytest.raises(UserError, match=rf"{tmp_path}: w has NaN or infinity in 1 of 8 elements: take another"):
        reader.read("w")


def test_files_are_plain_safetensors_with_locations(tmp_path):
    odd = torch.arange(3, dtype=torch.bfloat16)
    pieces = [
        TensorPiece("exp_avg/b", (3,), (0,), (3,), odd),
        TensorPiece("weight/w", (4, 2), (0, 0), (2, 2), torch.eye(2)),
        TensorPiece("weight/w", (4, 2), (2, 0), (2, 2), torch.ones(3), span=(1, 4)),
        TensorPiece("empty", (2,), (0,), (2,), torch.ones(0), span=(1, 1)),
    ]
    write_pieces(tmp_path / "rank.safetensors", pieces)
    with safe_open(tmp_path / "rank.safetensors", "pt") as file:
        assert set(file.keys()) == {"exp_avg/b", "weight/w", "weight/w#1", "empty"}
        assert torch.equal(file.get_tensor("exp_avg/b"), odd)
        assert torch.equal(file.get_tensor("weight/w#1"), torch.ones(3))
        locations = json.loads(file.metadata()["megaptm"])
    assert locations["weight/w#1"] == {
        "name": "weight/w",
        "shape": [4, 2],
        "offset": [2, 0],
        "block": [2, 2],
        "span": [1, 4],
    }


def test_open_files_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "MAX_OPEN_FILES", 2)
    files = [
        write_pieces(tmp_path / str(row), [TensorPiece("w", (6, 2), (row, 0), (1, 2), torch.full((1, 2), float(row)))])
        for row in range(6)
    ]
    assert TensorReader(tmp_path, files).read("w")[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
