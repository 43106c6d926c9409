"""Sizes of clusters, and documents that are repeated by them."""

import json
import random
import tarfile
from collections import Counter

import numpy as np
import pytest

from data_pipeline.corpus.build import build_corpus
from data_pipeline.deduplicate import Deduplicate, NearDuplicateOptions
from data_pipeline.recipe import read_recipe
from megaptm.data.shards import Corpus, read_manifest
from megaptm.errors import UserError
from tests.data_pipeline.deduplicate.corpora import backwards, find, in_process

WORDS = [f"word{number}" for number in range(500)]


def text(seed: int, variant: int = 0) -> str:
    """A text of 200 words; its variants differ in the last word."""
    words = random.Random(seed).choices(WORDS, k=200)
    return " ".join([*words, f"end{variant}"])


def clusters() -> tuple[list[str], dict[str, int]]:
    """Texts in random order, and the size of the cluster of the first of each. Some are equal, some nearly."""
    texts, owner = [], {}
    for seed in range(40):
        copies = [text(seed, variant) for variant in range(1 + seed % 4)] + [text(seed)] * (seed % 3)
        texts += copies
        owner |= dict.fromkeys(copies, seed)
    random.Random(1).shuffle(texts)
    sizes = Counter(owner[entry] for entry in texts)
    firsts = {owner[entry]: entry for entry in reversed(texts)}
    return texts, {firsts[seed]: size for seed, size in sizes.items()}


@pytest.mark.parametrize("run", [in_process, backwards])
@pytest.mark.parametrize("size", [1000, 7])
def test_sizes_equal_counts(run, size, tmp_path):
    texts, expected = clusters()
    options = Deduplicate(near=NearDuplicateOptions(), cluster_sizes=True)
    duplicates = find(tmp_path, texts, options, size, run)
    retained = np.flatnonzero(duplicates.reasons == 0).tolist()
    assert {texts[row]: int(duplicates.clusters[row]) for row in retained} == expected


def test_sizes_of_equal_documents_only(tmp_path):
    texts, _ = clusters()
    duplicates = find(tmp_path, texts, Deduplicate(cluster_sizes=True))
    retained = np.flatnonzero(duplicates.reasons == 0).tolist()
    assert {texts[row]: int(duplicates.clusters[row]) for row in retained} == Counter(texts)


def test_copies_by_size():
    options = Deduplicate(repeat={5: 3, 2: 2})
    assert options.copies_of(np.array([1, 2, 4, 5, 100], np.uint32)).tolist() == [1, 2, 2, 3, 3]


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    path = tmp_path_factory.mktemp("clusters") / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": entry}) + "\n" for entry in clusters()[0]))
    return path


def built(raw, out, *settings):
    recipe = read_recipe([str(raw)], ["tokenizer.vocabulary=300", "shard_bytes=20000", "validation=0.2", *settings])
    return build_corpus(recipe, out, workers=0)


def notes(folder, split):
    for info in read_manifest(folder).splits[split].shards:
        with tarfile.open(folder / info.name) as tar:
            names = [member.name for member in tar]
            assert len({*names}) == len(names)
            yield from (json.loads(tar.extractfile(name).read()) for name in names if name.endswith(".json"))


def test_documents_carry_their_size_and_are_repeated(raw, tmp_path):
    report = built(raw, tmp_path / "a", "deduplicate={near: true, cluster_sizes: true, repeat: {2: 2, 4: 3}}")
    train, held_out = (list(notes(tmp_path / "a", split)) for split in ("train", "validation"))
    sizes = {note["source"]: note["cluster_size"] for note in train + held_out}
    assert sorted(sizes.values()) == sorted(clusters()[1].values())
    copies = Counter(note["source"] for note in train)
    assert all(count == (3 if sizes[name] >= 4 else 2 if sizes[name] >= 2 else 1) for name, count in copies.items())
    assert {*Counter(note["source"] for note in held_out).values()} == {1}
    assert sum(report.clusters.values()) == 40
    assert report.documents_read == len(clusters()[0])
    texts = [tuple(tokens) for tokens in Corpus.open(tmp_path / "a").documents("train")]
    assert {*Counter(texts).values()} == {1, 2, 3}


def test_other_corpora_have_the_same_shards(raw, tmp_path):
    """Sizes that are only counted change no byte of a shard but the notes; without them nothing changes."""
    plain, listed = (tmp_path / name for name in ("plain", "listed"))
    built(raw, plain, "deduplicate={near: true}")
    built(raw, listed, "deduplicate={near: true, cluster_sizes: true}")
    assert read_manifest(plain).made_from["recipe"]["deduplicate"].keys() == {"documents", "near", "paragraphs"}
    assert all("cluster_size" not in note for note in notes(plain, "train"))
    first, second = (list(Corpus.open(folder).documents("train")) for folder in (plain, listed))
    assert all(np.array_equal(*pair) for pair in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{documents: false, cluster_sizes: true}", "need `documents` or `near`"),
        ("{paragraphs: true, repeat: {2: 2}}", "`paragraphs` cuts them: build without it"),
        ("{repeat: {1: 2}}", r"repeat \(1: 2\) must map sizes of 2 or more to 1 to 100 copies"),
        ("{repeat: {2: 0}}", r"repeat \(2: 0\) must map"),
    ],
)
def test_invalid_options_are_rejected(settings, message):
    with pytest.raises(UserError, match=message):
        read_recipe(["python-library"], [f"deduplicate={settings}"])
