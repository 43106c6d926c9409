"""MDS shards that mosaicml-streaming 0.13.0 wrote: `MDSWriter(columns={text: str, url: str, score: float64,
tokens: int, meta: json, big: str_int})`, without and with `compression="zstd"`."""

import base64
import json
import tracemalloc

import numpy as np
import pytest

from megaptm.errors import UserError
from tests.data_pipeline.sources.reading import reading, written

SHARD = base64.b64decode(
    "AwAAACoBAAByAQAAuAEAAOMBAAB7ImNvbHVtbl9lbmNvZGluZ3MiOiBbInN0cl9pbnQiLCAianNvbiIsICJmbG9hdDY0IiwgInN0ciIsICJpbn"
    "QiLCAic3RyIl0sICJjb2x1bW5fbmFtZXMiOiBbImJpZyIsICJtZXRhIiwgInNjb3JlIiwgInRleHQiLCAidG9rZW5zIiwgInVybCJdLCAiY29s"
    "dW1uX3NpemVzIjogW251bGwsIG51bGwsIDgsIG51bGwsIDgsIG51bGxdLCAiY29tcHJlc3Npb24iOiBudWxsLCAiZm9ybWF0IjogIm1kcyIsIC"
    "JoYXNoZXMiOiBbXSwgInNpemVfbGltaXQiOiA2NzEwODg2NCwgInZlcnNpb24iOiAyfQIAAAAKAAAADwAAAA0AAAAxMnsiYSI6IFsxXX0AAAAA"
    "AADQP1RoZSBmaXJzdCB0ZXh0LgMAAAAAAAAAaHR0cHM6Ly9hLm9yZxUAAAAEAAAADQAAAAAAAAAxMDAwMDAwMDAwMDAwMDAwMDAwMDBudWxsAA"
    "AAAAAA+L9HcsO2w59lciwg5LiJAAAAAAABAAACAAAAAwAAAAUAAAABAAAALTEieCKcdQCIPOQ3fnRocmVl+/////////91"
)
COMPRESSED = base64.b64decode(
    "KLUv/WDlAH0KACaRPTRgi9IB0AHIB3CBDDUTAPIByINqbZ2ISGva3qMey2bStutgbkcGP/2dz/rPxs76G8Lo2iApLQAuAC8AGdpMqfSbVkdOdm"
    "jMtZZQQ5sbA8M09kjImRu5Ghkva26a6J82/gnjn/qf3P9HFb+KE/tFOjuc5lBjmCYnZF76iRfmLOuSIcgWvVjuw2zQ9tK54dcbPbBh45PMBd3V"
    "/4CwZgo7bKuFBI2PMtRrogn1n+B/wf+B/wCjCV2IxhylcrlIKEsFRmhpNgQ5V6211lo7dmnVEZYSgsQvigZq1MEF/ukTFyXm6FaQLEhUIYPjl1"
    "AB/w08dEJeJILhTyUgMALjlK0H4oi4ABEFaYwFD9hKAC4RQ3Awma5xdVfCCelRaBqkMtrlLKgaMuZwYaWUXbsByH6joxiGIR5VKxw92Op9ibIG"
    "MiaMaYIByAk0G86MznpQ"
)
TEXTS = ["The first text.", "Größer, 三", "three"]


@pytest.mark.parametrize(("name", "content"), [("shard.00000.mds", SHARD), ("shard.00000.mds.zstd", COMPRESSED)])
def test_samples_and_columns_equal_the_writers(name, content, tmp_path):
    written(tmp_path / "train" / name, content)
    written(tmp_path / "train" / "index.json", "{}")
    result = reading(tmp_path / "train", keep=("url", "score", "tokens", "meta", "big"))
    assert result.texts == TEXTS
    assert result.sources == [f"train/{name}@{row}" for row in range(3)]
    first = {"url": "https://a.org", "score": 0.25, "tokens": 3, "meta": {"a": [1]}, "big": 12}
    assert result.documents[0].notes == first
    assert result.documents[1].notes == {"url": "", "score": -1.5, "tokens": 2**40, "big": 10**20}


def test_shards_that_the_index_does_not_list_are_skipped(tmp_path):
    """A dataset was written again with fewer shards, and a shard is there compressed and uncompressed."""
    for name, content in {"0.mds": SHARD, "0.mds.zstd": COMPRESSED, "1.mds.zstd": COMPRESSED, "2.mds": SHARD}.items():
        written(tmp_path / "train" / name, content)
    shards = [{"raw_data": {"basename": f"{n}.mds"}, "zip_data": {"basename": f"{n}.mds.zstd"}} for n in (0, 1)]
    written(tmp_path / "train" / "index.json", json.dumps({"version": 2, "shards": shards}))
    result = reading(tmp_path / "train")
    assert [source.partition("@")[0] for source in result.sources[::3]] == ["train/0.mds", "train/1.mds.zstd"]
    assert len(result.texts) == 6


@pytest.mark.parametrize(
    ("pattern", "missing", "unmatched"),
    [("*.mds", "train/1.mds", "train/1.mds.zstd"), ("*.zstd", "train/0.mds.zstd", "train/0.mds")],
)
def test_glob_that_does_not_match_all_listed_shards_is_an_error(pattern, missing, unmatched, tmp_path):
    written(tmp_path / "train/0.mds", SHARD)
    written(tmp_path / "train/1.mds.zstd", COMPRESSED)
    shards = [{"raw_data": {"basename": f"{n}.mds"}, "zip_data": {"basename": f"{n}.mds.zstd"}} for n in (0, 1)]
    written(tmp_path / "train/index.json", json.dumps({"version": 2, "shards": shards}))
    with pytest.raises(UserError) as error:
        reading(tmp_path / "train" / pattern)
    message = (
        f"{missing} does not exist beside train/index.json (or only as {unmatched}, which the glob does not match)"
    )
    assert message in str(error.value)
    assert len(reading(tmp_path / "train/*.mds*").texts) == 6


@pytest.mark.parametrize("part", [40, 100, 300])
def test_spans_have_each_sample_once(part, tmp_path):
    path = written(tmp_path / "a.mds", SHARD)
    assert reading(path, part=part).documents == reading(path).documents


def test_truncated_shard_keeps_earlier_samples(tmp_path, refusal):
    path = written(tmp_path / "a.mds", SHARD[:-1])
    for part in (1 << 40, 100):
        result = reading(path, part=part)
        assert (result.texts, result.counts) == (TEXTS[:2], {"truncated": 1})
    assert "a.mds row 2 starts a part that is not complete" in refusal(path)


def test_damaged_sample_is_dropped(tmp_path):
    content = SHARD.replace(b"\x0a\0\0\0\x0f\0\0\0", b"\x0b\0\0\0\x0f\0\0\0")
    assert content != SHARD
    result = reading(written(tmp_path / "a.mds", content))
    assert (result.texts, result.counts) == (TEXTS[1:], {"damaged": 1})


def test_stated_size_takes_no_memory(tmp_path):
    """16 GiB of offsets in a file of 8 bytes."""
    path = written(tmp_path / "a.mds", b"\xff" * 8)
    tracemalloc.start()
    try:
        assert reading(path).counts == {"not MDS": 1}
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 4])
def test_sample_shorter_than_its_sizes_is_dropped(size, tmp_path):
    """The samples after it are read."""
    offsets = np.frombuffer(SHARD[4:20], "<u4").astype(int)
    first, other_samples = SHARD[offsets[0] :][:size], SHARD[offsets[1] :]
    moved = np.concatenate((offsets[:1], offsets[1:] - offsets[1] + offsets[0] + size)).astype("<u4")
    path = written(tmp_path / "a.mds", SHARD[:4] + moved.tobytes() + SHARD[20 : offsets[0]] + first + other_samples)
    result = reading(path)
    assert (result.texts, result.counts) == (TEXTS[1:], {"damaged": 1})


@pytest.mark.parametrize(
    "content",
    [
        SHARD.replace(b'"column_sizes": [null, null, 8, null', b'"column_sizes": [null, null,"8",null'),
        b"no shard",
        SHARD[:40],
        b"\xff" * 400,
    ],
)
def test_other_files_are_dropped(content, tmp_path, refusal):
    path = written(tmp_path / "a.mds", content)
    assert reading(path).counts == {"not MDS": 1}
    assert "is not readable MDS" in refusal(path)


def test_missing_text_column_is_rejected(tmp_path, refusal):
    path = written(tmp_path / "a.mds", SHARD)
    assert reading(path, text="body").counts == reading(path, text="tokens").counts == {"no text column": 1}
    assert "has no text in a column `body`, but big (str_int), meta (json)" in refusal(path, text="body")
