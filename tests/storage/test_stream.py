"""Seekable stream over a remote file, with a faulty server."""

import gzip
import io
import random

import pytest

from megaptm.storage import RetryPolicy, open_remote, stream, upload
from tests.storage.server import BUCKET

FAST_RETRY = RetryPolicy(seconds=20, deadline=2, pause=0.01, max_pause=0.05)
CONTENT = bytes(random.Random(1).randbytes(100_000))


@pytest.fixture
def url(s3, tmp_path, request) -> str:
    file_url = f"s3://{BUCKET}/stream/{request.node.name}"
    (tmp_path / "file").write_bytes(CONTENT)
    upload(tmp_path / "file", file_url)
    return file_url


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch):
    monkeypatch.setattr(stream, "RANGE_BYTES", 9000)


@pytest.mark.real
def test_reads_and_seeks_like_file(url):
    remote, expected = open_remote(url, FAST_RETRY), io.BytesIO(CONTENT)
    generator = random.Random(2)
    for _ in range(30):
        offset, size = generator.randrange(110_000), generator.randrange(20_000)
        assert remote.seek(offset) == expected.seek(offset)
        assert remote.read(size) == expected.read(size)
    assert remote.seek(-10, io.SEEK_END) == expected.seek(-10, io.SEEK_END)
    assert remote.read() == expected.read()
    assert remote.read() == b""


@pytest.mark.real
@pytest.mark.parametrize("kind", ["reset", "error", "truncate"])
def test_failed_range_is_retried(kind, url, faults):
    faults.inject(kind, match="GET .*/stream/", times=4)
    assert open_remote(url, FAST_RETRY).read() == CONTENT
    assert faults.injected == [kind] * 4


@pytest.mark.real
def test_gzip_over_remote_stream(s3, tmp_path):
    (tmp_path / "file").write_bytes(gzip.compress(CONTENT))
    upload(tmp_path / "file", f"s3://{BUCKET}/stream/file.gz")
    with gzip.open(open_remote(f"s3://{BUCKET}/stream/file.gz", FAST_RETRY)) as file:
        assert file.read() == CONTENT
