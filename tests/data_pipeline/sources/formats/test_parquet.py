import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_pipeline.deduplicate.json_lines import document_from_line, document_to_line
from data_pipeline.document import DropCounts
from data_pipeline.sources import pieces, read_span
from data_pipeline.sources.encodings import GUESSED_CODECS
from data_pipeline.sources.formats import parquet as reader
from tests.data_pipeline.sources.reading import reading, span_of, written


def test_rows_and_selected_columns(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {
        "text": ["one", "zwei Wörter", "三"],
        "url": ["u", None, "v"],
        "when": [datetime.date(2026, 1, 2)] * 3,
        "turns": [[{"at": 0, "role": "user"}]] * 3,
        "noise": [b"\xff" * 100] * 3,
    }
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    result = reading(path, keep=("url", "when", "turns"))
    assert result.texts == columns["text"]
    assert result.sources == ["a.parquet@0", "a.parquet@1", "a.parquet@2"]
    assert result.documents[0].notes == {"url": "u", "when": "2026-01-02", "turns": [{"at": 0, "role": "user"}]}
    assert "url" not in result.documents[1].notes


def test_nested_notes_are_json(tmp_path):
    """Else documents could not be written, which would end the build."""
    value = {"at": datetime.date(2026, 1, 2), "price": Decimal("1.50"), "raw": [b"caf", b"\xc3\xa9"]}
    parquet.write_table(pa.table({"text": ["one"], "meta": [value]}), tmp_path / "a.parquet")
    [document] = reading(tmp_path / "a.parquet", keep=("meta",)).documents
    assert document.notes["meta"] == {"at": "2026-01-02", "price": "1.50", "raw": ["caf", "é"]}
    assert document_from_line(document_to_line(document)) == document


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_column_types(kind, tmp_path):
    path = tmp_path / "a.parquet"
    texts = ["eins", "zwei", "eins", "größer"]
    values = [text.encode() for text in texts] if pa.types.is_binary(kind) else texts
    parquet.write_table(pa.table({"text": pa.array(values).cast(kind)}), path)
    assert reading(path).texts == texts


def test_rows_share_a_long_text_that_repeats(tmp_path):
    """A book beside each question about it: a small file whose decoded batch would fill the memory."""
    path, books = tmp_path / "a.parquet", [f"{number} " * 50_000 for number in range(3)]
    parquet.write_table(pa.table({"text": [*books, None] * 250, "question": [*map(str, range(1000))]}), path)
    assert path.stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    first = next(read_span(span_of(path, keep=("question",)), DropCounts(), "skip"))
    assert (first.text, first.notes) == (books[0], {"question": "0"})
    assert pa.total_allocated_bytes() - before < 10_000_000
    result = reading(path)
    assert (result.texts[:3], len(result.texts), result.counts) == (books, 750, {"no text field": 250})


def test_invalid_rows_are_dropped(tmp_path, refusal):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": pa.array([b"one", None, b"caf\xe9", b"two"])}), path)
    result = reading(path)
    assert (result.texts, result.counts) == (["one", "two"], {"no text field": 1, "not UTF-8": 1})
    assert "a.parquet row 1 has no string in its field `text`" in refusal(path)
    assert reading(path, encoding="latin-1").texts == ["one", "café", "two"]


def test_guessed_codec_of_a_row_is_noted(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [b"caf\xe9", "naïve".encode()]}), path)
    guessed, valid = reading(path, encoding="auto").documents
    assert guessed.text.startswith("caf"), "two letters are one Chinese character in UTF-16"
    assert guessed.notes["encoding"] in GUESSED_CODECS
    assert (valid.text, valid.notes) == ("naïve", {})


def test_long_rows_are_split(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_DOCUMENT_CHARACTERS", 100)
    monkeypatch.setattr(reader, "BATCH_BYTES", 500)
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["x" * 250, "y" * 250]}), path)
    result = reading(path)
    assert [len(text) for text in result.texts] == [100, 100, 50] * 2
    assert result.sources[3] == "a.parquet@1@0"


@pytest.mark.parametrize(
    ("columns", "message"), [({"body": ["one"]}, r"body (string)"), ({"text": [1]}, r"text (int64)")]
)
def test_missing_column_is_rejected(columns, message, tmp_path, refusal):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(columns), path)
    assert reading(path).counts == {"no text column": 1}
    assert f"has no text in a column `text`, but {message}: name the column" in refusal(path)


def test_invalid_parquet_is_dropped(tmp_path, refusal):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"row {row}" for row in range(2000)]}), path)
    content = path.read_bytes()
    for invalid in (b"no parquet at all", content[: len(content) // 2], content[:-1]):
        written(path, invalid)
        assert reading(path).counts == reading(path, part=500).counts == {"not Parquet": 1}
        assert "is not readable Parquet" in refusal(path)


def test_damaged_row_group_is_dropped(tmp_path, refusal):
    path = tmp_path / "a.parquet"
    texts = [f"row {row} " * 100 for row in range(900)]
    options = {"row_group_size": 300, "use_dictionary": False, "write_page_checksum": True}
    parquet.write_table(pa.table({"text": texts}), path, **options)
    content = bytearray(path.read_bytes())
    at = parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[at + 9000 : at + 9100] = bytes(100)  # after the page's header, which holds its minimum and maximum
    written(path, bytes(content))
    result = reading(path)
    assert (result.texts, result.counts) == (texts[:300] + texts[600:], {"damaged": 1})
    cut = reading(path, part=len(content) // 5)
    assert (cut.documents, cut.counts) == (result.documents, result.counts)
    assert "a.parquet row 300 starts a damaged part" in refusal(path)


def test_parquet_in_gzip_is_rejected(tmp_path, refusal):
    path = written(tmp_path / "a.parquet.gz", b"\x1f\x8b")
    assert reading(path).counts == {"wrong compression": 1}
    assert "is Parquet inside another compression: decompress it" in refusal(path)


def test_empty_table(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert (reading(path).texts, reading(path).counts) == ([], {})


@pytest.mark.parametrize("expected", [{"text": "text"}, {"text": "body", "keep": ("text",)}])
def test_duplicate_columns_are_rejected(expected, tmp_path, refusal):
    table = pa.Table.from_arrays([pa.array([word]) for word in ("one", "two", "three")], ["text", "text", "body"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert reading(tmp_path / "a.parquet", **expected).counts == {"duplicate column names": 1}
    assert "has 2 columns `text`: rename all but one of them" in refusal(tmp_path / "a.parquet", **expected)
    assert reading(tmp_path / "a.parquet", text="body").texts == ["three"]


def test_duplicate_csv_columns_are_rejected(tmp_path):
    assert reading(written(tmp_path / "a.csv", "text,text\none,two\n")).counts == {"duplicate column names": 1}
