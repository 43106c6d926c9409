"""Copies in host memory are of their moment, and their memory is used again."""

import pytest
import torch

from megaptm.checkpoint import host_staging
from megaptm.checkpoint.host_staging import HostStaging
from megaptm.checkpoint.tensors import DTYPES, TensorPiece


def whole(name, data):
    return TensorPiece(name, tuple(data.shape), (0,) * data.dim(), tuple(data.shape), data)


def pieces():
    """Of all types and odd shapes, one of them strided."""
    made = [whole(str(dtype), (torch.arange(15) % 2).to(dtype).reshape(3, 5)) for dtype in DTYPES.values()]
    strided = torch.arange(12.0).reshape(3, 4).t()
    return [*made, whole("strided", strided), whole("one", torch.tensor(7.0)), whole("none", torch.empty(0, 4))]


@pytest.mark.parametrize("buffer_bytes", [1, 100, 1 << 20])
def test_what_happens_to_the_tensors_later_does_not_matter(monkeypatch, buffer_bytes):
    monkeypatch.setattr(host_staging, "BUFFER_BYTES", buffer_bytes)
    before, moving = pieces(), pieces()
    copies = HostStaging().take(moving)
    for piece in moving:
        piece.data.fill_(9)
    assert [piece.name for piece in copies] == [piece.name for piece in before]
    for copy, piece in zip(copies, before, strict=True):
        assert copy.data.dtype == piece.data.dtype
        assert copy.data.is_contiguous()
        assert torch.equal(copy.data, piece.data), piece.name


def test_the_memory_of_one_save_serves_the_next():
    copies = HostStaging()
    first, second = ([piece.data.data_ptr() for piece in copies.take(pieces())] for _ in range(2))
    assert first == second


def test_copies_do_not_overlap(monkeypatch):
    monkeypatch.setattr(host_staging, "BUFFER_BYTES", 256)
    taken = HostStaging().take(whole(str(number), torch.full((number,), float(number))) for number in range(40))
    assert all(piece.data.eq(float(piece.name)).all() for piece in taken)


def test_pieces_are_copied_one_at_a_time():
    alive = []

    def one_by_one():
        for number in range(3):
            assert len(alive) == number
            yield whole(str(number), torch.ones(4))
            alive.append(number)

    assert len(HostStaging().take(one_by_one())) == 3
