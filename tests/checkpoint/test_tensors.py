"""Any block of any tensor can be read, whatever blocks and spans it was written in."""

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
from megaptm.checkpoint.tensors import TensorPiece, TensorReader, write_pieces
from megaptm.errors import UserError

shapes = st.lists(st.integers(1, 7), min_size=0, max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64])


@st.composite
def cuts(draw, size):
    """`size` in consecutive, uneven parts: (start, length) of each."""
    inner = sorted(draw(st.sets(st.integers(1, size - 1), max_size=3))) if size > 1 else []
    edges = [0, *inner, size]
    return [(start, stop - start) for start, stop in itertools.pairwise(edges)]


@st.composite
def blocks_of(draw, shape):
    """A grid of uneven blocks that tile `shape`."""
    grid = [((), ())]
    for size in shape:
        parts = draw(cuts(size))
        grid = [((*offset, start), (*block, length)) for offset, block in grid for start, length in parts]
    return grid


@st.composite
def written(draw):
    """A whole tensor and its pieces: tiled in blocks, some of those in flat spans, some written twice."""
    shape, dtype = draw(shapes), draw(dtypes)
    whole = torch.arange(math.prod(shape)).to(dtype).reshape(shape)
    pieces = []
    for offset, block in draw(blocks_of(shape)):
        data = whole[tuple(slice(at, at + of) for at, of in zip(offset, block, strict=True))]
        if draw(st.booleans()):
            for start, length in draw(cuts(data.numel())):
                span = (start, start + length)
                pieces.append(TensorPiece("w", shape, offset, block, data.reshape(-1)[slice(*span)], span))
        else:
            pieces += [TensorPiece("w", shape, offset, block, data)] * draw(st.integers(1, 2))
    return whole, draw(st.permutations(pieces))


@st.composite
def block_within(draw, shape):
    offset = tuple(draw(st.integers(0, size)) for size in shape)
    return offset, tuple(draw(st.integers(0, size - at)) for size, at in zip(shape, offset, strict=True))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), tensor=written(), ranks=st.integers(1, 4), runs=st.sampled_from([0, 16, 1 << 20]))
def test_every_block_reads_back_whatever_wrote_it(data, tensor, ranks, runs, monkeypatch):
    # The size below which a run is read together with its neighbors: all three ways of reading are taken.
    monkeypatch.setattr(tensors, "RUN_BYTES", runs)
    monkeypatch.setattr(tensors, "GROUP_BYTES", 64)
    whole, pieces = tensor
    with TemporaryDirectory() as name:
        folder = Path(name)
        reader = TensorReader(folder, [write_pieces(folder / str(rank), pieces[rank::ranks]) for rank in range(ranks)])
        assert reader.names() == ["w"]
        assert (reader.shape("w"), reader.dtype("w")) == (tuple(whole.shape), whole.dtype)
        assert torch.equal(reader.read("w"), whole)
        offset, block = data.draw(block_within(whole.shape))
        part = whole[tuple(slice(at, at + of) for at, of in zip(offset, block, strict=True))]
        assert torch.equal(reader.read("w", offset, block), part)


@given(data=st.data(), shape=shapes)
def test_the_boxes_of_a_span_are_its_elements_in_order(data, shape):
    count = math.prod(shape)
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    whole, origin = torch.arange(count).reshape(shape), Box((0,) * len(shape), shape)
    boxes = list(span_boxes(shape, start, stop))
    found = [element for box in boxes for element in whole[box.within(origin)].reshape(-1).tolist()]
    assert found == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_a_hole_in_a_tensor_is_an_error_that_names_it(tmp_path):
    left = TensorPiece("weight/layer", (4, 6), (0, 0), (4, 3), torch.ones(4, 3))
    half = TensorPiece("weight/layer", (4, 6), (0, 3), (4, 3), torch.ones(5), span=(0, 5))
    reader = TensorReader(tmp_path, [write_pieces(tmp_path / "a", [left, half])])
    assert torch.equal(reader.read("weight/layer", (0, 0), (2, 4)), torch.ones(2, 4))
    with pytest.raises(UserError, match=r"hold 17 elements of weight/layer, whose shape is \(4, 6\)"):
        reader.read("weight/layer")
    reader = TensorReader(tmp_path, [write_pieces(tmp_path / "a", [left, half, left])])
    with pytest.raises(UserError, match=r"weight/layer \(shape \(4, 6\)\) from \(2, 3\) on \(a block of \(2, 3\)\)"):
        reader.read("weight/layer")


def test_a_tensor_or_block_that_is_not_there_is_an_error_that_names_it(tmp_path):
    reader = TensorReader(tmp_path, [write_pieces(tmp_path / "a", [TensorPiece("w", (2,), (0,), (2,), torch.ones(2))])])
    with pytest.raises(UserError, match="no tensor weight/missing"):
        reader.read("weight/missing")
    with pytest.raises(UserError, match=r"w has shape \(2,\): it holds no block \(2,\) at \(1,\)"):
        reader.read("w", (1,), (2,))
    with pytest.raises(UserError, match="no block"):
        reader.read("w", (0, 0), (1, 1))


def test_files_that_disagree_on_a_tensor_are_refused(tmp_path):
    one = write_pieces(tmp_path / "a", [TensorPiece("w", (2,), (0,), (2,), torch.ones(2))])
    other = write_pieces(tmp_path / "b", [TensorPiece("w", (4,), (2,), (2,), torch.ones(2))])
    with pytest.raises(UserError, match="a and b disagree on the shape of w"):
        TensorReader(tmp_path, [one, other])


def test_a_file_cut_short_is_an_error_that_names_it(tmp_path):
    record = write_pieces(tmp_path / "a", [TensorPiece("w", (100,), (0,), (100,), torch.ones(100))])
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(record.size - 40)
    with pytest.raises(UserError, match="a is cut short"):
        TensorReader(tmp_path, [record]).read("w")


def test_a_number_that_is_none_is_not_read(tmp_path):
    record = write_pieces(tmp_path / "a", [TensorPiece("w", (4, 2), (0, 0), (4, 2), torch.ones(4, 2))])
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-4] + struct.pack("<f", math.nan))
    reader = TensorReader(tmp_path, [record])
    assert reader.read("w", (0, 0), (3, 2)).sum() == 6
    with pytest.raises(UserError, match=rf"{tmp_path}: w is not finite \(1 of 8 numbers\): take another checkpoint"):
        reader.read("w")


def test_the_files_are_plain_safetensors_and_describe_themselves(tmp_path):
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
        placed = json.loads(file.metadata()["megaptm"])
    assert placed["weight/w#1"] == {
        "name": "weight/w",
        "shape": [4, 2],
        "offset": [2, 0],
        "block": [2, 2],
        "span": [1, 4],
    }


def test_more_files_than_are_kept_open_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "MAX_OPEN_FILES", 2)
    files = [
        write_pieces(tmp_path / str(row), [TensorPiece("w", (6, 2), (row, 0), (1, 2), torch.full((1, 2), float(row)))])
        for row in range(6)
    ]
    assert TensorReader(tmp_path, files).read("w")[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
