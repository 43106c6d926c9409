import gzip
import json
import sys

import pytest

from data_pipeline.sources import lines, pieces
from tests.data_pipeline.sources.reading import reading, written


def test_line_is_named_by_offset(tmp_path):
    rows = json.dumps({"text": "one\ntwo", "url": "x"}) + "\n\n" + json.dumps({"text": "three"})
    result = reading(written(tmp_path / "a.jsonl", rows))
    assert list(zip(result.texts, result.sources, strict=True)) == [("one\ntwo", "a.jsonl@0"), ("three", "a.jsonl@34")]


def test_text_and_keep_fields(tmp_path):
    row = {"body": "one", "url": "x", "turns": [[0, "user"]], "size": 3, "absent": None}
    path = written(tmp_path / "a.jsonl", json.dumps(row))
    [document] = reading(path, text="body", keep=("url", "turns", "absent", "missing")).documents
    assert (document.text, document.notes) == ("one", {"url": "x", "turns": [[0, "user"]]})


def test_split_text_loses_offset_notes(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "MAX_DOCUMENT_CHARACTERS", 100)
    text = "é" * 250
    path = written(
        tmp_path / "a.jsonl", '{"text": "x"}\n' + json.dumps({"text": text, "turns": [[0, "a"]], "url": "u"})
    )
    result = reading(path, keep=("turns", "url"))
    assert "".join(result.texts[1:]) == text
    assert result.sources[1:] == ["a.jsonl@14@0", "a.jsonl@14@100", "a.jsonl@14@200"]
    assert all(document.notes == {"url": "u"} for document in result.documents[1:])


def test_values_that_orjson_rejects(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text": "one", "score": NaN}\n{"text": "two", "n": ' + "9" * 400 + "}\n")
    assert reading(path).texts == ["one", "two"]


INTEGERS = [2**64 + 1, -(2**63) - 1, 10**30 + 7, [{"n": 2**70 + 1}], 1, 1e300]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_integers_of_more_than_64_bits_are_exact(name, tmp_path):
    """orjson's issue 308: it rounds them to floats."""
    records = [{"text": "one", "id": number} for number in INTEGERS]
    lines = json.dumps(records) if name == "a.json" else "\n".join(map(json.dumps, records))
    result = reading(written(tmp_path / name, lines), keep=("id",))
    assert [document.notes["id"] for document in result.documents] == INTEGERS


@pytest.mark.parametrize("layout", ['[{}, {{"text": "two"}}]', '{}\n{{"text": "two"}}'], ids=["array", "lines"])
def test_integer_of_5000_digits_loses_no_text(layout, tmp_path):
    path = written(tmp_path / "a.json", layout.format('{"text": "one", "n": ' + "9" * 5000 + "}"))
    assert (reading(path).texts, reading(path).counts) == (["one", "two"], {})


def test_byte_order_marks_in_a_file_joined_from_several(tmp_path):
    path = written(tmp_path / "a.jsonl", '\ufeff{"text": "one"}\n\ufeff{"text": "two"}\n'.encode())
    assert (reading(path).texts, reading(path).counts) == (["one", "two"], {})


def test_surrogate_in_unused_field_is_ignored(tmp_path):
    path = written(tmp_path / "a.jsonl", '{"text": "one", "url": "\\ud800"}')
    assert reading(path).texts == ["one"]
    assert reading(path, keep=("url",)).counts == {"not UTF-8": 1}


def test_json_lines_encodings(tmp_path):
    row = json.dumps({"text": "schöne Grüße aus der Straße, mein Mädchen"}, ensure_ascii=False) + "\n"
    latin = written(tmp_path / "a.jsonl", row.encode("latin-1"))
    wide = written(tmp_path / "b.jsonl", row.encode("utf-16"))
    text = json.loads(row)["text"]
    assert reading(latin, encoding="latin-1").texts == [text]
    assert reading(wide, encoding="utf-16").texts == [text]
    [document] = reading(wide, encoding="auto").documents
    assert (document.text, document.notes) == (text, {"encoding": "utf-16"})
    assert reading(latin, encoding="auto").documents[0].notes["encoding"] != "utf-8"


@pytest.mark.parametrize(
    ("depth", "last_field", "counts"),
    [
        (499, "", {}),
        (501, "", {"nested too deeply": 1}),
        (499, ', "b": NaN', {}),
        (500, ', "b": NaN', {"nested too deeply": 1}),
    ],
)
def test_maximum_nesting_does_not_depend_on_stack(depth, last_field, counts, tmp_path):
    """With NaN, Python's json parses the complete line. Its limit counts the frames of its caller."""
    line = '{"text": "x", "a": ' + "[" * depth + "]" * depth + last_field + "}\n"
    for path in (written(tmp_path / "a.jsonl", line), written(tmp_path / "b.json", f"[{line}]")):
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit - 300)
        try:
            result = reading(path, keep=() if last_field else ("a",))
        finally:
            sys.setrecursionlimit(limit)
        assert result.counts == counts


BROKEN_LINES = [
    (b'{"text": "caf\xe9"}', "not UTF-8", r"line 2 is not UTF-8: byte 0xe9 at offset 13"),
    (b'{"text": ', "not JSON", "line 2 is not valid JSON"),
    (b"[" * 100000, "nested too deeply", "line 2 is nested too deeply for the JSON parser"),
    (b'{"body": "x"}', "no text field", "line 2 has no string in its field `text`"),
    (b'{"text": 3}', "no text field", "line 2 has no string in its field `text`"),
    (b"[1]", "no text field", "line 2 has no string in its field `text`"),
    (b'{"text": "\\ud800"}', "not UTF-8", "line 2 contains half of a surrogate pair"),
    (b'{"text": "' + b"x" * 2000000 + b'"}', "line too long", "line 2 is longer than"),
]


@pytest.mark.parametrize(("line", "reason", "message"), BROKEN_LINES)
def test_invalid_line_is_dropped(line, reason, message, tmp_path, refusal, monkeypatch, chunk_bytes):
    chunk_bytes(1000)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 200000)
    path = written(tmp_path / "a.jsonl", b'{"text": "one"}\n' + line + b'\n{"text": "three"}\n')
    result = reading(path)
    assert result.texts == ["one", "three"]
    assert result.counts == {reason: 1}
    [[source, example]] = result.dropped.examples[reason]
    assert source == "a.jsonl@16"
    assert example == (
        "is longer than 200,000 bytes: split it, or raise `max_bytes` of its source"
        if reason == "line too long"
        else line.decode("utf-8", "replace")[:200]
    )
    assert message in refusal(path)


def test_line_number_does_not_depend_on_span(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl", '{"text": "one"}\n' * 1000 + "{\n" + '{"text": "one"}\n' * 1000)
    assert "a.jsonl line 1,001 is not valid JSON" in refusal(path, part=100)


def test_conversation(tmp_path):
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
def test_array_file(name, content, tmp_path, chunk_bytes):
    data = content.encode()
    path = written(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    for size in (1 << 20, 1, 7, 64):
        chunk_bytes(size)
        for part in (1 << 40, 5):
            result = reading(path, keep=("url",), part=part)
            assert result.texts == [record["text"] for record in RECORDS]
            assert not result.counts
            for document in result.documents:
                at = int(document.source.rpartition("@")[2])
                assert data[at:].startswith(b"{")
    assert [document.notes for document in result.documents] == [{"url": "a"}, {}, {}]


def test_multi_line_objects(tmp_path):
    text = "\n".join(json.dumps(record, indent=4) for record in RECORDS)
    assert reading(written(tmp_path / "a.json", text)).texts == [record["text"] for record in RECORDS]
    assert reading(written(tmp_path / "b.json", json.dumps({"text": "only"}, indent=1))).texts == ["only"]
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    assert reading(written(tmp_path / "c.json", lines)).texts == [record["text"] for record in RECORDS]


def test_invalid_elements_are_dropped(tmp_path, refusal):
    path = written(
        tmp_path / "a.json", '[{"text": "one"}, 12, {"body": "x"}, null, {"text": "\\ud800"}, {"text": "two"}]'
    )
    result = reading(path)
    assert (result.texts, result.counts) == (["one", "two"], {"no text field": 3, "not UTF-8": 1})
    assert "line 1 has no string in its field `text`" in refusal(path)


def test_error_suggests_messages_option(tmp_path, refusal):
    path = written(tmp_path / "a.jsonl", '{"talk": [{"role": "user", "content": "hello"}]}\n')
    assert "or a conversation with `messages` (messages: talk)" in refusal(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "one"}\n{"text": "two"}]', "line 2 starts invalid JSON (a comma is missing)"),
        ('[{"text": "one"},\n{"text": }, {"text": "two"}' + " " * 50 + "]", "line 2 starts invalid JSON"),
        ('[{"text": "one"},\n{"text": "two', "line 2 starts invalid JSON (Unterminated string"),
        ('[{"text": "one"}\n', "line 2 starts invalid JSON (the array does not end)"),
    ],
)
def test_damaged_array_keeps_earlier_elements(content, message, tmp_path, refusal):
    path = written(tmp_path / "a.json", content)
    result = reading(path)
    assert (result.texts, result.counts) == (["one"], {"not JSON": 1})
    assert message in refusal(path)
