"""Shards of images on an object store become a corpus without being copied: a real server process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.recipe import TokenizerRecipe
from data_pipeline.verify import verify_corpus
from megaptm.check.data import check_shards
from megaptm.check.finding import CheckInput
from megaptm.config import load_config
from megaptm.data import open_mix
from megaptm.data.manifest import MANIFEST, content_id
from megaptm.data.shard_urls import shard_urls_name
from megaptm.data.shards import Corpus
from megaptm.data.table import table_name
from megaptm.errors import UserError
from megaptm.families.uniter.corpus.retrieve import _corpus_location
from megaptm.families.vit.corpus.duplicates import file_sketch
from megaptm.families.vit.corpus.shard_source import list_shards, local_copy
from megaptm.storage import RemoteFileCache, join_path, list_files, upload
from megaptm.tokenizers import load_tokenizer
from tests import ROOT
from tests.data_pipeline.images.pictures import BAD, build, picture, write_tar
from tests.storage.server import BUCKET

pytestmark = pytest.mark.real
CONFIG = ROOT / "configs/clip/tiny.yaml"
OPTIONS = {"texts": True, "tokenizer": TokenizerRecipe(vocabulary=270, specials="clip"), "validation": 0.3}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three with img2dataset's names, each with an invalid image."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        files = {
            f"{shard:05}{n:04}.{suffix}": content
            for n in range(4)
            for suffix, content in (("jpg", picture(seed=n + 4 * shard)), ("txt", b"photo %d" % n), ("cls", b"%d" % n))
        }
        files |= {f"{shard:05}9999.jpg": BAD["cut.jpg"][0], f"{shard:05}9999.txt": b"cut", f"{shard:05}9999.cls": b"0"}
        write_tar(folder / f"{shard:05}.tar", files)
    return folder


@pytest.fixture
def url(s3: object, shards: Path, tmp_path: Path) -> str:
    url = f"s3://{BUCKET}/{tmp_path.name}/laion"
    for path in shards.iterdir():
        upload(path, join_path(url, path.name))
    return url


def samples_of(corpus: Corpus) -> list[list[tuple[list[int], int]]]:
    """For each split the ids and the image hash of every sample."""
    result = []
    for split in ("train", "validation"):
        opened = [corpus.open_shard(info, "hash") for info in corpus.split(split).shards]
        result.append([(s.tokens(n).tolist(), file_sketch(s.blob("jpg", n))) for s in opened for n in range(len(s))])
    return result


@pytest.mark.parametrize("texts", [True, False], ids=["texts", "labels"])
def test_shards_at_url_equal_local_shards(texts, url, shards, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("data_pipeline.corpus.output.CACHE", str(tmp_path / "builds"))
    options, cache = OPTIONS if texts else {"validation": 0.3}, RemoteFileCache(tmp_path / "cache")
    here = build(shards, tmp_path / "here", **options)
    there = build(url, tmp_path / "there", **options)
    assert there.dropped == here.dropped == {"damaged": 3}
    assert there.splits == here.splits
    assert [path for path in (tmp_path / "there").iterdir() if path.suffix == ".tar"] == []
    assert not (tmp_path / "home").exists(), "a build leaves nothing in the cache of runs"
    expected, corpus = samples_of(Corpus.open(tmp_path / "here")), Corpus.open(tmp_path / "there", cache)
    assert corpus.name == str(tmp_path / "there")
    assert samples_of(corpus) == expected
    assert {corpus.url_of(info.name) for info in corpus.split("validation").shards} < {*map(url_of(url), range(3))}
    assert all(check.is_valid for check in verify_corpus(tmp_path / "there"))
    # The same for a corpus that is on the store itself, with the indexes and no shards.
    build(url, away := f"{url}-corpus", **options)
    assert not [name for name in list_files(away) if name.endswith(".tar")]
    assert samples_of(Corpus.open(away, cache)) == expected


def url_of(url: str) -> Callable[[int], str]:
    return lambda number: join_path(url, f"{number:05}.tar")


def test_changed_remote_shard_is_reported(url, tmp_path):
    build(url, tmp_path / "there", **OPTIONS)
    cache = RemoteFileCache(tmp_path / "cache")
    corpus = Corpus.open(tmp_path / "there", cache)
    special = load_tokenizer(corpus.folder / "tokenizer").special
    options = {
        "objective": {"image-text": {"size": 8, "text_length": 12}},
        "sequence": 17,
        "seed": 0,
        "special": special,
    }
    mix = open_mix({str(tmp_path / "there"): 1.0}, cache=cache, **options)
    assert mix.sample(0)["patches"].dtype == np.uint8
    case = CheckInput(config=load_config(CONFIG), hashing="all")
    assert [finding.state for finding in check_shards(case, corpus)] == ["ok"]
    # A shard that changes after its index was made is reported.
    changed = tmp_path / "changed.tar"
    write_tar(changed, {"0.jpg": picture(), "0.txt": b"another"})
    for number in range(3):
        upload(changed, url_of(url)(number))
    with pytest.raises(UserError, match=r"laion/0000\d\.tar has [\d,]+ bytes, expected [\d,]+"):
        samples_of(Corpus.open(tmp_path / "there", RemoteFileCache(tmp_path / "other")))
    findings = [*check_shards(case, corpus)]
    assert [finding.state for finding in findings] == ["fault"] * 3
    assert "bytes where the manifest says" in findings[0].message


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((), "is not a folder: name one with webdataset shards"),
        (("cat/1.jpg",), r"has no webdataset shards \(\*\.tar\)"),
        (("a.tar.gz",), r"a\.tar\.gz is compressed"),
        (
            ("0.parquet",),
            r"photos/0\.parquet is Parquet, which is not supported for images: convert it to webdataset shards",
        ),
    ],
)
def test_url_without_shards_is_rejected(s3, names, message, tmp_path):
    url = f"s3://{BUCKET}/{tmp_path.name}/photos"
    (tmp_path / "some").write_bytes(b"some")
    for name in names:
        upload(tmp_path / "some", join_path(url, name))
    with pytest.raises(UserError, match=message):
        build(url, tmp_path / "corpus", **OPTIONS)
    assert not (tmp_path / "corpus").exists()


def test_damaged_cache_of_addresses_is_fetched_again(url, tmp_path):
    build(url, there := tmp_path / "there", **OPTIONS)
    cache = RemoteFileCache(tmp_path / "cache")
    first = Corpus.open(there, cache)
    assert _corpus_location(first) == str(there), "not what the cache has of it, which is swept"
    for name in (shard_urls_name("train"), table_name("train")):
        copy = first.folder / name
        copy.write_bytes(copy.read_bytes()[:-5])
        assert Corpus.open(there, cache).mirror == first.mirror
    manifest = json.loads((there / MANIFEST).read_text()) | {"addresses": {"test": "0" * 64}}
    (there / MANIFEST).write_text(json.dumps(manifest | {"id": content_id(manifest)}))
    with pytest.raises(UserError, match=r"there/manifest\.json has shard URLs for a split `test` that it lacks"):
        Corpus.open(there, cache)


def test_shard_changed_since_listing_is_rejected(url, tmp_path):
    shard = list_shards(url)[0]
    with local_copy(shard, tmp_path) as copy:
        assert copy.stat().st_size == shard.size
    message = r"00000.tar has [\d,]+ bytes, but had [\d,]+ when it was listed: build again"
    with pytest.raises(UserError, match=message), local_copy(replace(shard, size=shard.size + 1), tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
