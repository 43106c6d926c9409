"""Shards are read as they were written, also by `tar` and webdataset, and damaged shards are rejected."""

import errno
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from megaptm.data.manifest import MANIFEST
from megaptm.data.shards import Corpus, Shard, ShardWriter, check_shard, read_manifest
from megaptm.data.table import table_name
from megaptm.errors import UserError
from megaptm.storage.retry import RetryPolicy
from tests.data.corpora import tiny_corpus

FIELDS = ("tokens", "sentences")
DOCUMENTS = [([5, 6, 7], [0], {"source": "a"}), ([65535, 0, 9, 10], [0, 2], None), ([1], None, {"source": "ü"})]


@pytest.fixture
def shard(tmp_path):
    with ShardWriter(tmp_path / "train-000000.tar", "uint16", FIELDS) as writer:
        for key, (tokens, sentences, meta) in enumerate(DOCUMENTS):
            writer.add(key, tokens, {"sentences": sentences} if sentences else {}, meta=meta, text_bytes=10)
    return tmp_path, writer.close()


def test_documents_are_read_in_any_order(shard):
    folder, info = shard
    opened = Shard.open(folder, info, "uint16", FIELDS, verify="hash")
    assert [opened.tokens(i).tolist() for i in (2, 0, 1)] == [DOCUMENTS[i][0] for i in (2, 0, 1)]
    assert [opened.sentences(i).tolist() for i in range(3)] == [[0], [0, 2], [0]]
    assert opened.tokens(1, 1, 3).tolist() == [0, 9]
    assert info.samples == 3
    assert info.tokens == 8
    assert info.bytes == 30


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_failed_open_is_retried(shard, monkeypatch, error):
    """An error of the disk is never reported as a damaged shard."""
    folder, info = shard
    failures, open_path = 1, Path.open

    def fail_or_open(path, *arguments, **options):
        nonlocal failures
        if path.name == info.name and failures:
            failures -= 1
            raise OSError(error, os.strerror(error), str(path))
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail_or_open)
    assert len(Shard.open(folder, info, "uint16", FIELDS)) == 3
    assert failures == 0
    failures = -1
    monkeypatch.setattr("megaptm.data.outages.RETRY", RetryPolicy(seconds=0.0))
    with pytest.raises(UserError, match=r"check that its disk or server responds, and start again\."):
        Shard.open(folder, info, "uint16", FIELDS)


@pytest.mark.parametrize("name", [MANIFEST, table_name("train")])
def test_failed_read_of_a_manifest_is_retried(tmp_path, monkeypatch, name):
    tiny_corpus(tmp_path)
    failures, open_path = 1, Path.open

    def fail_or_open(path, *arguments, **options):
        nonlocal failures
        if path.name == name and failures:
            failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return open_path(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", fail_or_open)
    assert read_manifest(tmp_path).splits
    assert failures == 0


def test_shard_truncated_while_open_is_reported(shard):
    folder, info = shard
    opened = Shard.open(folder, info, "uint16", FIELDS)
    os.truncate(folder / info.name, 520)
    with pytest.raises(
        UserError, match="was truncated while it was read: it had 8,192 bytes and has 520; copy the shard again or"
    ):
        opened.tokens(2)


def test_tar_reads_the_shard(shard, tmp_path):
    folder, info = shard
    listed = subprocess.run(["tar", "-tf", folder / info.name], capture_output=True, text=True, check=True)
    assert listed.stdout.split()[:3] == [
        "000000000000.tokens.npy",
        "000000000000.sentences.npy",
        "000000000000.json",
    ]
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", folder / info.name, "-C", tmp_path / "out"], check=True)
    assert np.load(tmp_path / "out" / "000000000001.tokens.npy").tolist() == DOCUMENTS[1][0]


def test_webdataset_reads_the_shard(shard):
    webdataset = pytest.importorskip("webdataset")
    folder, info = shard
    samples = list(webdataset.WebDataset(str(folder / info.name), shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == ["000000000000", "000000000001", "000000000002"]
    assert [sample["tokens.npy"].tolist() for sample in samples] == [tokens for tokens, _, _ in DOCUMENTS]
    assert samples[2]["json"] == {"source": "ü"}


def test_same_documents_give_same_bytes(tmp_path):
    first, second = tiny_corpus(tmp_path / "a"), tiny_corpus(tmp_path / "b")
    assert first == second
    name = first.splits["train"].shards[0].name
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert first.id != tiny_corpus(tmp_path / "c", seed=1).id


def test_failed_writer_leaves_no_files(tmp_path):
    with pytest.raises(ValueError, match="non-empty"), ShardWriter(tmp_path / "train-000000.tar") as writer:
        writer.add(0, [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("tokens", "annotations", "message"),
    [
        ([], {}, "non-empty"),
        ([70000], {}, "do not fit"),
        ([-1], {}, "do not fit"),
        ([1, 2], {"sentences": [1]}, r"document 0: sentences must ascend from 0 and stay below 2\."),
        ([1, 2], {"sentences": [0, 2]}, r"document 0: sentences must ascend and stay below 2\."),
        ([1, 2], {"tags": [0, 1]}, r"document 0: tags must have 3 columns, not shape \(2,\)\."),
        ([1, 2], {"tags": [[1, 2, 0], [0, 1, 0]]}, r"document 0: tags must ascend and stay below 2\."),
        ([1, 2], {"words": [0]}, r"document 0: words is not one of the fields \('tokens', 'sentences', 'tags'\)\."),
    ],
)
def test_invalid_documents_are_rejected(tmp_path, tokens, annotations, message):
    fields = ("tokens", "sentences", "tags")
    with pytest.raises(ValueError, match=message), ShardWriter(tmp_path / "t.tar", "uint16", fields) as writer:
        writer.add(0, tokens, annotations)


def test_annotations_and_blobs_are_read_as_written(tmp_path):
    fields = ("tokens", "words", "tags", "jpg")
    with ShardWriter(tmp_path / "train-000000.tar", "uint16", fields) as writer:
        writer.add(0, [7, 8, 9], {"words": [0, 2], "tags": [[0, 1, 5], [0, 3, 6]]}, {"jpg": b"not a picture"})
        writer.add(1, [7], {"tags": np.zeros((0, 3))})
    shard = Shard.open(tmp_path, writer.close(), "uint16", fields)
    assert [shard.annotation("words", document).tolist() for document in (0, 1)] == [[0, 2], []]
    assert shard.annotation("tags", 0).tolist() == [[0, 1, 5], [0, 3, 6]]
    assert shard.annotation("tags", 1).shape == (0, 3)
    assert shard.annotation("turns", 0).shape == (0, 2)
    assert [shard.blob("jpg", document) for document in (0, 1)] == [b"not a picture", b""]
    listed = subprocess.run(["tar", "-xOf", tmp_path / "train-000000.tar", "000000000000.jpg"], capture_output=True)
    assert listed.stdout == b"not a picture"


def test_truncated_shard_is_rejected(tmp_path):
    info = tiny_corpus(tmp_path).splits["train"].shards[1]
    path = tmp_path / info.name
    path.write_bytes(path.read_bytes()[:-512])
    with pytest.raises(UserError, match=r"train-000001\.tar has .*truncated.*copy the shard again"):
        Corpus.open(tmp_path).check("train", "size")


@pytest.mark.parametrize("suffix", [".tar", ".index.npy"])
def test_flipped_bit_is_detected_by_hash(tmp_path, suffix):
    info = tiny_corpus(tmp_path).splits["train"].shards[0]
    path = tmp_path / info.name.replace(".tar", suffix)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    check_shard(tmp_path, info, "size")
    with pytest.raises(UserError, match=r"train-000000.*is damaged"):
        check_shard(tmp_path, info, "hash")


def test_missing_shard_is_rejected(tmp_path):
    info = tiny_corpus(tmp_path).splits["train"].shards[0]
    (tmp_path / info.name).unlink()
    with pytest.raises(UserError, match=r"train-000000\.tar is missing"):
        check_shard(tmp_path, info, "size")


def test_folder_without_manifest_is_rejected(tmp_path):
    with pytest.raises(UserError, match="not a finished corpus"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(("before", "after"), [('"seed": 0', '"seed": 1'), ("corpus-2", "corpus-0"), ("{", "")])
def test_edited_manifest_is_rejected(tmp_path, before, after):
    tiny_corpus(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(UserError, match=r"manifest\.json"):
        read_manifest(tmp_path)


def test_empty_split_is_rejected(tmp_path):
    tiny_corpus(tmp_path, validation=0)
    with pytest.raises(UserError, match="no documents in its split `validation`"):
        Corpus.open(tmp_path).split("validation")


def test_truncated_index_is_rejected(tmp_path):
    info = tiny_corpus(tmp_path).splits["train"].shards[0]
    path = tmp_path / info.index_name
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=r"train-000000\.index\.npy is missing or damaged"):
        Corpus.open(tmp_path).open_shard(info)
