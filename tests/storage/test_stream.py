"""Reading within a file of an object store, while its server misbehaves."""

import gzip
import io
import random

import pytest

from megaptm.storage import RetryPolicy, open_remote, stream, upload
from tests.storage.server import BUCKET

QUICK = RetryPolicy(seconds=20, deadline=2, pause=0.01, longest_pause=0.05)
CONTENT = bytes(random.Random(1).randbytes(100_000))


@pytest.fixture
def url(s3, tmp_path, request) -> str:
    place = f"s3://{BUCKET}/stream/{request.node.name}"
    (tmp_path / "file").write_bytes(CONTENT)
    upload(tmp_path / "file", place)
    return place


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch):
    monkeypatch.setattr(stream, "RANGE", 9000)


@pytest.mark.real
def test_reads_and_seeks_as_a_file_does(url):
    mine, theirs = open_remote(url, QUICK), io.BytesIO(CONTENT)
    chance = random.Random(2)
    for _ in range(30):
        at, size = chance.randrange(110_000), chance.randrange(20_000)
        assert mine.seek(at) == theirs.seek(at)
        assert mine.read(size) == theirs.read(size)
    assert mine.seek(-10, io.SEEK_END) == theirs.seek(-10, io.SEEK_END)
    assert mine.read() == theirs.read()
    assert mine.read() == b""


@pytest.mark.real
@pytest.mark.parametrize("kind", ["reset", "error", "truncate"])
def test_a_range_that_fails_is_asked_for_again(kind, url, faults):
    faults.inject(kind, match="GET .*/stream/", times=4)
    assert open_remote(url, QUICK).read() == CONTENT
    assert faults.done == [kind] * 4


@pytest.mark.real
def test_what_is_compressed_there_is_read_here(s3, tmp_path):
    (tmp_path / "file").write_bytes(gzip.compress(CONTENT))
    upload(tmp_path / "file", f"s3://{BUCKET}/stream/file.gz")
    with gzip.open(open_remote(f"s3://{BUCKET}/stream/file.gz", QUICK)) as file:
        assert file.read() == CONTENT
