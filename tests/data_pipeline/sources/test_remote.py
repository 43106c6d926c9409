"""Object stores and other URLs, read through fsspec: a real server on this machine."""

import gzip
import json
import os
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest

from data_pipeline.document import DropCounts
from data_pipeline.sources import Source, find_files, partition_files, read_span
from megaptm.errors import UserError
from megaptm.storage import remote
from tests.data_pipeline.sources.reading import reading, written

ROWS = "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(500))


@pytest.fixture(scope="module")
def bucket(s3):
    system = fsspec.filesystem("s3", skip_instance_cache=True)
    system.call_s3("create_bucket", Bucket="piles")
    for name, content in {
        "pile/a.jsonl": ROWS.encode(),
        "pile/below/b.txt.gz": gzip.compress(b"zipped"),
        "pile/.hidden/c.txt": b"hidden",
        "pile/picture.png": b"\x89PNG",
        "other/[1].txt": b"brackets",
    }.items():
        system.pipe_file(f"piles/{name}", content)
    return "s3://piles"


def test_store_listing(bucket):
    for source, names in {
        "pile": ["pile/a.jsonl", "pile/below/b.txt.gz"],
        "pile/": ["pile/a.jsonl", "pile/below/b.txt.gz"],
        "pile/a.jsonl": ["a.jsonl"],
        "pile/**/*.gz": ["pile/below/b.txt.gz"],
        "*/a.*": ["piles/pile/a.jsonl"],
        "other/[1].txt": ["[1].txt"],
    }.items():
        files = find_files([f"{bucket}/{source}"])
        assert [file.name for file in files] == names
        assert all(file.path.startswith(f"{bucket}/") and file.size and file.version for file in files)


def test_store_documents_equal_folder(bucket, tmp_path):
    written(tmp_path / "pile" / "a.jsonl", ROWS)
    written(tmp_path / "pile" / "below" / "b.txt.gz", gzip.compress(b"zipped"))
    there = reading(f"{bucket}/pile", part=1000)
    assert there.documents == reading(tmp_path / "pile").documents
    assert len(there.documents) == 501


def test_colons_in_the_name_of_a_file_at_a_store(tmp_path):
    """`::` divides the parts of a chained URL."""
    written(tmp_path / "notes::2024.txt", "one")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = reading(f"http://127.0.0.1:{server.server_port}/notes::2024.txt")
        server.shutdown()
    assert (result.texts, result.counts) == (["one"], {})


def test_missing_url_is_rejected(bucket):
    for missing in (f"{bucket}/nowhere", f"{bucket}/pile/*.epub", "s3://nobucket/a.txt"):
        with pytest.raises(UserError, match=r"does not exist|no text found"):
            find_files([missing])
    with pytest.raises(UserError, match=r"source gopher://a/b cannot be listed \(Protocol not known: gopher"):
        find_files(["gopher://a/b"])
    with pytest.raises(UserError, match=r"source http://127\.0\.0\.1:1/a cannot be listed \(Cannot connect to host"):
        find_files(["http://127.0.0.1:1/a"])


def test_vanished_object_is_dropped(bucket):
    fsspec.filesystem("s3").pipe_file("piles/gone/a.txt", b"here")
    [[span]] = partition_files(find_files([f"{bucket}/gone/a.txt"]), 1 << 20)
    fsspec.filesystem("s3").rm_file("piles/gone/a.txt")
    dropped = DropCounts()
    assert list(read_span(span, dropped)) == []
    assert dropped.counts == {"unreadable": 1}


def test_overlapping_urls_are_rejected(bucket):
    with pytest.raises(UserError, match=r"both contain s3://piles/pile/a\.jsonl"):
        find_files([f"{bucket}/pile", f"{bucket}/pile/*.jsonl"])


def test_parquet_in_store(bucket, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"row {row}" for row in range(100)]}), path, row_group_size=10)
    fsspec.filesystem("s3").put_file(str(path), "piles/tables/a.parquet")
    assert reading(f"{bucket}/tables/a.parquet", part=200).texts == [f"row {row}" for row in range(100)]


def test_zip_urls(tmp_path):
    with zipfile.ZipFile(tmp_path / "pile.zip", "w") as archive:
        archive.writestr("below/a.txt", "one")
        archive.writestr("b.txt", "two")
    result = reading(f"zip://**/*.txt::{tmp_path}/pile.zip")
    assert result.texts == ["two", "one"]
    assert reading(f"zip://*.txt::{tmp_path}/pile.zip").texts == ["two"]
    assert reading(f"zip://below::{tmp_path}/pile.zip").sources == ["below/a.txt"]


def test_memory_and_file_urls(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PROTOCOLS", {"memory"})
    fsspec.filesystem("memory").pipe({"/pile/a.txt": b"one", "/pile/b.md": b"two"})
    assert reading("memory://pile").sources == ["pile/a.txt", "pile/b.md"]
    here = written(tmp_path / "a.txt", "three")
    [file] = find_files([Source(f"file://{here}")])
    assert file.path == os.fspath(here)
