"""For any division of files, the spans together have exactly the documents of the whole."""

import json
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from data_pipeline.sources import InputFile, Source, Span, partition_files
from tests.data_pipeline.sources.reading import reading, written

FIRST = "\ufeff"
lines = st.lists(
    st.sampled_from(["", " ", "one", "zwei Wörter", "\t", "三", " four ", "x" * 40, "\r", FIRST]), max_size=25
)
ends = st.sampled_from(["\n", "\r\n"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("spans")


@settings(max_examples=150, deadline=None)
@given(written_lines=lines, end=ends, last=st.booleans(), part=st.integers(1, 60))
@example(written_lines=[FIRST, "one", "", "two"], end="\n", last=False, part=1)
@pytest.mark.parametrize("documents", ["line", "blank-line"])
def test_text_spans(documents, written_lines, end, last, part, folder):
    path = written(folder / "a.txt", end.join(written_lines) + (end if last else ""))
    uncut = reading(path, documents=documents)
    cut = reading(path, documents=documents, part=part)
    assert cut.documents == uncut.documents
    assert cut.counts == uncut.counts
    if not path.stat().st_size:
        assert uncut.counts == {"empty file": 1}
    elif documents == "line":
        plain = path.read_bytes().decode("utf-8-sig").split("\n")
        assert uncut.texts == [line.removesuffix("\r") for line in plain if line.strip()]


@settings(max_examples=150, deadline=None)
@given(written_lines=lines, end=ends, part=st.integers(1, 60), chunk=st.integers(1, 10), longest=st.integers(10, 50))
@pytest.mark.parametrize("documents", ["line", "blank-line"])
def test_text_spans_with_any_chunk_size(documents, written_lines, end, part, chunk, longest, folder):
    path = written(folder / "b.txt", end.join(["x", *written_lines]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data_pipeline.sources.lines.MAX_LINE_BYTES", longest)  # chunks are shorter, as in practice
        patch.setattr("data_pipeline.sources.content.CHUNK_BYTES", 10)
        uncut = reading(path, documents=documents)
        patch.setattr("data_pipeline.sources.content.CHUNK_BYTES", chunk)
        patch.setattr("data_pipeline.sources.paragraphs.CHUNK_BYTES", chunk)
        cut = reading(path, documents=documents, part=part)
    assert (cut.documents, cut.counts) == (uncut.documents, uncut.counts)


@settings(max_examples=150, deadline=None)
@given(written_lines=lines, end=ends)
def test_paragraphs_match_definition(written_lines, end, folder):
    path = written(folder / "c.txt", end.join(["x", *written_lines]))
    runs = groupby(path.read_bytes().decode().split("\n"), key=lambda line: bool(line.strip()))
    expected = ["\n".join(line.removesuffix("\r") for line in run) for full, run in runs if full]
    assert [text.rstrip("\r") for text in reading(path, documents="blank-line").texts] == expected


@settings(max_examples=80, deadline=None)
@given(texts=st.lists(st.one_of(st.text(max_size=20), st.none()), max_size=20), part=st.integers(1, 60))
def test_json_lines_spans(texts, part, folder):
    rows = ["not json" if text is None else json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path = written(folder / "a.jsonl", "".join(f"{row}\n" for row in rows).encode("utf-8", "replace"))
    cut = reading(path, part=part)
    assert cut.documents == reading(path).documents
    assert len(cut.documents) + cut.counts["not JSON"] == len(texts)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(0, 40), group=st.integers(1, 20), part=st.integers(20, 4000))
def test_parquet_spans(rows, group, part, folder):
    path = folder / "a.parquet"
    parquet.write_table(pa.table({"text": [f"text {row}" for row in range(rows)]}), path, row_group_size=group)
    cut = reading(path, part=part)
    assert cut.documents == reading(path).documents
    assert cut.texts == [f"text {row}" for row in range(rows)]


def test_utf16_file_is_read_by_first_span(tmp_path):
    path = written(tmp_path / "a.txt", "one\ntwo\nthree\n".encode("utf-16"))
    cut = reading(path, documents="line", encoding="auto", part=5)
    assert cut.texts == ["one", "two", "three"]


def test_long_paragraph_belongs_to_first_span(tmp_path):
    path = written(tmp_path / "a.txt", "\n\none\n" + "long\n" * 50 + " \n\t\nlast\n\n\n")
    cut = reading(path, documents="blank-line", part=7)
    assert cut.texts == ["one\n" + "long\n" * 49 + "long", "last"]
    assert cut.sources == ["a.txt@2", "a.txt@260"]


def sized(number: int, size: int, *, cut: bool) -> InputFile:
    source = Source("pile", documents="line" if cut else "file")
    return InputFile(f"{number}.txt", f"{number}.txt", size, source=source)


@given(sizes=st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=30), size=st.integers(1, 50))
def test_parts_partition_bytes(sizes, size):
    files = [sized(number, bytes_, cut=cut) for number, (bytes_, cut) in enumerate(sizes)]
    parts = partition_files(files, size)
    assert parts == partition_files(files, size)
    spans = [span for part in parts for span in part]
    for file in files:
        its = [span for span in spans if span.file == file]
        assert [span.start for span in its[1:]] == [span.stop for span in its[:-1]]
        assert (its[0].start, its[-1].stop) == (0, None)
    assert [span.file for span in spans] == sorted((span.file for span in spans), key=files.index)
    for part in parts:
        bytes_ = sum((span.file.size if span.stop is None else span.stop) - span.start for span in part)
        assert bytes_ <= size or (len(part) == 1 and part[0] == Span(part[0].file))


@pytest.mark.parametrize("name", ["a.txt.gz", "a.csv", "a.warc", "a.xml"])
def test_uncuttable_file_is_one_span(name):
    file = InputFile(name, name, 1000, source=Source(name, documents="line"))
    assert partition_files([file], 10) == [(Span(file),)]
