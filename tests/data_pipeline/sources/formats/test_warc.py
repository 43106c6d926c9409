import gzip
import io
import re
import zlib
from pathlib import Path

import pytest

from tests.data_pipeline.sources.reading import reading, written

pytest.importorskip("brotli")
pytest.importorskip("warcio")
pytest.importorskip("resiliparse")

import brotli
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

PAGE = """<!doctype html><html><head><title>Of bridges</title><style>p {{color: red}}</style>{head}</head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
<main><article><h1>Of bridges</h1>
<p>{text} A bridge carries a road over a river, and its builders know the river well before they begin.</p>
<p>Some of them stand for two thousand years, because stone that is pressed lasts longer than stone that is pulled.</p>
</article></main>
<footer>Copyright, all rights reserved</footer></body></html>"""


class Archive:
    """Records written by warcio."""

    def __init__(self, path: Path):
        self.path = path
        self.bytes = io.BytesIO()
        self.writer = WARCWriter(self.bytes, gzip=path.suffix == ".gz")
        self.writer.write_record(self.writer.create_warcinfo_record(path.name, {"software": "tests"}))

    def page(self, body: bytes, kind: str = "text/html", status: str = "200 OK", **headers: str) -> None:
        named = [("Content-Type", kind), *((name.replace("_", "-"), value) for name, value in headers.items())]
        http = StatusAndHeaders(status, named, protocol="HTTP/1.1")
        self._write("response", body, http_headers=http)

    def text(self, body: bytes) -> None:
        self._write("conversion", body, warc_content_type="text/plain")

    def request(self) -> None:
        self._write("request", b"", http_headers=StatusAndHeaders("GET / HTTP/1.1", [], is_http_request=True))

    def _write(self, kind: str, body: bytes, **options) -> None:
        self.writer.write_record(
            self.writer.create_warc_record("http://bridges.example/", kind, payload=io.BytesIO(body), **options)
        )

    def close(self) -> Path:
        return written(self.path, self.bytes.getvalue())


@pytest.mark.parametrize("name", ["a.warc", "a.warc.gz"])
def test_main_content_and_url(name, tmp_path):
    archive = Archive(tmp_path / name)
    archive.request()
    archive.page(PAGE.format(head="", text="Große Brücken.").encode())
    result = reading(archive.close())
    [document] = result.documents
    assert document.text.startswith("Of bridges\n\nGroße Brücken. A bridge carries")
    assert "About us" not in document.text
    assert "Copyright" not in document.text
    assert "color" not in document.text
    assert (document.source, document.notes) == (f"{name}@2", {"url": "http://bridges.example/"})
    assert not result.counts


def test_all_text_of_page(tmp_path):
    archive = Archive(tmp_path / "a.warc")
    archive.page(PAGE.format(head="", text="").encode())
    [text] = reading(archive.close(), html="all").texts
    assert "About us" in text
    assert "Copyright" in text


def test_wet_text_is_read_unchanged(tmp_path):
    archive = Archive(tmp_path / "a.warc.wet.gz")
    archive.text("Schöne Brücken\nund Straßen".encode())
    archive.text(b"second")
    assert reading(archive.close()).texts == ["Schöne Brücken\nund Straßen", "second"]


@pytest.mark.parametrize(
    ("codec", "kind", "head", "noted"),
    [
        ("utf-8", "text/html; charset=latin-1", "", {}),
        ("cp1251", "text/html; charset=windows-1251", "", {"encoding": "cp1251"}),
        ("cp1251", "text/html", '<meta charset="windows-1251">', {"encoding": "cp1251"}),
        ("cp1251", "text/html; charset=nonsense", '<meta charset="windows-1251">', {"encoding": "cp1251"}),
    ],
)
def test_warc_page_encoding(codec, kind, head, noted, tmp_path):
    archive = Archive(tmp_path / "a.warc")
    archive.page(PAGE.format(head=head, text="Съешь же ещё этих булок.").encode(codec), kind)
    [document] = reading(archive.close()).documents
    assert "Съешь же ещё этих булок." in document.text
    assert document.notes == {"url": "http://bridges.example/", **noted}


def test_content_encodings(tmp_path):
    page = PAGE.format(head="", text="").encode()
    archive = Archive(tmp_path / "a.warc")
    archive.page(gzip.compress(page), Content_Encoding="gzip")
    archive.page(b"%x\r\n%s\r\n0\r\n\r\n" % (len(page), page), Transfer_Encoding="chunked")
    archive.page(brotli.compress(page), Content_Encoding="br")
    archive.page(gzip.compress(page), Content_Encoding="x-gzip")
    archive.page(zlib.compress(page), Content_Encoding="deflate")
    archive.page(zlib.compress(page, wbits=-15), Content_Encoding="deflate")
    archive.page(brotli.compress(gzip.compress(page)), Content_Encoding="gzip, BR")
    archive.page(page, Content_Encoding="br")  # crawlers keep the header of content that they have decompressed
    archive.page(page, Content_Encoding="identity")
    archive.page(page)
    result = reading(archive.close())
    assert (result.texts, result.counts) == (result.texts[:1] * 10, {})


def test_damaged_body_is_dropped(tmp_path, refusal):
    archive = Archive(tmp_path / "a.warc")
    archive.page(brotli.compress(PAGE.encode())[:-9], Content_Encoding="br")
    archive.page(b"\xff\xfe\x00 no brotli", Content_Encoding="br")
    archive.page(gzip.compress(PAGE.encode())[:-9], Content_Encoding="gzip")
    archive.text(b"all the same")
    path = archive.close()
    result = reading(path)
    assert result.texts == ["all the same"]
    assert result.counts == {"truncated": 2, "damaged": 1}
    assert "record 1 ends in the middle of its brotli data: download it again" in refusal(path)


def test_records_without_text_are_skipped(tmp_path):
    archive = Archive(tmp_path / "a.warc")
    archive.page(b"\x89PNG", "image/png")
    archive.page(b"<p>nothing here</p>", status="404 Not Found")
    archive.page(b"<html><body></body></html>")
    path = archive.close()
    counts = {"not text": 1, "HTTP error page": 1, "no main content": 1}
    assert reading(path).counts == counts
    assert reading(path, on_error="fail").counts == counts


def test_too_long_page_is_dropped(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr("data_pipeline.sources.formats.warc_records.MAX_RECORD_BYTES", 100_000)
    archive = Archive(tmp_path / "a.warc")
    archive.text(b"x" * 200_000)
    archive.text(b"short")
    path = archive.close()
    assert (reading(path).texts, reading(path).counts) == (["short"], {"page too long": 1})
    assert "record 1 is longer than" in refusal(path)
    packed = Archive(tmp_path / "b.warc")
    packed.page(gzip.compress(b"x" * 200_000), Content_Encoding="gzip")
    assert reading(packed.close()).counts == {"page too long": 1}


def test_truncated_warc_keeps_earlier_records(tmp_path, refusal):
    archive = Archive(tmp_path / "a.warc")
    archive.text(b"first one")
    retained = len(archive.bytes.getvalue())
    archive.text(b"second one, which is longer")
    content = archive.close().read_bytes()
    for end in (*range(retained + 1, retained + 5), *range(retained + 5, len(content) - 4, 7)):
        result = reading(written(archive.path, content[:end]))
        assert (result.texts, result.counts) == (["first one"], {"truncated": 1})
    assert "ends in the middle of a record: download it again" in refusal(archive.path)


def test_truncated_gzip_warc_keeps_complete_records(tmp_path, refusal):
    """Each record is a separate gzip member, as in Common Crawl; they are small enough to be read at once."""
    archive = Archive(tmp_path / "a.warc.gz")
    for name in (b"first one", b"second one"):
        archive.text(name)
    start = len(archive.bytes.getvalue())
    archive.text(b"third one, which is longer")
    content = archive.close().read_bytes()
    for end in range(start + 5, len(content) - 4):
        result = reading(written(archive.path, content[:end]))
        # The third is complete even if only the end of its gzip member is missing.
        assert (result.texts[:2], result.counts) == (["first one", "second one"], {"truncated": 1})
    assert "ends in the middle of its gzip data: download it again" in refusal(archive.path)


def test_file_that_is_not_warc_is_dropped(tmp_path, refusal):
    path = written(tmp_path / "a.warc", "no archive\n" * 10)
    assert reading(path).counts == {"not WARC": 1}
    assert "is not a readable WARC" in refusal(path)


LENGTHS = ["3", "5000", "99999999", "999999999999999", "-1", "a lot", "", "9" * 5000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("which", [0, 2, 5])
def test_wrong_content_length_drops_one_record(length, which, packed, tmp_path, refusal):
    archive = Archive(tmp_path / "a.warc")
    for number in range(5):
        archive.text(f"text {number}".encode() + b" of a record" * 20 * number)
    content = archive.close().read_bytes()
    starts = [match.start() for match in re.finditer(rb"WARC/1\.0\r\n", content)]
    records = [content[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
    expected = [text for number, text in enumerate(reading(archive.path).texts, 1) if number != which]
    records[which] = re.sub(rb"Content-Length: \d+", b"Content-Length: " + length.encode(), records[which])
    pack = gzip.compress if packed else bytes
    path = written(tmp_path / ("b.warc.gz" if packed else "b.warc"), b"".join(map(pack, records)))
    result = reading(path)
    # The last record's end is the end of the file: after that, it cannot be distinguished from a truncated one.
    lost = "truncated" if which == 5 and length in ("5000", "99999999", "999999999999999") else "wrong length"
    assert (result.texts, result.counts) == (expected, {lost: 1})
    message = refusal(path)
    assert (
        "ends in the middle of a record" in message
        if lost == "truncated"
        else f"record {which} has a Content-Length" in message
    )


def test_wrong_length_beyond_buffer_rereads_file(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr("data_pipeline.sources.formats.warc_records.MAX_RECORD_BYTES", 2000)
    monkeypatch.setattr("data_pipeline.sources.formats.warc_records.MAX_HEADER_BYTES", 1000)
    archive = Archive(tmp_path / "a.warc")
    for number in range(30):
        archive.text(f"text {number}".encode() + b" of a record" * 20)
    content = archive.close().read_bytes()
    invalid = re.sub(rb"Content-Length: \d+(?=\r\n\r\ntext 1 )", b"Content-Length: 5000", content)
    for size in (7, 1 << 20):
        chunk_bytes(size)
        result = reading(written(archive.path, invalid))
        assert result.counts == {"wrong length": 1}
        assert [text.split()[1] for text in result.texts] == [str(number) for number in range(30) if number != 1]
    every = re.sub(rb"Content-Length: \d+(?=\r\n\r\ntext)", b"Content-Length: 3000", content)
    result = reading(written(archive.path, every))  # and it terminates
    assert 20 < result.counts["wrong length"] <= 30


def test_page_that_fails_extraction_is_dropped(tmp_path, monkeypatch, refusal):
    from data_pipeline.sources.formats import warc

    def text_of_page(page: str, which: str) -> str:
        if "deep" in page:
            raise RecursionError("maximum recursion depth exceeded")
        return page

    monkeypatch.setattr(warc, "text_of_page", text_of_page)
    archive = Archive(tmp_path / "a.warc")
    for body in (b"one", b"deep", b"two"):
        archive.page(body)
    path = archive.close()
    result = reading(path)
    assert (result.texts, result.counts) == (["one", "two"], {"cannot be read": 1})
    assert "record 2 cannot be read (RecursionError: maximum recursion depth exceeded)" in refusal(path)
