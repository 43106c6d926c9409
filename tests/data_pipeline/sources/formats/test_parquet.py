import datetime

import pyarrow as pa
import pytest
from pyarrow import parquet

from data_pipeline.sources import pieces
from data_pipeline.sources.formats import parquet as reader
from tests.data_pipeline.sources.reading import reading, written


def test_rows_are_documents_and_only_what_is_asked_for_is_kept(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {
        "text": ["one", "zwei Wörter", "三"],
        "url": ["u", None, "v"],
        "when": [datetime.date(2026, 1, 2)] * 3,
        "turns": [[{"at": 0, "role": "user"}]] * 3,
        "noise": [b"\xff" * 100] * 3,
    }
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    found = reading(path, keep=("url", "when", "turns"))
    assert found.texts == columns["text"]
    assert found.sources == ["a.parquet@0", "a.parquet@1", "a.parquet@2"]
    assert found.documents[0].notes == {"url": "u", "when": "2026-01-02", "turns": [{"at": 0, "role": "user"}]}
    assert "url" not in found.documents[1].notes


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_of_any_kind_is_text(kind, tmp_path):
    path = tmp_path / "a.parquet"
    texts = ["eins", "zwei", "eins", "größer"]
    values = [text.encode() for text in texts] if pa.types.is_binary(kind) else texts
    parquet.write_table(pa.table({"text": pa.array(values).cast(kind)}), path)
    assert reading(path).texts == texts


def test_what_is_no_text_is_counted_row_by_row(tmp_path, refusal):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": pa.array([b"one", None, b"caf\xe9", b"two"])}), path)
    found = reading(path)
    assert (found.texts, found.counts) == (["one", "two"], {"no text field": 1, "not UTF-8": 1})
    assert "a.parquet row 1 has no string in its field `text`" in refusal(path)
    assert reading(path, encoding="latin-1").texts == ["one", "café", "two"]


def test_long_texts_come_in_pieces_and_are_read_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "LONGEST", 100)
    monkeypatch.setattr(reader, "BATCH_BYTES", 500)
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": ["x" * 250, "y" * 250]}), path)
    found = reading(path)
    assert [len(text) for text in found.texts] == [100, 100, 50] * 2
    assert found.sources[3] == "a.parquet@1@0"


@pytest.mark.parametrize(("columns", "said"), [({"body": ["one"]}, r"body (string)"), ({"text": [1]}, r"text (int64)")])
def test_a_missing_column_is_told_with_those_that_are_there(columns, said, tmp_path, refusal):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table(columns), path)
    assert reading(path).counts == {"no text column": 1}
    assert f"has no text in a column `text`, but {said}: name the column" in refusal(path)


def test_a_file_that_is_no_parquet_or_a_part_of_one_is_counted(tmp_path, refusal):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"row {row}" for row in range(2000)]}), path)
    content = path.read_bytes()
    for broken in (b"no parquet at all", content[: len(content) // 2], content[:-1]):
        written(path, broken)
        assert reading(path).counts == reading(path, part=500).counts == {"not Parquet": 1}
        assert "is not Parquet that can be read" in refusal(path)


def test_a_damaged_row_group_is_counted_and_the_others_are_read(tmp_path, refusal):
    path = tmp_path / "a.parquet"
    texts = [f"row {row} " * 100 for row in range(900)]
    options = {"row_group_size": 300, "use_dictionary": False, "write_page_checksum": True}
    parquet.write_table(pa.table({"text": texts}), path, **options)
    content = bytearray(path.read_bytes())
    at = parquet.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[at + 9000 : at + 9100] = bytes(100)  # behind the page's header, which holds its least and greatest value
    written(path, bytes(content))
    found = reading(path)
    assert (found.texts, found.counts) == (texts[:300] + texts[600:], {"damaged": 1})
    cut = reading(path, part=len(content) // 5)
    assert (cut.documents, cut.counts) == (found.documents, found.counts)
    assert "a.parquet row 300 begins what is damaged" in refusal(path)


def test_parquet_inside_of_gzip_is_refused_with_what_to_do(tmp_path, refusal):
    path = written(tmp_path / "a.parquet.gz", b"\x1f\x8b")
    assert reading(path).counts == {"wrong compression": 1}
    assert "is Parquet inside of another compression: decompress it" in refusal(path)


def test_a_table_without_rows_has_no_documents(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    assert (reading(path).texts, reading(path).counts) == ([], {})


@pytest.mark.parametrize("wanted", [{"text": "text"}, {"text": "body", "keep": ("text",)}])
def test_two_columns_of_one_name_are_refused_where_they_are_wanted(wanted, tmp_path, refusal):
    table = pa.Table.from_arrays([pa.array([word]) for word in ("one", "two", "three")], ["text", "text", "body"])
    parquet.write_table(table, tmp_path / "a.parquet")
    assert reading(tmp_path / "a.parquet", **wanted).counts == {"columns of one name": 1}
    assert "has 2 columns `text`: rename all but one of them" in refusal(tmp_path / "a.parquet", **wanted)
    assert reading(tmp_path / "a.parquet", text="body").texts == ["three"]


def test_two_columns_of_one_name_are_refused_in_csv(tmp_path):
    assert reading(written(tmp_path / "a.csv", "text,text\none,two\n")).counts == {"columns of one name": 1}
