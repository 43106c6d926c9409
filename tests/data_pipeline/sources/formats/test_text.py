import bz2
import codecs
import gzip
import lzma
import random
import sys

import pytest

from data_pipeline.sources import encodings, lines, pieces
from tests.data_pipeline.sources.reading import reading, written

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    zstd = pytest.importorskip("backports.zstd")

COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}


def test_file_is_one_document(tmp_path):
    for name, form in (("a.py", "code"), ("a.md", "prose"), ("a.txt", "prose"), ("README", "prose")):
        [document] = reading(written(tmp_path / name, "one\ntwo")).documents
        assert (document.text, document.source, document.form, document.notes) == ("one\ntwo", name, form, {})


def test_code_lines_have_form_code(tmp_path):
    path = written(tmp_path / "a.py", "one\ntwo")
    assert [document.form for document in reading(path, documents="line").documents] == ["code", "code"]


def test_byte_order_mark_is_removed(tmp_path):
    path = written(tmp_path / "a.txt", codecs.BOM_UTF8 + b"hello\nyou")
    assert reading(path).texts == ["hello\nyou"]
    assert reading(path, documents="line").texts == ["hello", "you"]


def test_paragraphs_and_lines(tmp_path):
    path = written(tmp_path / "a.txt", "One.\r\nTwo.\r\n \r\n\r\nThree.")
    paragraphs = reading(path, documents="blank-line")
    assert (paragraphs.texts, paragraphs.sources) == (["One.\nTwo.", "Three."], ["a.txt@0", "a.txt@17"])
    each = reading(path, documents="line")
    assert (each.texts, each.sources) == (["One.", "Two.", "Three."], ["a.txt@0", "a.txt@6", "a.txt@17"])


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("documents", ["file", "line", "blank-line"])
def test_compressed_file_equals_plain_file(suffix, documents, tmp_path):
    content = "".join(f"line {number}\n" + "\n" * (number % 7 == 0) for number in range(5000)).encode()
    plain = reading(written(tmp_path / "a.txt", content), documents=documents)
    squeezed = reading(written(tmp_path / f"a.txt.{suffix}", COMPRESS[suffix](content)), documents=documents)
    assert squeezed.texts == plain.texts
    assert [source.replace(f".{suffix}", "") for source in squeezed.sources] == plain.sources


@pytest.mark.parametrize("suffix", COMPRESS)
def test_concatenated_streams(suffix, tmp_path):
    squeeze = COMPRESS[suffix]
    assert reading(written(tmp_path / f"a.txt.{suffix}", squeeze(b"one ") + squeeze(b"two"))).texts == ["one two"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_high_compression_ratio_is_chunked(suffix, tmp_path, monkeypatch, chunk_bytes):
    chunk_bytes(1 << 10)
    monkeypatch.setattr(pieces, "MAX_DOCUMENT_CHARACTERS", 1 << 18)
    path = written(tmp_path / f"a.txt.{suffix}", COMPRESS[suffix](b"\0" * (1 << 20) + b"end"))
    assert [len(text) for text in reading(path).texts] == [1 << 18] * 4 + [3]


def test_split_text_concatenates_to_text(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(pieces, "MAX_DOCUMENT_CHARACTERS", 100)
    chunk_bytes(7)
    draw = random.Random(0)
    text = "".join(draw.choice("aé三\U0001f600  \n") * draw.choice((1, 1, 2)) for _ in range(3000))
    result = reading(written(tmp_path / "a.txt", text))
    assert "".join(result.texts) == text
    assert all(len(piece) <= 100 for piece in result.texts)
    starts = [int(source.partition("@")[2]) for source in result.sources]
    assert [text[start : start + len(piece)] for start, piece in zip(starts, result.texts, strict=True)] == result.texts


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a" * 70 + "\n\n" + "b" * 10 + "\n" + "c" * 50, "a" * 70 + "\n\n"),
        ("a" * 70 + "\r\n\r\n" + "b" * 10 + "\r\n" + "c" * 50, "a" * 70 + "\r\n\r\n"),
        ("a\n\n" + "b" * 70 + "\n" + "c" * 90, "a\n\n" + "b" * 70 + "\n"),
        ("a\n\nb\n" + "c" * 120, "a\n\nb\n" + "c" * 95),
        ("a" * 100, "a" * 100),
    ],
)
def test_split_prefers_blank_lines(text, first, tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_DOCUMENT_CHARACTERS", 100)
    assert reading(written(tmp_path / "a.txt", text)).texts[0] == first


def test_long_paragraph_and_line_are_split(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_DOCUMENT_CHARACTERS", 100)
    monkeypatch.setattr("data_pipeline.sources.formats.text.MAX_DOCUMENT_CHARACTERS", 30)
    rows = "\n".join(f"row {number}" for number in range(40))
    path = written(tmp_path / "a.txt", f"short\n\n{rows}\n\nend\n")
    result = reading(path, documents="blank-line")
    assert (result.texts[0], "".join(result.texts[1:-1]), result.texts[-1]) == ("short", rows, "end")
    assert len(result.texts) > 4
    assert result.sources[1:3] == ["a.txt@7@0", f"a.txt@7@{len(result.texts[1])}"]
    path = written(tmp_path / "b.txt", "short\n" + "x" * 250 + "\nend")
    assert reading(path, documents="line").texts == ["short", "x" * 100, "x" * 100, "x" * 50, "end"]


def test_too_long_line_is_dropped(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 1000)
    chunk_bytes(64)
    path = written(tmp_path / "a.txt", "one\n" + "x" * 5000 + "\ntwo\n\nthree\n")
    by_line = reading(path, documents="line")
    assert (by_line.texts, by_line.counts) == (["one", "two", "three"], {"line too long": 1})
    assert by_line.sources == ["a.txt@0", "a.txt@5005", "a.txt@5010"]
    by_paragraph = reading(path, documents="blank-line")
    assert (by_paragraph.texts, by_paragraph.counts) == (["three"], {"line too long": 1})
    assert reading(path).texts == [path.read_text()]


GERMAN = "Füße und Äpfel, schöne Grüße aus der Straße. Das Mädchen läuft über die Brücke zum Bäcker.\n"
RUSSIAN = "Съешь же ещё этих мягких французских булок, да выпей чаю. Широкая электрификация южных губерний.\n"


@pytest.mark.parametrize(
    "codec", ["latin-1", "cp1251", "utf-16", "utf-16-le", "utf-32", "shift_jis", "gb18030", "UTF8"]
)
@pytest.mark.parametrize("documents", ["file", "line"])
def test_named_codecs(codec, documents, tmp_path):
    text = {"latin-1": GERMAN, "cp1251": RUSSIAN}.get(codec, "日本語の文\n二つ目\n")
    path = written(tmp_path / "a.txt", text.encode(codec))
    result = reading(path, documents=documents, encoding=codec)
    assert result.texts == ([text] if documents == "file" else text.splitlines())
    assert not result.counts
    assert all(document.notes == {} for document in result.documents)


@pytest.mark.parametrize(
    ("codec", "noted"), [("utf-8", {}), ("utf-16", {"encoding": "utf-16"}), ("utf-32", {"encoding": "utf-32"})]
)
def test_auto_detects_utf(codec, noted, tmp_path):
    path = written(tmp_path / "a.txt", GERMAN.encode(codec))
    for documents in ("file", "line"):
        [document] = reading(path, encoding="auto", documents=documents).documents
        assert (document.text.strip(), document.notes) == (GERMAN.strip(), noted)


def test_auto_guesses_and_notes_codec(tmp_path):
    path = written(tmp_path / "a.txt", b"plain ASCII first\n" * 5000 + (RUSSIAN * 20).encode("cp1251"))
    [document] = reading(path, encoding="auto").documents
    assert document.text.endswith(RUSSIAN)
    assert document.notes == {"encoding": "cp1251"}


@pytest.mark.parametrize("documents", ["file", "line"])
@pytest.mark.parametrize(
    "damaged",
    [
        ("Grüße 🙂 aus Köln\n" * 300).encode()[:-3] + b"\xf0\x9f\n",
        "这是一个测试文本。\n包含很多汉字。".encode()[:-1] + b"\n",
        "smile \ud83d\ude00, café\n".encode("utf-8", "surrogatepass"),
    ],
    ids=["emoji", "chinese", "cesu-8"],
)
def test_auto_does_not_guess_codec_of_damaged_utf8(damaged, documents, tmp_path):
    """charset_normalizer's issues 516 and 743: one wrong byte turned all other characters into those of GB 18030."""
    result = reading(written(tmp_path / "a.txt", damaged), encoding="auto", documents=documents)
    assert result.counts["not UTF-8"] == 1
    assert {*result.texts} <= {*damaged.decode("utf-8", "ignore").split("\n")}


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("documents", ["file", "line", "blank-line"])
def test_utf_16_without_mark(documents, codec, tmp_path, refusal):
    path = written(tmp_path / "a.txt", GERMAN.encode(codec))
    [document] = reading(path, encoding="auto", documents=documents).documents
    assert (document.text.strip(), document.notes) == (GERMAN.strip(), {"encoding": codec})
    strict = reading(path, documents=documents)
    assert (strict.texts, {*strict.counts}) == ([], {"not UTF-8"})
    assert "UTF-16 without a byte order mark: set `encoding: utf-16-le`" in refusal(path, documents=documents)


def test_auto_guesses_only_codecs_of_the_web(tmp_path):
    path = written(tmp_path / "a.txt", b"caf\xe9 au lait\n")
    [document] = reading(path, encoding="auto", documents="line").documents
    assert document.notes["encoding"] in encodings.GUESSED_CODECS


def test_auto_detects_codec_per_line(tmp_path):
    path = written(
        tmp_path / "a.txt", RUSSIAN.encode() + (RUSSIAN * 3).replace("\n", " ").encode("cp1251") + b"\nabc\n"
    )
    result = reading(path, encoding="auto", documents="line")
    assert [document.notes for document in result.documents] == [{}, {"encoding": "cp1251"}, {}]
    assert result.texts[1].startswith(RUSSIAN.strip())


def test_codec_sample_contains_complete_lines(monkeypatch):
    monkeypatch.setattr(encodings, "SAMPLE_BYTES", 40)
    chunks = [b"ascii\n" * 100 + b"begins ", b"here caf\xe9\n", b"and goes on\n" * 9]
    assert encodings._sample_not_utf8(iter(chunks)) == b"begins here caf\xe9\nand goes on\n"
    assert encodings._sample_not_utf8(iter([b"a\xc3", b"\xa9"])) == b""
    assert encodings._sample_not_utf8(iter([b"caf\xc3"])) == b"caf\xc3"
