"""Arrow files as `datasets` writes them: streams of record batches of 1,000 rows, in a folder per split."""

import json

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from data_pipeline.document import DropCounts
from data_pipeline.sources import Source, find_files
from data_pipeline.sources.formats import arrow
from megaptm.errors import UserError
from tests.data_pipeline.sources.reading import reading, written

TEXTS = [f"text number {number}, größer" * (1 + number % 7) for number in range(250)]
TABLE = pa.table({"text": TEXTS, "url": [f"u{number}" for number in range(250)], "label": [*range(250)]})


def stream(path, table=TABLE, rows=60):
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize("part", [1, 1000, 5000, 1 << 40])
def test_a_saved_dataset_is_read_in_any_spans(part, tmp_path):
    """The folder of `Dataset.save_to_disk`. Rows count from the start of their file in every span."""
    stream(tmp_path / "train" / "data-00000-of-00002.arrow", TABLE.slice(0, 130))
    stream(tmp_path / "train" / "data-00001-of-00002.arrow", TABLE.slice(130))
    written(tmp_path / "train" / "state.json", "{}")
    result = reading(tmp_path / "train", part=part, keep=("label",))
    assert result.texts == TEXTS
    assert [document.notes["label"] for document in result.documents] == [*range(250)]
    assert result.sources[249] == "train/data-00001-of-00002.arrow@119"


def test_shards_of_an_earlier_save_are_skipped(tmp_path):
    """`save_to_disk` leaves the files of an earlier save in their folder; `state.json` names its own."""
    for name in ("data-00000-of-00002.arrow", "data-00001-of-00002.arrow", "data-00000-of-00001.arrow"):
        stream(tmp_path / "wiki" / name)
    written(tmp_path / "wiki" / "state.json", '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    skipped = DropCounts()
    files = find_files([str(tmp_path / "wiki")], skipped)
    assert [file.name for file in files] == ["wiki/data-00000-of-00001.arrow"]
    assert skipped.counts["unlisted shard"] == 2
    written(tmp_path / "wiki" / "state.json", '{"_data_files": 3}')
    two = r"wiki/data-00000-of-00001.arrow and wiki/data-00000-of-00002.arrow are shards of two datasets: remove the"
    with pytest.raises(UserError, match=two):
        find_files([str(tmp_path / "wiki")])


@pytest.mark.parametrize("pattern", ["", "*", "data-*.arrow"])
def test_missing_shard_of_a_list_is_an_error(pattern, tmp_path):
    stream(tmp_path / "wiki/data-00000.arrow")
    names = ["data-00000.arrow", "data-00001.arrow", "data-00002.arrow"]
    written(tmp_path / "wiki/state.json", json.dumps({"_data_files": [{"filename": name} for name in names]}))
    message = "wiki/data-00001.arrow and 1 other do not exist beside wiki/state.json: complete the copy, or set `inco"
    with pytest.raises(UserError, match=message):
        find_files([str(tmp_path / "wiki" / pattern)])
    assert len(find_files([str(tmp_path / "wiki/data-00000.*")])) == 1


@pytest.mark.parametrize("pattern", ["", "*.arrow", "**/*.arrow"])
def test_glob_reads_listed_shards(pattern, tmp_path):
    """Shards of an earlier save that have no number of shards in their names."""
    for name in ("data-0.arrow", "data-1.arrow"):
        stream(tmp_path / "wiki" / name)
    written(tmp_path / "wiki/state.json", '{"_data_files": [{"filename": "data-0.arrow"}]}')
    skipped = DropCounts()
    assert [file.name for file in find_files([str(tmp_path / "wiki" / pattern)], skipped)] == ["wiki/data-0.arrow"]
    assert skipped.examples["unlisted shard"] == [("wiki/data-1.arrow", "")]
    assert len(find_files([str(tmp_path / "wiki/data-1.arrow")])) == 1


def test_cached_results_of_a_dataset_are_skipped(tmp_path):
    """`map` of `datasets` keeps its result in the folder of the dataset."""
    for name in ("wiki-train.arrow", "cache-0123456789abcdef.arrow", "cache-0123456789abcdef_00000_of_00002.arrow"):
        stream(tmp_path / "wiki" / name)
    assert len(find_files([str(tmp_path / "wiki")])) == 3
    written(tmp_path / "wiki/dataset_info.json", "{}")
    skipped = DropCounts()
    assert [file.name for file in find_files([str(tmp_path / "wiki")], skipped)] == ["wiki/wiki-train.arrow"]
    assert skipped.counts["cached result"] == 2


def test_missing_shards_and_unreadable_lists_are_counted(tmp_path):
    """A copy of a part, and a list that is a broken link."""
    stream(tmp_path / "wiki/part/data-00000-of-00001.arrow")
    content = '{"_data_files": [{"filename": "data-00000-of-00001.arrow"}, {"filename": "data-00001.arrow"}]}'
    written(tmp_path / "wiki/part/state.json", content)
    stream(tmp_path / "wiki/rest/data-00000-of-00001.arrow")
    (tmp_path / "wiki/rest/state.json").symlink_to("nothing")
    skipped = DropCounts()
    assert len(find_files([Source(str(tmp_path / "wiki"), incomplete=True)], skipped)) == 2
    names = {reason: [name for name, _ in examples] for reason, examples in skipped.examples.items()}
    assert names == {
        "missing shard": ["wiki/part/data-00001.arrow"],
        "unknown format": ["wiki/part/state.json"],
        "unreadable list": ["wiki/rest/state.json"],
    }


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
def test_arrow_files_with_footer(compression, tmp_path):
    feather.write_feather(TABLE, tmp_path / "a.feather", compression=compression, chunksize=60)
    assert reading(tmp_path / "a.feather", part=2000).texts == TEXTS


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
)
def test_text_column_types(kind, tmp_path):
    values = [text.encode() for text in TEXTS] if pa.types.is_binary(kind) else TEXTS
    path = stream(tmp_path / "a.arrow", pa.table({"text": pa.array(values).cast(kind)}))
    assert reading(path).texts == reading(path, part=900).texts == TEXTS


@pytest.mark.parametrize("emit_deltas", [False, True])
def test_dictionary_of_each_batch(emit_deltas, tmp_path, monkeypatch):
    """Each batch replaces or extends the dictionary. Only those that a batch needs are parsed with it."""
    schema = pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=emit_deltas)
    with pa.ipc.new_stream(tmp_path / "a.arrow", schema, options=options) as writer:
        for number in range(50):
            values = pa.array([f"{at} " * 100 for at in range(0 if emit_deltas else number, number + 1)])
            indices = pa.array([len(values) - 1], pa.int32())
            writer.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(indices, values)], schema=schema))
    parsed, parse = [], arrow._open
    monkeypatch.setattr(arrow, "_open", lambda content: parsed.append(len(content)) or parse(content))
    assert reading(tmp_path / "a.arrow").texts == [f"{number} " * 100 for number in range(50)]
    assert emit_deltas or max(parsed) < 2000


def test_arrow_and_parquet_have_the_same_documents(tmp_path):
    stream(tmp_path / "a.arrow")
    parquet.write_table(TABLE, tmp_path / "a.parquet")
    arrow, table = (reading(tmp_path / f"a.{suffix}", keep=("url", "label")) for suffix in ("arrow", "parquet"))
    assert [(document.text, document.notes) for document in arrow.documents] == [
        (document.text, document.notes) for document in table.documents
    ]


def test_truncated_file_keeps_earlier_batches(tmp_path, refusal):
    path = stream(tmp_path / "a.arrow")
    written(path, path.read_bytes()[:-500])
    for part in (1 << 40, 3000):
        result = reading(path, part=part)
        assert (result.texts, result.counts) == (TEXTS[:240], {"truncated": 1})
    assert "a.arrow row 240 starts a part that is not complete" in refusal(path)


def test_limit_of_metadata_is_not_called_damage(tmp_path, monkeypatch, refusal):
    path = stream(tmp_path / "a.arrow", TABLE.replace_schema_metadata({"info": "x" * 5000}))
    monkeypatch.setattr(arrow, "MAX_METADATA", 1000)
    assert "is not readable Arrow (its schema has more than 1,000 bytes of metadata)" in refusal(path)


def test_damaged_batch_is_dropped(tmp_path, refusal):
    """Offsets outside of the text are found before they are used."""
    path = stream(tmp_path / "a.arrow", TABLE.select(["text"]))
    sizes = pa.array(TEXTS).view(pa.binary()).buffers()[1].to_pybytes()[4:40]
    content = path.read_bytes()
    assert content.count(sizes) == 1
    written(path, content.replace(sizes, b"\xff\xff\xff\x6f" * 9))
    result = reading(path)
    assert (result.texts, result.counts) == (TEXTS[60:], {"damaged": 1})
    assert "a.arrow row 0 starts a damaged part" in refusal(path)


@pytest.mark.parametrize("part", [3000, 1 << 40])
@pytest.mark.parametrize("start", [b"\xff\xff\xff\xff", b"no message"])
def test_damaged_message_is_counted_in_any_spans(start, part, tmp_path):
    """The message starts after the first span, which alone reports errors of the whole file."""
    path = stream(tmp_path / "a.arrow")
    content = path.read_bytes()
    at = content.index(b"\xff\xff\xff\xff", 9000)
    written(path, content[:at] + start + b"\x10\0\0\0" + b"\xff" * 16)
    result = reading(path, part=part)
    assert result.counts == {"damaged": 1}
    assert result.texts == TEXTS[: len(result.texts)]


@pytest.mark.parametrize("part", [3000, 1 << 40])
def test_expanding_batch_is_counted_in_any_spans(part, tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.sources.source.MIN_UNPACKED", 1 << 20)
    texts = [*TEXTS[:20], "a" * (4 << 20)]
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(tmp_path / "a.arrow", pa.schema({"text": pa.string()}), options=options) as writer:
        for text in texts:
            writer.write_table(pa.table({"text": [text]}))
    result = reading(tmp_path / "a.arrow", part=part, max_expansion=1)
    assert (result.texts, result.counts) == (TEXTS[:20], {"expands too much": 1})


def test_number_of_rows_is_checked_before_conversion(tmp_path):
    """The nulls of a column with 2**40 rows would fill the memory."""
    rows = 12_345
    path = stream(tmp_path / "a.arrow", pa.table({"note": pa.nulls(rows), "text": ["a"] * rows}), rows)
    content = path.read_bytes()
    written(path, content.replace(rows.to_bytes(8, "little"), (1 << 40).to_bytes(8, "little")))
    assert reading(path, keep=("note",)).counts == {"damaged": 1}


@pytest.mark.parametrize("kind", [pa.string(), pa.dictionary(pa.int32(), pa.string())])
def test_buffers_that_expand_too_much_are_rejected(kind, tmp_path, monkeypatch, refusal):
    """Arrow would decompress 4 MB from a few kB, up to any size."""
    monkeypatch.setattr("data_pipeline.sources.source.MIN_UNPACKED", 1 << 20)
    table = pa.table({"text": pa.array(["a" * (4 << 20)]).cast(kind)})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema, options=options) as writer:
        writer.write_table(table)
    assert "expands from" in refusal(tmp_path / "a.arrow")


def test_other_files_are_dropped(tmp_path, refusal):
    content = stream(tmp_path / "a.arrow").read_bytes()
    for invalid in (b"no arrow at all", content[:50], content[:4] + b"\x10\0\0\0" + b"\xff" * 16, b"ARROW1"):
        path = written(tmp_path / "b.arrow", invalid)
        assert reading(path).counts == reading(path, part=20).counts == {"not Arrow": 1}
        assert "is not readable Arrow" in refusal(path)


def test_missing_column_is_rejected(tmp_path, refusal):
    path = stream(tmp_path / "a.arrow", pa.table({"body": ["one"]}))
    assert reading(path).counts == {"no text column": 1}
    assert "has no text in a column `text`, but body (string): name the column" in refusal(path)
