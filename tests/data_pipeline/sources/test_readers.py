import json
from pathlib import Path

import pytest

from data_pipeline.document import Dropped
from data_pipeline.sources.files import InputFile
from data_pipeline.sources.readers import read
from megaptm.errors import UserError


def read_all(path: Path, on_error="skip") -> tuple[list, Dropped]:
    dropped = Dropped()
    return list(read(InputFile(str(path), path.name, 0), dropped, on_error)), dropped


def test_a_file_is_one_document_and_knows_code_from_prose(tmp_path):
    for name, form in (("a.py", "code"), ("a.md", "prose"), ("a.txt", "prose")):
        (tmp_path / name).write_text("one\ntwo")
        [document] = read_all(tmp_path / name)[0]
        assert (document.text, document.source, document.form) == ("one\ntwo", name, form)


def test_a_byte_order_mark_is_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    assert read_all(tmp_path / "a.txt")[0][0].text == "hello"


def test_json_lines_hold_a_document_each_and_know_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "one\ntwo", "url": "x"}) + "\n\n" + json.dumps({"text": "three"}))
    assert [(document.text, document.source) for document in read_all(path)[0]] == [
        ("one\ntwo", "a.jsonl:1"),
        ("three", "a.jsonl:3"),
    ]


BROKEN_LINES = [
    (b'{"text": "caf\xe9"}', "not UTF-8", r"byte 0xe9 at offset 29"),
    (b'{"text": ', "not JSON", "line 2 is not valid JSON"),
    (b'{"body": "x"}', "no text field", "line 2 has no string in its field `text`"),
    (b'{"text": 3}', "no text field", "line 2 has no string in its field `text`"),
    (b"[1]", "no text field", "line 2 has no string in its field `text`"),
    (b'{"text": "\\ud800"}', "not UTF-8", "line 2 holds half a surrogate pair"),
]


@pytest.mark.parametrize(("line", "reason", "said"), BROKEN_LINES)
def test_a_broken_line_is_counted_or_ends_the_build_and_its_neighbors_are_read(line, reason, said, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "three"}\n')
    documents, dropped = read_all(path)
    assert [document.text for document in documents] == ["one", "three"]
    assert dropped.counts == {reason: 1}
    assert dropped.examples == {reason: [("a.jsonl:2", "")]}
    with pytest.raises(UserError, match=said) as error:
        read_all(path, "fail")
    assert str(path) in str(error.value)


def test_a_file_that_is_not_utf8_is_named_with_the_offset_of_the_byte(text):
    documents, dropped = read_all(text / "latin.txt")
    assert documents == []
    assert dropped.examples == {"not UTF-8": [("latin.txt", "")]}
    with pytest.raises(UserError, match=r"latin\.txt is not UTF-8: byte 0xe9 at offset 3"):
        read_all(text / "latin.txt", "fail")


def test_a_file_that_vanished_is_counted(tmp_path):
    assert read_all(tmp_path / "gone.txt")[1].counts == {"unreadable": 1}
