import gzip
import json

import pytest

from data_pipeline.sources import lines, pieces
from tests.data_pipeline.sources.reading import reading, written


def test_a_line_is_a_document_and_knows_where_it_begins(tmp_path):
    rows = json.dumps({"text": "one\ntwo", "url": "x"}) + "\n\n" + json.dumps({"text": "three"})
    found = reading(written(tmp_path / "a.jsonl", rows))
    assert list(zip(found.texts, found.sources, strict=True)) == [("one\ntwo", "a.jsonl@0"), ("three", "a.jsonl@34")]


def test_fields_are_named_and_kept(tmp_path):
    row = {"body": "one", "url": "x", "turns": [[0, "user"]], "size": 3, "absent": None}
    path = written(tmp_path / "a.jsonl", json.dumps(row))
    [document] = reading(path, text="body", keep=("url", "turns", "absent", "missing")).documents
    assert (document.text, document.notes) == ("one", {"url": "x", "turns": [[0, "user"]]})


def test_a_long_text_comes_in_pieces_without_notes_that_count_its_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "LONGEST", 100)
    text = "é" * 250
    path = written(
        tmp_path / "a.jsonl", '{"text": "x"}\n' + json.dumps({"text": text, "turns": [[0, "a"]], "url": "u"})
    )
    found = reading(path, keep=("turns", "url"))
    assert "".join(found.texts[1:]) == text
    assert found.sources[1:] == ["a.jsonl@14@0", "a.jsonl@14@100", "a.jsonl@14@200"]
    assert all(document.notes == {"url": "u"} for document in found.documents[1:])


def test_what_json_knows_and_faster_parsers_do_not_is_read(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text": "one", "score": NaN}\n{"text": "two", "n": ' + "9" * 400 + "}\n")
    assert reading(path).texts == ["one", "two"]


def test_half_a_surrogate_pair_in_a_field_that_nobody_wants_does_no_harm(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text": "one", "url": "\\ud800"}')
    assert reading(path).texts == ["one"]
    assert reading(path, keep=("url",)).counts == {"not UTF-8": 1}


def test_other_encodings_are_read_by_name_and_by_looking(tmp_path):
    row = json.dumps({"text": "schöne Grüße aus der Straße, mein Mädchen"}, ensure_ascii=False) + "\n"
    latin = written(tmp_path / "a.jsonl", row.encode("latin-1"))
    wide = written(tmp_path / "b.jsonl", row.encode("utf-16"))
    text = json.loads(row)["text"]
    assert reading(latin, encoding="latin-1").texts == [text]
    assert reading(wide, encoding="utf-16").texts == [text]
    [document] = reading(wide, encoding="auto").documents
    assert (document.text, document.notes) == (text, {"encoding": "utf-16"})
    assert reading(latin, encoding="auto").documents[0].notes["encoding"] != "utf-8"


BROKEN_LINES = [
    (b'{"text": "caf\xe9"}', "not UTF-8", r"line 2 is not UTF-8: byte 0xe9 at offset 13"),
    (b'{"text": ', "not JSON", "line 2 is not valid JSON"),
    (b"[" * 100000, "nested too deep", "line 2 is nested deeper than JSON is read here"),
    (b'{"body": "x"}', "no text field", "line 2 has no string in its field `text`"),
    (b'{"text": 3}', "no text field", "line 2 has no string in its field `text`"),
    (b"[1]", "no text field", "line 2 has no string in its field `text`"),
    (b'{"text": "\\ud800"}', "not UTF-8", "line 2 holds half a surrogate pair"),
    (b'{"text": "' + b"x" * 2000000 + b'"}', "line too long", "line 2 is longer than"),
]


@pytest.mark.parametrize(("line", "reason", "said"), BROKEN_LINES)
def test_a_broken_line_is_counted_or_ends_the_build_and_its_neighbors_are_read(
    line, reason, said, tmp_path, refusal, monkeypatch, chunk_bytes
):
    chunk_bytes(1000)
    monkeypatch.setattr(lines, "LONGEST_LINE", 200000)
    path = written(tmp_path / "a.jsonl", b'{"text": "one"}\n' + line + b'\n{"text": "three"}\n')
    found = reading(path)
    assert found.texts == ["one", "three"]
    assert found.counts == {reason: 1}
    [[source, example]] = found.dropped.examples[reason]
    assert source == "a.jsonl@16"
    assert example == (
        "is longer than 200,000 bytes: break it up, or raise `max_bytes` of its source"
        if reason == "line too long"
        else line.decode("utf-8", "replace")[:200]
    )
    assert said in refusal(path)


def test_the_number_of_a_broken_line_is_that_of_the_file_wherever_the_span_begins(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl", '{"text": "one"}\n' * 1000 + "{\n" + '{"text": "one"}\n' * 1000)
    assert "a.jsonl line 1,001 is not valid JSON" in refusal(path, part=100)


def test_a_conversation_is_read_whatever_stands_beside_it(tmp_path):
    row = '{"messages": [{"role": "user", "content": "Where?"}, {"role": "bot", "content": "There."}], "score": NaN}\n'
    [document] = reading(written(tmp_path / "a.jsonl", row), messages="messages").documents
    assert (document.text, document.notes) == ("Where?\nThere.", {"turns": [[0, "user"], [7, "bot"]]})


RECORDS = [{"text": "one ] , {", "url": "a"}, {"text": 'zwei \\ " Wörter', "n": 1.5}, {"text": "三" * 50}]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz"])
@pytest.mark.parametrize(
    "content",
    [
        json.dumps(RECORDS),
        json.dumps(RECORDS, indent=2, ensure_ascii=False),
        "[\n" + ",\n".join(json.dumps(record) for record in RECORDS) + "\n]\n",
        "\ufeff  " + json.dumps(RECORDS[:2]) + "\n" + json.dumps(RECORDS[2:], indent=1),
        "[]" + json.dumps(RECORDS),
    ],
)
def test_a_file_that_is_an_array_is_read_element_by_element(name, content, tmp_path, chunk_bytes):
    data = content.encode()
    path = written(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    for size in (1 << 20, 1, 7, 64):
        chunk_bytes(size)
        for part in (1 << 40, 5):
            found = reading(path, keep=("url",), part=part)
            assert found.texts == [record["text"] for record in RECORDS]
            assert not found.counts
            for document in found.documents:
                at = int(document.source.rpartition("@")[2])
                assert data[at:].startswith(b"{")
    assert [document.notes for document in found.documents] == [{"url": "a"}, {}, {}]


def test_objects_over_many_lines_are_read(tmp_path):
    text = "\n".join(json.dumps(record, indent=4) for record in RECORDS)
    assert reading(written(tmp_path / "a.json", text)).texts == [record["text"] for record in RECORDS]
    assert reading(written(tmp_path / "b.json", json.dumps({"text": "only"}, indent=1))).texts == ["only"]
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    assert reading(written(tmp_path / "c.json", lines)).texts == [record["text"] for record in RECORDS]


def test_elements_that_are_no_texts_are_counted_one_by_one(tmp_path, refusal):
    path = written(
        tmp_path / "a.json", '[{"text": "one"}, 12, {"body": "x"}, null, {"text": "\\ud800"}, {"text": "two"}]'
    )
    found = reading(path)
    assert (found.texts, found.counts) == (["one", "two"], {"no text field": 3, "not UTF-8": 1})
    assert "line 1 has no string in its field `text`" in refusal(path)


def test_a_conversation_that_nobody_named_is_told_of(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl", '{"talk": [{"role": "user", "content": "hello"}]}\n')
    assert "or a conversation with `messages` (messages: talk)" in refusal(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[{"text": "one"}\n{"text": "two"}]', "line 2 begins what is not valid JSON (a comma is missing)"),
        ('[{"text": "one"},\n{"text": }, {"text": "two"}' + " " * 50 + "]", "line 2 begins what is not valid JSON"),
        ('[{"text": "one"},\n{"text": "two', "line 2 begins what is not valid JSON (Unterminated string"),
        ('[{"text": "one"}\n', "line 2 begins what is not valid JSON (the array does not end)"),
    ],
)
def test_an_array_that_is_damaged_keeps_what_came_before_and_counts_the_rest_once(content, said, tmp_path, refusal):
    path = written(tmp_path / "a.json", content)
    found = reading(path)
    assert (found.texts, found.counts) == (["one"], {"not JSON": 1})
    assert said in refusal(path)
