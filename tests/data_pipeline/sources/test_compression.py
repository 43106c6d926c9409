"""Compressed files are detected by their decompressors, and exceeding our own limit is not reported as damage."""

import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile

import pyarrow
import pytest
from pyarrow import parquet

from data_pipeline.sources import compression
from data_pipeline.sources.compression import DICTIONARY_FRAME
from megaptm.errors import UserError
from tests.data_pipeline.sources.reading import reading, written

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    zstd = pytest.importorskip("backports.zstd")

ROW = b'{"text": "one row"}\n'
LONG_WINDOW = bytes.fromhex(  # `zstd --long=31` of a pipe; compressing it takes 2 GiB of memory
    "28b52ffd04a8f900007b2274657874223a227a7374206c6f6e672077696e646f7720726f77227d0aae4f1752"
)
TOO_LONG_WINDOW = LONG_WINDOW[:5] + bytes([22 << 3]) + LONG_WINDOW[6:]
"""A window of 4 GiB: exponent 22 above 2**10 (RFC 8878, section 3.1.1.1.2)."""


def skippable(content: bytes, magic: int = 0x184D2A50) -> bytes:
    """A frame without text (RFC 8878, section 3.1.2). pzstd starts each of its frames with one."""
    return magic.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content


def test_window_of_2_gib(tmp_path):
    assert reading(written(tmp_path / "a.jsonl.zst", LONG_WINDOW)).texts == ["zst long window row"]


def test_larger_window_is_rejected(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl.zst", TOO_LONG_WINDOW)
    assert reading(path).counts == {"window too large": 1}
    assert "needs a decompression window of more than 2 GiB: compress it again with --long=31" in refusal(path)


@pytest.mark.parametrize("size", [4, 100, 3000])
def test_skippable_frames(size, tmp_path, chunk_bytes):
    frame = skippable(bytes(size)) + zstd.compress(ROW)
    path = written(tmp_path / "a.jsonl.zst", frame + frame + skippable(b""))
    assert reading(path).texts == ["one row"] * 2
    chunk_bytes(7)
    assert reading(path).texts == ["one row"] * 2


def test_skippable_frame_before_tar(tmp_path):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        info = tarfile.TarInfo("a.jsonl")
        info.size = len(ROW)
        tar.addfile(info, io.BytesIO(ROW))
    path = written(tmp_path / "a.tar.zst", skippable(b"1234") + zstd.compress(made.getvalue()))
    assert reading(path).texts == ["one row"]


@pytest.mark.parametrize("packed", [False, True])
def test_dictionary_in_file(packed, tmp_path, chunk_bytes):
    """Layout of `.warc.zst`: https://iipc.github.io/warc-specifications/specifications/warc-zstd/"""
    rows = [b'{"text": "document %d says nothing of %d"}\n' % (number, number**3) for number in range(2000)]
    dictionary = zstd.train_dict(rows, 2000)
    content = zstd.compress(dictionary.dict_content) if packed else dictionary.dict_content
    frames = b"".join(zstd.compress(row, zstd_dict=dictionary) for row in rows[:5])
    path = written(tmp_path / "a.jsonl.zst", skippable(content, DICTIONARY_FRAME) + frames)
    assert reading(path).texts == [json.loads(row)["text"] for row in rows[:5]]
    chunk_bytes(100)
    assert len(reading(path).texts) == 5
    without = written(tmp_path / "b.jsonl.zst", frames)
    assert reading(without).counts == {"missing dictionary": 1}


def test_out_of_memory_ends_build(tmp_path, monkeypatch):
    class Poor:
        def decompress(self, data, max_length):
            raise MemoryError

    path = written(tmp_path / "a.jsonl.xz", lzma.compress(ROW))
    monkeypatch.setattr(compression, "_make_decompressor", lambda *_: Poor)
    with pytest.raises(UserError, match="not enough memory to decompress xz data"):
        reading(path)


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_concatenated_streams_with_padding(suffix, compress, tmp_path, chunk_bytes):
    path = written(tmp_path / f"a.jsonl.{suffix}", compress(ROW) + bytes(64) + compress(ROW) + bytes(64))
    assert (reading(path).texts, reading(path).counts) == (["one row"] * 2, {})
    chunk_bytes(10)
    assert (reading(path).texts, reading(path).counts) == (["one row"] * 2, {})


def test_damaged_header_is_not_called_text(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl.gz", b"\xff" * 4 + gzip.compress(ROW)[4:])
    assert "does not start like gzip data: download it again" in refusal(path)


def test_too_long_csv_row_has_own_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.sources.lines.MAX_LINE_BYTES", 100)
    path = written(tmp_path / "a.csv", 'text\n"' + "a line\n" * 50 + '"\nlast\n')
    result = reading(path)
    assert result.counts["line too long"] == 1
    assert "field limit" not in str(result.dropped.messages)


@pytest.mark.parametrize("name", ["a.jsonl", "b.json", "c.csv", "d.txt", "e.parquet", "f.html"])
def test_max_bytes_limits_records(name, tmp_path):
    path, text = tmp_path / name, "long " * 30
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.table({"text": [text]}), path)
    else:
        json_text = json.dumps({"text": text})
        contents = {"jsonl": json_text, "json": f"[{json_text}]", "csv": f"text\n{text}\n", "html": f"<p>{text}</p>"}
        written(path, contents.get(name.partition(".")[2], text))
    assert reading(path, documents="line", max_bytes=100).counts.keys() <= {"line too long", "page too long"}
    assert not reading(path, documents="line", max_bytes=100).texts
    assert reading(path, documents="line", max_bytes=10_000).counts == {}


def test_deeply_nested_json_has_own_reason(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl", '{"text": "x", "a": ' + "[" * 100_000 + "]" * 100_000 + "}\n" + ROW.decode())
    assert (reading(path).texts, reading(path).counts) == (["one row"], {"nested too deeply": 1})
    assert "is nested too deeply for the JSON parser" in refusal(path)
    array = written(tmp_path / "b.json", f"[{ROW.decode()}, " + "[" * 100_000)
    assert (reading(array).texts, reading(array).counts) == (["one row"], {"nested too deeply": 1})
