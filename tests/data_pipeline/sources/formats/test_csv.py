import csv

import pytest

from data_pipeline.sources import pieces
from tests.data_pipeline.sources.reading import reading, written


def test_a_row_is_a_document_with_its_quotes_commas_and_lines_understood(tmp_path):
    texts = ["one", 'two, "quoted"', "three\nlines\n\nof it", "vier Wörter", "\n"]
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "url"])
        rows.writerows([number, text, f"u{number}"] for number, text in enumerate(texts))
    found = reading(path, keep=("url",))
    assert found.texts == texts
    assert [document.notes for document in found.documents] == [{"url": f"u{number}"} for number in range(5)]
    content = path.read_bytes()
    starts = [int(source.partition("@")[2]) for source in found.sources]
    assert [content[start : start + 2] for start in starts] == [f"{number},".encode() for number in range(5)]


def test_a_tab_parts_the_fields_of_tsv_and_any_character_those_that_are_told(tmp_path):
    assert reading(written(tmp_path / "a.tsv", "text\tn\none, two\t3\n")).texts == ["one, two"]
    assert reading(written(tmp_path / "a.csv", "text;n\none, two;3\n"), delimiter=";").texts == ["one, two"]


def test_columns_that_are_named_have_no_line_of_their_own(tmp_path):
    path = written(tmp_path / "a.tsv", "Good day\tGuten Tag\nYes\tJa\n")
    assert reading(path, columns=("en", "de"), text="de").texts == ["Guten Tag", "Ja"]
    pairs = reading(path, columns=("en", "de"), parts=("en", "de"))
    assert pairs.texts == ["Good day\nGuten Tag", "Yes\nJa"]
    said = "has no column `en` in its first line, but Good day, Guten Tag: name the column with `parts`, or, where the"
    assert said in reading(path, parts=("en", "de")).dropped.said["no text column"]


def test_a_long_field_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "LONGEST", 100_000)
    text = "word " * 60_000  # more than the 131,072 characters that csv takes at first
    found = reading(written(tmp_path / "a.csv", f"text\n{text}\n"))
    assert "".join(found.texts) == text
    assert found.sources == ["a.csv@5@0", "a.csv@5@100000", "a.csv@5@200000"]


def test_encodings(tmp_path):
    for codec in ("latin-1", "utf-16"):
        path = written(tmp_path / "a.csv", "text,größe\nschöne Grüße,3\n".encode(codec))
        [document] = reading(path, encoding=codec, keep=("größe",)).documents
        assert (document.text, document.notes) == ("schöne Grüße", {"größe": "3"})


BROKEN_ROWS = [
    (b"1,caf\xe9", "not UTF-8", "line 3 is not UTF-8: byte 0xe9"),
    (b"1", "wrong number of fields", "line 3 begins a row of 1 fields where 2 are due"),
    (b"1,2,3", "wrong number of fields", "line 3 begins a row of 3 fields"),
    (b'1,"a" b', "not CSV", "line 3 begins what is not valid CSV"),
]


@pytest.mark.parametrize(("row", "reason", "said"), BROKEN_ROWS)
def test_a_broken_row_is_counted_or_ends_the_build_and_its_neighbors_are_read(row, reason, said, tmp_path, refusal):
    path = written(tmp_path / "a.csv", b"id,text\n0,one\n" + row + b"\n2,three\n")
    found = reading(path)
    assert (found.texts, found.counts) == (["one", "three"], {reason: 1})
    assert found.dropped.examples[reason][0][0] == "a.csv@14"
    assert said in refusal(path)


def test_a_quote_that_never_closes_is_counted(tmp_path):
    found = reading(written(tmp_path / "a.csv", 'text\none\n"two\nthree\n'))
    assert (found.texts, found.counts) == (["one"], {"not CSV": 1})


def test_a_line_too_long_is_counted(tmp_path, monkeypatch, chunk_bytes):
    chunk_bytes(100)
    monkeypatch.setattr("data_pipeline.sources.lines.LONGEST_LINE", 1000)
    found = reading(written(tmp_path / "a.csv", "text\none\n" + "x" * 2000 + "\ntwo\n"))
    assert (found.texts, found.counts) == (["one", "two"], {"line too long": 1})


def test_a_missing_column_is_told_with_those_that_are_there(tmp_path, refusal):
    path = written(tmp_path / "a.csv", "body,url\none,two\n")
    assert reading(path).counts == {"no text column": 1}
    assert "has no column `text` in its first line, but body, url: name the column with `text`" in refusal(path)


def test_a_table_without_the_column_says_which_it_has_though_the_build_goes_on(tmp_path):
    found = reading(written(tmp_path / "a.csv", "id,review\n1,good\n"))
    said = (
        "has no column `text` in its first line, but id, review: name the column with `text`, or, where the first line "
        "is text, all columns with `columns`"
    )
    assert found.dropped.examples == {"no text column": [("a.csv", said)]}
    assert found.dropped.said == {"no text column": said}
