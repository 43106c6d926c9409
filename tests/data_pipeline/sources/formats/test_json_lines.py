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
    (b"[" * 100000, "not JSON", "line 2 is not valid JSON"),
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
        "is longer than 0 MiB: break it up" if reason == "line too long" else line.decode("utf-8", "replace")[:200]
    )
    assert said in refusal(path)


def test_the_number_of_a_broken_line_is_that_of_the_file_wherever_the_span_begins(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl", '{"text": "one"}\n' * 1000 + "{\n" + '{"text": "one"}\n' * 1000)
    assert "a.jsonl line 1,001 is not valid JSON" in refusal(path, part=100)


def test_a_conversation_is_read_whatever_stands_beside_it(tmp_path):
    row = '{"messages": [{"role": "user", "content": "Where?"}, {"role": "bot", "content": "There."}], "score": NaN}\n'
    [document] = reading(written(tmp_path / "a.jsonl", row), messages="messages").documents
    assert (document.text, document.notes) == ("Where?\nThere.", {"turns": [[0, "user"], [7, "bot"]]})
