"""Unreadable input is counted under a reason and the rest is read; or it stops the build with one sentence."""

import bz2
import errno
import gzip
import importlib
import io
import lzma
import os
import sys
from functools import partial
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from data_pipeline.document import DropCounts
from data_pipeline.sources import InputFile, Span, content, read_span
from data_pipeline.sources.content import open_bytes
from megaptm.errors import UserError
from tests.data_pipeline.sources.reading import reading, span_of, written
from tests.data_pipeline.sources.test_archives import archive

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    zstd = pytest.importorskip("backports.zstd")

COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}
ROWS = b"".join(b'{"text": "document %d: %s"}\n' % (number, os.urandom(40).hex().encode()) for number in range(3000))


def test_invalid_utf8_error_has_offset(text, refusal):
    result = reading(text / "latin.txt")
    assert result.documents == []
    assert result.dropped.examples == {"not UTF-8": [("latin.txt", result.dropped.messages["not UTF-8"])]}
    assert "latin.txt is not UTF-8: byte 0xe9 at offset 3" in refusal(text / "latin.txt")


@pytest.mark.parametrize("chunk", [1, 2, 3, 1000])
def test_error_offset_does_not_depend_on_chunks(chunk, tmp_path, refusal, chunk_bytes):
    chunk_bytes(chunk)
    for invalid, at in ((b"abc\xc3\xa9\xe9x", 5), (b"abc\xf0\x9f\x98", 3), (b"\xff", 0)):
        path = written(tmp_path / "a.txt", invalid)
        assert f"offset {at}:" in refusal(path)
        assert reading(path).counts == {"not UTF-8": 1}


def test_invalid_utf8_lines_and_paragraphs_are_dropped(tmp_path, refusal):
    path = written(tmp_path / "a.txt", b"one\ncaf\xe9\n\ntwo\n\n\xff\n")
    by_line = reading(path, documents="line")
    assert (by_line.texts, by_line.counts) == (["one", "two"], {"not UTF-8": 2})
    assert by_line.dropped.examples["not UTF-8"] == [("a.txt@4", "caf�"), ("a.txt@15", "�")]
    by_paragraph = reading(path, documents="blank-line")
    assert (by_paragraph.texts, by_paragraph.counts) == (["two"], {"not UTF-8": 2})
    assert "a.txt line 2 is not UTF-8: byte 0xe9 at offset 3" in refusal(path, documents="line")
    assert "a.txt line 1 is not UTF-8" in refusal(path, documents="blank-line")


def test_invalid_utf8_keeps_earlier_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.sources.pieces.MAX_DOCUMENT_CHARACTERS", 100)
    path = written(tmp_path / "a.txt", b"x" * 250 + b"\xff" + b"y" * 100)
    result = reading(path)
    assert (result.texts, result.counts) == ([], {"not UTF-8": 1})
    monkeypatch.setattr("data_pipeline.sources.content.CHUNK_BYTES", 50)
    again = reading(path)
    assert (again.texts, again.counts) == (["x" * 100] * 2, {"not UTF-8": 1})


@pytest.mark.parametrize("documents", ["file", "line", "blank-line"])
@pytest.mark.parametrize(
    "name", ["a.txt", "a.jsonl", "a.csv", "a.parquet", "a.warc", "a.xml", "a.txt.gz", "a.jsonl.zst"]
)
def test_empty_file_is_dropped(documents, name, tmp_path, refusal):
    path = written(tmp_path / name, b"")
    assert reading(path, documents=documents).counts == {"empty file": 1}
    assert f"{name} is empty: remove it" in refusal(path, documents=documents)


def test_skipped_empty_file_needs_no_remedy(tmp_path):
    """Nothing was lost, and the file may be somebody's `__init__.py`."""
    dropped = reading(written(tmp_path / "a.txt", b"")).dropped
    assert dropped.messages == {}
    assert dropped.examples["empty file"][0][1] == "is empty"


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_empty_file_is_dropped(suffix, tmp_path):
    assert reading(written(tmp_path / f"a.txt.{suffix}", COMPRESS[suffix](b""))).counts == {"empty file": 1}


@pytest.mark.parametrize("inner", ["txt", "jsonl", "csv", "warc", "xml"])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_wrong_compression_suffix(inner, suffix, tmp_path, refusal):
    path = written(tmp_path / f"a.{inner}.{suffix}", b"plain text, whatever its name")
    assert reading(path).counts == {"wrong compression": 1}
    assert "as its suffix says: remove the suffix from its name" in refusal(path)
    other = next(name for name in COMPRESS if name != suffix)
    written(path, COMPRESS[other](b"text"))
    assert reading(path).counts == {"wrong compression": 1}
    assert f"as its suffix says: rename it to end in .{other}" in refusal(path)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("documents", ["file", "line"])
def test_missing_compression_suffix(suffix, documents, tmp_path, refusal):
    path = written(tmp_path / "a.txt", COMPRESS[suffix](ROWS))
    assert reading(path, documents=documents).counts == {"wrong compression": 1}
    assert reading(path, documents=documents, part=500).counts["wrong compression"] == 1
    assert f"but has no such suffix: rename it to end in .{suffix}" in refusal(path)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_truncated_file_keeps_earlier_lines(suffix, tmp_path, refusal, chunk_bytes):
    packed = COMPRESS[suffix](ROWS)
    path = written(tmp_path / f"a.jsonl.{suffix}", packed[: len(packed) * 2 // 3])
    result = reading(path)
    assert result.counts == {"truncated": 1}
    assert result.sources == reading(written(tmp_path / "whole" / path.name, packed)).sources[: len(result.sources)]
    assert result.documents or suffix in ("bz2", "zst")  # their blocks are larger than this file
    assert "ends in the middle of its" in refusal(path)
    chunk_bytes(1000)
    assert reading(path).documents == result.documents  # independent of how it is read


@pytest.mark.parametrize("suffix", COMPRESS)
def test_truncated_text_is_dropped(suffix, tmp_path):
    packed = COMPRESS[suffix](ROWS)
    result = reading(written(tmp_path / f"a.txt.{suffix}", packed[:-10]))
    assert (result.texts, result.counts) == ([], {"truncated": 1})


@pytest.mark.parametrize("suffix", COMPRESS)
def test_damaged_compressed_file_is_dropped(suffix, tmp_path, refusal):
    squeeze = partial(zstd.compress, options={zstd.CompressionParameter.checksum_flag: 1})
    packed = bytearray((squeeze if suffix == "zst" else COMPRESS[suffix])(ROWS))
    packed[len(packed) // 2 : len(packed) // 2 + 100] = bytes(100)
    path = written(tmp_path / f"a.txt.{suffix}", bytes(packed))
    assert sum(reading(path).counts.values()) == 1
    assert reading(path).counts.keys() <= {"damaged", "truncated"}
    assert "download it again" in refusal(path)


def test_trailing_garbage_is_damage(tmp_path):
    path = written(tmp_path / "a.jsonl.gz", gzip.compress(b'{"text": "one"}\n') + b"garbage")
    result = reading(path)
    assert (result.texts, result.counts) == (["one"], {"damaged": 1})
    padded = written(tmp_path / "b.jsonl.gz", gzip.compress(b'{"text": "one"}\n') + bytes(512))
    assert (reading(padded).texts, reading(padded).counts) == (["one"], {})


def read_file(path: Path, on_error="skip") -> DropCounts:
    dropped = DropCounts()
    assert list(read_span(Span(InputFile(str(path), path.name, 0)), dropped, on_error)) == []
    return dropped


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet", "a.warc", "a.xml"])
def test_missing_or_unreadable_file_is_dropped(name, tmp_path, monkeypatch, refusal):
    assert read_file(tmp_path / name).counts == {"unreadable": 1}
    path = written(tmp_path / name, "x")

    def locked(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(content, "open_bytes", locked)
    assert read_file(path).counts == {"unreadable": 1}
    assert f"{name} cannot be read (Permission denied): make it readable" in refusal(path)
    monkeypatch.undo()
    path.unlink()
    path.symlink_to("gone")
    assert f"{name} is a link to 'gone', which does not exist: correct the link, or remove it" in refusal(path)


def test_disk_error_ends_build(tmp_path, monkeypatch):
    """If this were counted, the corpus would depend on failures of the disk."""
    path = written(tmp_path / "a.jsonl", ROWS)

    class Failing:
        def __init__(self, path):
            self.file = open_bytes(path)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def seek(self, offset):
            self.file.seek(offset)

        def read(self, size):
            if self.file.tell() > 100_000:
                raise OSError(5, "Input/output error")
            return self.file.read(size)

    monkeypatch.setattr(content, "open_bytes", Failing)
    monkeypatch.setattr(content, "CHUNK_BYTES", 10_000)
    dropped = DropCounts()
    with pytest.raises(UserError, match=r"a\.jsonl cannot be read to its end \(Input/output error\): check its disk"):
        list(read_span(span_of(path), dropped))
    assert not dropped.counts


@pytest.mark.parametrize(("name", "lost"), [("a.zip", 91_000), ("a.tar", 0), ("a.tar", 20_480), ("a.parquet", 1000)])
def test_server_error_is_not_damage(name, lost, tmp_path, monkeypatch, chunk_bytes):
    """If this were counted, the corpus would depend on failures of the server: at the start, in a hidden file, or
    later."""
    path = tmp_path / name
    if name == "a.parquet":
        parquet.write_table(pyarrow.table({"text": [os.urandom(100_000).hex()]}), path)  # more than its end
    else:
        archive(path, {"a.txt": b"a" * 600, ".b": os.urandom(90_000), "c.txt": b"c"})

    class Gone(io.BytesIO):
        def read(self, size=-1):
            if self.tell() <= lost < self.tell() + (size if size >= 0 else 1 << 20):
                raise UserError("s3://pile could not be reached for 900 s.")
            return super().read(size)

    def opened(file):
        return Gone(path.read_bytes()) if file.path == str(path) else really(file)

    chunk_bytes(10_240)
    really = content.open_file
    for module in ("archives", "content", "formats.parquet"):
        monkeypatch.setattr(f"data_pipeline.sources.{module}.open_file", opened)
    dropped = DropCounts()
    with pytest.raises(UserError, match=r"s3://pile could not be reached for 900 s\.$"):
        list(read_span(span_of(path), dropped))
    assert not dropped.counts


def failing(error: Exception, when):
    """Raises the error where `when` returns true for the first argument."""

    def patched(original):
        def call(argument, *remaining, **named):
            if when(argument):
                raise error
            return original(argument, *remaining, **named)

        return call

    return patched


WIKI = """<mediawiki><page><title>a</title><ns>0</ns><id>1</id><revision><text>one</text></revision></page>
<page><title>b</title><ns>0</ns><id>2</id><revision><text>bad</text></revision></page>
<page><title>c</title><ns>0</ns><id>3</id><revision><text>two</text></revision></page></mediawiki>"""


@pytest.mark.parametrize(
    "error", [RecursionError("too deep"), ValueError("half\nof it"), KeyError("x"), OSError("odd")]
)
@pytest.mark.parametrize(
    ("name", "content", "patched", "when", "where"),
    [
        (
            "a.jsonl",
            '{"text": "one"}\n{"text": "bad"}\n{"text": "two"}\n',
            "json_lines.text_and_notes",
            lambda record: record["text"] == "bad",
            "line 2",
        ),
        ("a.csv", "text\none\nbad\ntwo\n", "csv.text_and_notes", lambda record: record["text"] == "bad", "line 3"),
        ("a.xml", WIKI, "wikipedia.text_of_markup", lambda markup: markup == "bad", "page 2"),
    ],
)
def test_reader_error_drops_one_record(name, content, patched, when, where, error, tmp_path, monkeypatch, refusal):
    module, function = patched.split(".")
    location = importlib.import_module(f"data_pipeline.sources.formats.{module}")
    monkeypatch.setattr(location, function, failing(error, when)(getattr(location, function)))
    path = written(tmp_path / name, content)
    result = reading(path)
    assert (result.texts, result.counts) == (["one", "two"], {"cannot be read": 1})
    assert f"{where} cannot be read ({type(error).__name__}: " in refusal(path)
    assert result.dropped.messages["cannot be read"].startswith(f"cannot be read ({type(error).__name__}: ")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory to read .*a.jsonl: use a machine with more memory, or fewer"),
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (TimeoutError("no answer"), "a.jsonl cannot be read to its end .no answer.: check its disk"),
    ],
)
def test_limit_of_process_ends_build(error, message, tmp_path, monkeypatch):
    """No record is dropped, because the corpus must not depend on the machine."""
    module = importlib.import_module("data_pipeline.sources.formats.json_lines")
    monkeypatch.setattr(module, "text_and_notes", failing(error, lambda record: True)(module.text_and_notes))
    with pytest.raises((UserError, OSError), match=message):
        reading(written(tmp_path / "a.jsonl", '{"text": "one"}\n'))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EMFILE, "Too many open files"), (errno.EIO, "a.jsonl cannot be read to its end .*: check its disk")],
)
def test_file_that_cannot_be_opened_ends_build(number, expected, tmp_path, monkeypatch):
    def failing_open(path):
        raise OSError(number, os.strerror(number), path)

    path = written(tmp_path / "a.jsonl", "x")
    monkeypatch.setattr(content, "open_bytes", failing_open)
    with pytest.raises((UserError, OSError), match=expected):
        reading(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet", "a.warc", "a.xml"])
def test_reader_error_drops_one_file(name, tmp_path, monkeypatch, refusal):
    def open_file(file):
        raise RuntimeError("nobody thought of this")

    for module in ("content", "formats.parquet"):
        monkeypatch.setattr(f"data_pipeline.sources.{module}.open_file", open_file)
    path = written(tmp_path / name, "x")
    assert reading(path).counts == {"cannot be read": 1}
    assert f"{name} cannot be read (RuntimeError: nobody thought of this): remove it" in refusal(path)
