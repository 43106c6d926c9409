"""Documents are unchanged after writing and reading, with orjson and without."""

import pytest

from data_pipeline.deduplicate import json_lines
from data_pipeline.document import Document


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(
    "document",
    [
        Document("plain", "file.txt"),
        Document('line\nbreaks, "quotes", \u2028 and \x00', "ünïcode.txt:3", "code"),
        Document("half a pair \ud800", "odd"),
        Document("with notes", "a", notes={"turns": [[0, "user"]], "id": (1 << 70) + 1, "url": None}),
    ],
)
def test_line_round_trip(monkeypatch, document, installed):
    if not installed:
        monkeypatch.setattr(json_lines, "orjson", None)
    line = json_lines.document_to_line(document)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert json_lines.document_from_line(line) == document


def test_orjson_line_is_read_by_json(monkeypatch):
    document = Document("tëxt", "a", notes={"language": "de"})
    written = json_lines.document_to_line(document)
    monkeypatch.setattr(json_lines, "orjson", None)
    assert json_lines.document_from_line(written) == document
