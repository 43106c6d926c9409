"""Members of an archive are read in the same way as files of a folder."""

import errno
import gzip
import io
import json
import os
import random
import tarfile
import zipfile
import zlib

import pytest

from data_pipeline.sources import Source, find_files, partition_files
from megaptm.errors import UserError
from tests.data_pipeline.sources.reading import reading, written

FILES = {
    "pile/b.txt": b"second in the alphabet, first here",
    "pile/a.jsonl.gz": gzip.compress(b"".join(json.dumps({"text": f"line {n}"}).encode() + b"\n" for n in range(3))),
    "pile/caf\u00e9.md": "caf\u00e9".encode(),
    "pile/latin.txt": b"caf\xe9",
    "pile/.hidden.txt": b"hidden",
    "__MACOSX/._b.txt": b"hidden",
    "pile/picture.png": b"\x89PNG",
    "pile/README": b"no suffix",
    "pile/inner.zip": b"PK",
    "pile/x.txt.lz4": b"x",
}
TEXTS = [FILES["pile/b.txt"].decode(), "line 0", "line 1", "line 2", "caf\u00e9"]
COUNTS = {"not UTF-8": 1, "unknown format": 2, "nested archive": 1, "unsupported compression": 1}


def archive(path, files=FILES):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            made.mkdir("pile")
            for name, content in files.items():
                made.writestr(name, content)
        return path
    path.parent.mkdir(exist_ok=True)
    kind = {".tgz": "gz", ".gz": "gz", ".bz2": "bz2", ".xz": "xz", ".txz": "xz"}.get(path.suffix, "")
    with tarfile.open(path, f"w:{kind}") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.bz2", "a.txz"])
def test_archive_members_equal_folder(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "copies"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "copies").mkdir()
    (tmp_path / "in").mkdir()
    path = archive(tmp_path / "in" / name)
    for location in (path, path.parent, path.parent / "*"):
        result = reading(location)
        assert (result.texts, result.counts) == (TEXTS, COUNTS)
    assert result.sources[1] == f"in/{name}/pile/a.jsonl.gz@0"
    assert os.listdir(tmp_path / "copies") == []


def test_archive_is_one_part(tmp_path):
    files = find_files([Source(str(archive(tmp_path / "a.tar")), documents="line")])
    assert len(partition_files(files, 10)) == 1


def test_archive_with_format(tmp_path):
    files = {"a.json": b'{"body": "one"}\n', "b.txt": b"x"}
    result = reading(archive(tmp_path / "a.zip", files), format="json-lines", text="body")
    assert (result.texts, result.counts) == (["one"], {"unknown format": 1})


def test_error_names_archive_member(tmp_path, refusal):
    path = archive(tmp_path / "a.tar.gz")
    assert f"{path}: pile/latin.txt is not UTF-8" in refusal(path)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar", "a.zip"])
def test_damaged_archive_keeps_earlier_members(name, tmp_path, refusal):
    files = {f"{number}.txt": os.urandom(5000).hex().encode() for number in range(10)}
    content = archive(tmp_path / name, files).read_bytes()
    path = written(tmp_path / "cut" / name, content[: len(content) // 2])
    result = reading(path)
    assert sum(result.counts.values()) == 1
    assert result.counts.keys() <= {"truncated", "damaged"}
    assert result.texts == [content.decode() for content in files.values()][: len(result.texts)]
    assert bool(result.texts) == (name != "a.zip")  # whose table is at its end
    assert "download it again" in refusal(path)
    assert reading(written(tmp_path / "junk" / name, b"")).counts == {"empty file": 1} if name != "a.zip" else True


@pytest.mark.parametrize("lost", [30, 200, 5000])
def test_truncated_tar_gz_keeps_complete_members(lost, tmp_path, refusal):
    """tarfile reads 10 KiB at a time: the part of them before the end of the data."""
    noise = random.Random(0)
    texts = [f"text {number} " + noise.randbytes(300).hex() for number in range(30)]
    path = archive(tmp_path / "a.tar.gz", {f"{n:02}.txt": text.encode() for n, text in enumerate(texts)})
    content = path.read_bytes()[:-lost]
    unpacked = zlib.decompressobj(wbits=31).decompress(content)
    complete = [text for text in texts if text.encode() in unpacked]
    result = reading(written(path, content))
    assert (result.texts, result.counts) == (complete, {"truncated": 1})
    assert "ends in the middle of its gzip data: download it again" in refusal(path)


def test_damaged_zip_member_is_dropped(tmp_path, refusal):
    path = archive(tmp_path / "a.zip", {"a.txt": b"first " * 99, "b.txt": b"second " * 99, "c.txt": b"third " * 99})
    with zipfile.ZipFile(path) as opened:
        offsets = {info.filename: info.header_offset for info in opened.infolist()}
    content = bytearray(path.read_bytes())
    content[offsets["b.txt"] + 40] ^= 0xFF
    path.write_bytes(content)
    result = reading(path)
    assert (len(result.texts), result.counts) == (2, {"cannot be read": 1})
    assert "member b.txt cannot be read" in refusal(path)


def test_tar_links_are_not_followed(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as made:
        link = tarfile.TarInfo("passwd.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        made.addfile(link)
        up = tarfile.TarInfo("../../up.txt")
        up.size = 2
        made.addfile(up, io.BytesIO(b"up"))
    result = reading(tmp_path / "a.tar")
    assert (result.texts, result.counts) == (["up"], {"not a file": 1})


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.jsonl.gz"])
def test_compression_bomb_is_dropped(name, tmp_path, monkeypatch, refusal):
    monkeypatch.setattr("data_pipeline.sources.source.MIN_UNPACKED", 50_000)
    rows = b"".join(b'{"text": "row %d"}\n' % number for number in range(1000))
    files = {"1.jsonl": rows, "2.jsonl": rows, "3.jsonl": rows, "4.jsonl": rows}
    path = tmp_path / name
    if name == "a.jsonl.gz":
        path.write_bytes(gzip.compress(rows * 4))
    else:
        archive(path, files)
    result = reading(path, max_expansion=1)
    assert result.counts == {"expands too much": 1}
    assert len(result.texts) in (0, 2000)
    assert "decompress it, or raise `max_expansion` of its source" in refusal(path, max_expansion=1)
    assert len(reading(path).texts) == 4000


def test_sparse_tar_member_is_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.sources.source.MIN_UNPACKED", 1 << 20)
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as made:
        info = tarfile.TarInfo("a.txt")
        info.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(1 << 40), "GNU.sparse.name": "a.txt"}
        info.size = 1
        made.addfile(info, io.BytesIO(b"x"))
    assert reading(tmp_path / "a.tar").counts == {"expands too much": 1}


def test_invalid_header_is_damage(tmp_path, refusal):
    """tarfile ends an archive at an invalid header, as if no member followed."""
    path = archive(tmp_path / "a.tar", {"a.txt": b"first", "b.txt": b"second", "c.txt": b"third"})
    content = bytearray(path.read_bytes())
    content[content.index(b"b.txt")] ^= 1
    path.write_bytes(content)
    assert (reading(path).texts, reading(path).counts) == (["first"], {"damaged": 1})
    assert "is not a readable archive (invalid header: bad checksum): download it again" in refusal(path)


def test_archive_truncated_in_header_is_damage(tmp_path):
    path = archive(tmp_path / "a.tar", {"a.txt": b"first", "b.txt": b"second"})
    result = reading(written(path, path.read_bytes()[: 1024 + 100]))
    assert (result.texts, result.counts) == (["first"], {"damaged": 1})


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
def test_second_archive_in_file_is_damage(name, tmp_path, refusal):
    path = archive(tmp_path / name, {"a.txt": b"first"})
    path.write_bytes(path.read_bytes() + archive(tmp_path / "other" / name, {"b.txt": b"second"}).read_bytes())
    assert (reading(path).texts, reading(path).counts) == (["first"], {"damaged": 1})
    assert "data follow its end: it may be several archives in one file" in refusal(path)


@pytest.mark.parametrize("name", ["a.tar", "a.zip"])
def test_archive_without_memory_ends_build(name, tmp_path, monkeypatch):
    def without_memory(*_):
        raise MemoryError

    path = archive(tmp_path / name)
    monkeypatch.setattr("shutil.copyfileobj", without_memory)
    with pytest.raises(UserError, match=r"not enough memory to read .*a\.(tar|zip): use a machine with more"):
        reading(path)


def test_full_temporary_folder_is_reported(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = archive(tmp_path / "a.zip")
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(UserError, match=r"has no space for a copy of pile/b.txt from .*: set TMPDIR to a folder"):
        reading(path)
