import hashlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from data_pipeline.corpus.build import build_corpus
from data_pipeline.inspection import inspect_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from data_pipeline.verify import FolderCheck, verify_corpus
from megaptm import storage
from megaptm.data.shards import ShardWriter, read_manifest, write_manifest
from megaptm.storage import RetryPolicy
from tests.data.corpora import publish


@pytest.fixture(scope="module")
def valid_corpus(text, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("valid") / "corpus"
    build_corpus(Recipe(sources=(Source(str(text)),), tokenizer=TokenizerRecipe(vocabulary=400)), out, workers=0)
    return out


@pytest.fixture
def corpus(valid_corpus, tmp_path) -> Path:
    return shutil.copytree(valid_corpus, tmp_path / "corpus")


def invalid_files(corpus: Path) -> list[FolderCheck]:
    return [check for check in verify_corpus(corpus) if not check.is_valid]


def test_valid_corpus_passes(corpus):
    checks = list(verify_corpus(corpus))
    assert all(check.is_valid for check in checks)
    assert {check.name for check in checks} == {
        "manifest.json",
        "tokenizer",
        *(path.name for path in corpus.glob("*.tar")),
    }


@pytest.mark.parametrize("name", ["train-000000.tar", "train-000000.index.npy"])
def test_flipped_bit_is_found(name, corpus):
    content = bytearray((corpus / name).read_bytes())
    content[len(content) // 2] ^= 1
    (corpus / name).write_bytes(content)
    [check] = invalid_files(corpus)
    assert check.name == "train-000000.tar"
    assert f"{name} is damaged" in check.message


@pytest.mark.parametrize("name", ["train-000000.tar", "train-000000.index.npy"])
def test_missing_file_is_found(name, corpus):
    (corpus / name).unlink()
    [check] = invalid_files(corpus)
    assert f"{name} is missing" in check.message


def test_truncated_shard_is_found(corpus):
    with (corpus / "train-000000.tar").open("r+b") as file:
        file.truncate(5000)
    [check] = invalid_files(corpus)
    assert "5,000 bytes" in check.message


def test_edited_or_missing_manifest_is_found(corpus):
    content = json.loads((corpus / "manifest.json").read_text())
    content["splits"]["train"]["tokens"] += 1
    (corpus / "manifest.json").write_text(json.dumps(content))
    assert [check.name for check in verify_corpus(corpus)] == ["manifest.json"]
    (corpus / "manifest.json").unlink()
    [check] = verify_corpus(corpus)
    assert "not a finished corpus" in check.message


def test_tokenizer_of_other_corpus_is_found(corpus, text, tmp_path):
    other = Recipe(sources=(Source(str(text)),), tokenizer=TokenizerRecipe(vocabulary=300))
    build_corpus(other, tmp_path / "other", workers=0)
    shutil.rmtree(corpus / "tokenizer")
    shutil.copytree(tmp_path / "other" / "tokenizer", corpus / "tokenizer")
    [check] = invalid_files(corpus)
    assert check.name == "tokenizer"
    shutil.rmtree(corpus / "tokenizer")
    assert [check.name for check in invalid_files(corpus)] == ["tokenizer"]


def test_shard_of_other_build_is_found(corpus):
    shutil.copy(corpus / "validation-000000.tar", corpus / "train-000077.tar")
    [check] = invalid_files(corpus)
    assert check.name == "train-000077.tar"


def rewritten(corpus: Path, tokens: list[int]) -> Path:
    """A corpus with correct hashes whose only shard holds one document of these tokens."""
    manifest = read_manifest(corpus)
    for path in corpus.glob("*.tar"):
        path.unlink()
    with ShardWriter(corpus / "train-000000.tar") as writer:
        writer.add(0, tokens, text_bytes=9)
    tokenizer, made_from = manifest.tokenizer, manifest.made_from
    splits = {"train": [writer.close()], "validation": []}
    write_manifest(corpus, dtype="uint16", splits=splits, tokenizer=tokenizer, made_from=made_from)
    return corpus


def test_ids_beyond_vocabulary_are_found(corpus):
    assert not invalid_files(rewritten(corpus, [1, 2, 399]))
    [check] = invalid_files(rewritten(corpus, [1, 2, 400]))
    assert "id 400, beyond the 400" in check.message


def test_wrong_index_offset_is_found(corpus):
    rewritten(corpus, [1, 2, 3])
    manifest = read_manifest(corpus)
    index = np.load(corpus / "train-000000.index.npy")
    index[0, 0] += 2
    np.save(corpus / "train-000000.index.npy", index)
    [info] = manifest.splits["train"].shards
    digest = hashlib.sha256((corpus / "train-000000.index.npy").read_bytes()).hexdigest()
    splits = {"train": [replace(info, index_sha256=digest)], "validation": []}
    write_manifest(corpus, dtype="uint16", splits=splits, tokenizer=manifest.tokenizer, made_from=manifest.made_from)
    [check] = invalid_files(corpus)
    assert "train-000000.index.npy does not match" in check.message


def test_corpus_at_url_is_inspected_and_verified(corpus, tmp_path, faults, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = "s3://corpora/verified"
    publish(corpus, url, RetryPolicy(seconds=20))
    assert all(check.is_valid for check in verify_corpus(url))
    shown = [Console(record=True, width=120, file=io.StringIO()) for _ in range(2)]
    for location, console in zip((str(corpus), url), shown, strict=True):
        inspect_corpus(location, console, objective=None, split="train", count=2, sequence=64)
    (_, *here), (title, *there) = (console.export_text().splitlines() for console in shown)
    assert title.split() == ["corpus", url]
    assert there == here
    # Training has its own copies, which do not hide errors at the URL.
    storage.upload(corpus / "manifest.json", f"{url}/train-000000.tar")
    [check] = invalid_files(url)
    assert check.name == "train-000000.tar"
    assert "bytes, expected" in check.message
