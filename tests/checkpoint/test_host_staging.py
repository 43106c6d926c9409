"""Copies of tensors in host memory do not change with the tensors, and reuse memory."""

import pytest
import torch

from megaptm.checkpoint import host_staging
from megaptm.checkpoint.host_staging import HostStaging
from megaptm.checkpoint.tensors import DTYPES, TensorPiece


def full_piece(name, data):
    return TensorPiece(name, tuple(data.shape), (0,) * data.dim(), tuple(data.shape), data)


def pieces():
    """Return tensors of all dtypes and of unusual shapes, one of them strided."""
    regular = [full_piece(str(dtype), (torch.arange(15) % 2).to(dtype).reshape(3, 5)) for dtype in DTYPES.values()]
    strided = torch.arange(12.0).reshape(3, 4).t()
    return [
        *regular,
        full_piece("strided", strided),
        full_piece("one", torch.tensor(7.0)),
        full_piece("none", torch.empty(0, 4)),
    ]


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1 << 20])
def test_copies_ignore_later_changes(monkeypatch, buffer_bytes):
    monkeypatch.setattr(host_staging, "BUFFER_BYTES", buffer_bytes)
    before, changed = pieces(), pieces()
    copies = HostStaging().copy_pieces(changed)
    for piece in changed:
        piece.data.fill_(9)
    assert [piece.name for piece in copies] == [piece.name for piece in before]
    for copy, piece in zip(copies, before, strict=True):
        assert copy.data.dtype == piece.data.dtype
        assert copy.data.is_contiguous()
        assert torch.equal(copy.data, piece.data), piece.name


def test_buffers_are_reused():
    copies = HostStaging()
    first, second = ([piece.data.data_ptr() for piece in copies.copy_pieces(pieces())] for _ in range(2))
    assert first == second


def test_copies_do_not_overlap(monkeypatch):
    monkeypatch.setattr(host_staging, "BUFFER_BYTES", 256)
    taken = HostStaging().copy_pieces(
        full_piece(str(number), torch.full((number,), float(number))) for number in range(40)
    )
    assert all(piece.data.eq(float(piece.name)).all() for piece in taken)


def test_pieces_are_consumed_one_at_a_time():
    alive = []

    def one_by_one():
        for number in range(3):
            assert len(alive) == number
            yield full_piece(str(number), torch.ones(4))
            alive.append(number)

    assert len(HostStaging().copy_pieces(one_by_one())) == 3
