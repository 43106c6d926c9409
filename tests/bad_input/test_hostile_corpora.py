"""Malicious corpora with valid hashes: names cannot leave the folder, and offsets must be inside their files."""

import hashlib
import json
import tarfile

import fsspec
import numpy as np
import pytest

from data_pipeline.verify import verify_corpus
from megaptm.data import Corpus, open_mix
from megaptm.data.files import npy_bytes
from megaptm.data.manifest import content_id
from megaptm.errors import UserError
from megaptm.storage import RemoteFileCache, RetryPolicy, remote, validate_file_name
from tests.data.corpora import tiny_corpus, tiny_special
from tests.fuzz.rehash import rehash_corpus, rehash_manifest

NAMES = ["", ".", "..", "../x", "a/b", "/etc/x", "..\\x", "C:\\x", "a\0b", "a\nb", "\ud800", "x" * 201]


@pytest.fixture
def folder(tmp_path):
    tiny_corpus(tmp_path / "corpus", shards=2)
    return tmp_path / "corpus"


def mix_of(folder, objective="causal-lm", **options):
    return open_mix({str(folder): 1.0}, objective=objective, sequence=32, seed=0, special=tiny_special(), **options)


def read_all(folder, objective="causal-lm", **options):
    mix = mix_of(folder, objective, **options)
    for index in range(mix.orders[0].per_epoch):
        mix.sample(index)


@pytest.mark.parametrize("name", NAMES)
def test_unsafe_names_are_refused(name):
    with pytest.raises(ValueError, match="is not a plain file name"):
        validate_file_name(name)


@pytest.mark.parametrize("name", ["train", "rank-00000.safetensors", "..a", "日本語.txt", "x" * 200])
def test_plain_names_are_accepted(name):
    assert validate_file_name(name) == name


@pytest.mark.parametrize("name", ["../../../escaped", "/absolute", "a\0b", ".."])
def test_split_name_cannot_leave_the_cache(name, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PROTOCOLS", {"memory"})
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"][name] = {**manifest["splits"]["train"], "table_sha256": hashlib.sha256(b"evil").hexdigest()}
    manifest["id"] = content_id(manifest)
    store = fsspec.filesystem("memory")
    store.pipe("/evil/manifest.json", json.dumps(manifest).encode())
    for file in folder.glob("*.npy"):
        store.pipe(f"/evil/{file.name}", file.read_bytes())
    store.pipe(f"/evil/{name}.shards.npy", b"evil")
    store.pipe("/escaped.shards.npy", b"evil")
    inside = tmp_path / "a/b/c/cache"
    with pytest.raises(UserError, match="is not a plain file name"):
        Corpus.open("memory://evil", RemoteFileCache(inside, retry=RetryPolicy(seconds=0)))
    assert not inside.exists()
    assert not list(tmp_path.rglob("*escaped*"))


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [(0, 0, -512), (0, 0, 1 << 40), (0, 1, -1), (0, 1, 1 << 40), (0, 2, -4), (0, 3, 1 << 61), (1, 0, -(1 << 63))],
)
def test_offset_outside_the_shard_is_refused(folder, row, column, value):
    path = folder / "train-000000.index.npy"
    index = np.load(path)
    index[row, column] = value
    path.write_bytes(npy_bytes(index))
    rehash_corpus(folder)
    with pytest.raises(UserError, match="rebuild the corpus"):
        read_all(folder)


def test_wrong_token_count_of_a_document(folder):
    path = folder / "train-000000.index.npy"
    index = np.load(path)
    index[0, 1] += 1
    path.write_bytes(npy_bytes(index))
    rehash_corpus(folder)
    with pytest.raises(UserError, match="tokens where the manifest says"):
        read_all(folder)


@pytest.mark.parametrize("verify", ["none", "size", "hash"])
def test_id_beyond_the_vocabulary_is_refused(folder, verify):
    path = folder / "train-000000.tar"
    at, count = np.load(folder / "train-000000.index.npy")[0, :2].tolist()
    content = bytearray(path.read_bytes())
    content[at : at + 2 * count] = b"\xff\xff" * count
    path.write_bytes(content)
    rehash_corpus(folder)
    with pytest.raises(UserError, match="has token id 65,535, but its tokenizer has 1,000 ids"):
        read_all(folder, verify=verify)


@pytest.mark.parametrize("objective", ["masked-lm-next-sentence", "masked-lm-whole-word"])
@pytest.mark.parametrize("value", [-7, 1 << 30])
def test_sentence_and_word_offsets_outside_the_document(folder, objective, value):
    path = folder / "train-000000.tar"
    content = bytearray(path.read_bytes())
    index = np.load(folder / "train-000000.index.npy")
    for ranges in (index[:, 2:4], index[:, 4:6]):
        for at, rows in ranges.tolist():
            content[at : at + 4 * rows] = np.full(rows, value, "<i4").tobytes()
    path.write_bytes(content)
    rehash_corpus(folder)
    try:
        read_all(folder, objective)
    except UserError as error:
        assert "rebuild the corpus" in str(error)  # noqa: PT017  (it may also be without consequence)


def test_duplicate_shard_is_refused(folder):
    path = folder / "train.shards.npy"
    rows = np.load(path)
    rows["number"] = 0
    path.write_bytes(npy_bytes(rows))
    rehash_corpus(folder)
    with pytest.raises(UserError, match="has implausible numbers of documents, tokens or bytes"):
        Corpus.open(folder)


def test_wrong_totals_are_refused(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["splits"]["train"]["tokens"] += 1
    rehash_manifest(folder / "manifest.json", manifest)
    with pytest.raises(UserError, match="has other totals than the manifest"):
        Corpus.open(folder)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_link_in_a_shard_is_reported(folder, kind):
    path = folder / "train-000000.tar"
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("000000000999.tokens.npy")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    rehash_corpus(folder)
    [message] = [check.message for check in verify_corpus(folder) if check.name == path.name]
    assert "'000000000999.tokens.npy' is not a regular file; build the corpus again" in message
