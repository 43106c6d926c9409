"""Documents as JSON lines, written by orjson if installed, which is ten times as fast as Python's json."""

from __future__ import annotations

import json

from data_pipeline.document import Document

try:
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


BY_JSON = b" "
"""First byte of lines written by json, because they may hold values that orjson rejects or reads differently."""


def document_to_line(document: Document) -> bytes:
    fields = {"text": document.text, "source": document.source, "form": document.form, "notes": document.notes}
    fields["origin"] = document.origin
    if orjson:
        try:
            return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
        except TypeError:
            pass  # halves of surrogate pairs, numbers beyond 64 bits
    return BY_JSON + json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def document_from_line(line: bytes) -> Document:
    read = orjson.loads if orjson and not line.startswith(BY_JSON) else json.loads
    return Document(**read(line))
