import csv

import pytest

from data_pipeline.sources import pieces
from tests.data_pipeline.sources.reading import reading, written


def test_row_with_quotes_commas_and_newlines(tmp_path):
    texts = ["one", 'two, "quoted"', "three\nlines\n\nof it", "vier Wörter", "\n"]
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "url"])
        rows.writerows([number, text, f"u{number}"] for number, text in enumerate(texts))
    result = reading(path, keep=("url",))
    assert result.texts == texts
    assert [document.notes for document in result.documents] == [{"url": f"u{number}"} for number in range(5)]
    content = path.read_bytes()
    starts = [int(source.partition("@")[2]) for source in result.sources]
    assert [content[start : start + 2] for start in starts] == [f"{number},".encode() for number in range(5)]


def test_delimiters(tmp_path):
    assert reading(written(tmp_path / "a.tsv", "text\tn\none, two\t3\n")).texts == ["one, two"]
    assert reading(written(tmp_path / "a.csv", "text;n\none, two;3\n"), delimiter=";").texts == ["one, two"]


def test_columns_replace_header(tmp_path):
    path = written(tmp_path / "a.tsv", "Good day\tGuten Tag\nYes\tJa\n")
    assert reading(path, columns=("en", "de"), text="de").texts == ["Guten Tag", "Ja"]
    pairs = reading(path, columns=("en", "de"), parts=("en", "de"))
    assert pairs.texts == ["Good day\nGuten Tag", "Yes\nJa"]
    message = "has no column `en` in its first line, but Good day, Guten Tag: name the column with `parts`, or, if the"
    assert message in reading(path, parts=("en", "de")).dropped.messages["no text column"]


def test_long_field_is_split(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_DOCUMENT_CHARACTERS", 100_000)
    text = "word " * 60_000  # more than csv's default limit of 131,072 characters
    result = reading(written(tmp_path / "a.csv", f"text\n{text}\n"))
    assert "".join(result.texts) == text
    assert result.sources == ["a.csv@5@0", "a.csv@5@100000", "a.csv@5@200000"]


def test_csv_encodings(tmp_path):
    for codec in ("latin-1", "utf-16"):
        path = written(tmp_path / "a.csv", "text,größe\nschöne Grüße,3\n".encode(codec))
        [document] = reading(path, encoding=codec, keep=("größe",)).documents
        assert (document.text, document.notes) == ("schöne Grüße", {"größe": "3"})


BROKEN_ROWS = [
    (b"1,caf\xe9", "not UTF-8", "line 3 is not UTF-8: byte 0xe9"),
    (b"1", "wrong number of fields", "line 3 starts a row of 1 fields, but 2 are expected"),
    (b"1,2,3", "wrong number of fields", "line 3 starts a row of 3 fields"),
    (b'1,"a" b', "not CSV", "line 3 starts invalid CSV"),
]


@pytest.mark.parametrize(("row", "reason", "message"), BROKEN_ROWS)
def test_invalid_row_is_dropped(row, reason, message, tmp_path, refusal):
    path = written(tmp_path / "a.csv", b"id,text\n0,one\n" + row + b"\n2,three\n")
    result = reading(path)
    assert (result.texts, result.counts) == (["one", "three"], {reason: 1})
    assert result.dropped.examples[reason][0][0] == "a.csv@14"
    assert message in refusal(path)


def test_unclosed_quote_is_dropped(tmp_path):
    result = reading(written(tmp_path / "a.csv", 'text\none\n"two\nthree\n'))
    assert (result.texts, result.counts) == (["one"], {"not CSV": 1})
    assert result.dropped.messages["not CSV"] == (
        "starts invalid CSV (unexpected end of data); lines lost after it: 1: correct it, or set `quotes: false` if "
        "quotation marks are part of the text"
    )


def test_unclosed_quote_of_a_large_file_names_the_lost_lines(tmp_path):
    result = reading(written(tmp_path / "a.csv", 'text\none\n"two\n' + "three\n" * 4 + "four\n"), max_bytes=20)
    assert (result.texts, result.counts) == (["one", "four"], {"line too long": 1})
    assert result.dropped.messages["line too long"] == (
        "is longer than 20 bytes; lines lost after it: 4: split it, or raise `max_bytes` of its source, or set "
        "`quotes: false` if quotation marks are part of the text"
    )


def test_quotes_may_be_text(tmp_path):
    """Files of translations separate columns by tabs and quote nothing."""
    path = written(tmp_path / "a.tsv", '"Good day\t"Guten Tag"\n"Yes," he said.\t"Ja", sagte er.\n')
    pairs = reading(path, columns=("en", "de"), parts=("en", "de"), quotes=False)
    assert pairs.texts == ['"Good day\n"Guten Tag"', '"Yes," he said.\n"Ja", sagte er.']
    assert not pairs.counts


def test_too_long_csv_line_is_dropped(tmp_path, monkeypatch, chunk_bytes):
    chunk_bytes(100)
    monkeypatch.setattr("data_pipeline.sources.lines.MAX_LINE_BYTES", 1000)
    result = reading(written(tmp_path / "a.csv", "text\none\n" + "x" * 2000 + "\ntwo\n"))
    assert (result.texts, result.counts) == (["one", "two"], {"line too long": 1})


def test_missing_column_is_rejected(tmp_path, refusal):
    path = written(tmp_path / "a.csv", "body,url\none,two\n")
    assert reading(path).counts == {"no text column": 1}
    assert "has no column `text` in its first line, but body, url: name the column with `text`" in refusal(path)


def test_missing_column_message_lists_columns(tmp_path):
    result = reading(written(tmp_path / "a.csv", "id,review\n1,good\n"))
    message = (
        "has no column `text` in its first line, but id, review: name the column with `text`, or, if the first line "
        "is text, all columns with `columns`"
    )
    assert result.dropped.examples == {"no text column": [("a.csv", message)]}
    assert result.dropped.messages == {"no text column": message}
