"""Corpora in groups by quality and domain: shards of one group each, sampled by hash, whatever the executor."""

import json
import random
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus.build import build_corpus
from data_pipeline.corpus.groups import BELOW, NO_DOMAIN, NO_SCORE, CorpusGroups, _group_of
from data_pipeline.corpus.workers import InProcess
from data_pipeline.deduplicate.tables import save_table
from data_pipeline.document import Document
from data_pipeline.grouping import Grouping
from data_pipeline.recipe import Recipe, TokenizerRecipe, read_recipe
from data_pipeline.sources import Source
from megaptm.data import open_mix
from megaptm.data.shards import Corpus, read_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.corpus.test_build import files_of

WORDS = ["the", "of", "river", "stone", "walks", "under", "every", "bright", "morning", "and", "seven", "birds"]
COUNT = 400


def text(number: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=40)) + f" {number}."


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Path:
    """Documents with scores from 0.00 to 0.99 in two domains."""
    folder = tmp_path_factory.mktemp("scored")
    for domain in ("books", "web"):
        numbers = range(0, COUNT, 2) if domain == "books" else range(1, COUNT, 2)
        records = [{"text": text(number), "score": number % 100 / 100} for number in numbers]
        (folder / f"{domain}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def recipe_of(raw: Path, **grouping) -> Recipe:
    sources = tuple(Source(str(raw / f"{name}.jsonl"), keep=("score",), domain=name) for name in ("web", "books"))
    return Recipe(
        sources=sources,
        groups=Grouping(**{"quality": (0.0, 0.5, 1.0), "note": "score", "domain": "domain", **grouping}),
        tokenizer=TokenizerRecipe(vocabulary=300),
        validation=0.1,
        shard_bytes=8 << 10,
    )


def metadata(shard: Path) -> list[dict]:
    with tarfile.open(shard) as tar:
        return [json.loads(tar.extractfile(member).read()) for member in tar if member.name.endswith(".json")]


@pytest.fixture(scope="module")
def built(raw, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("grouped") / "corpus"
    build_corpus(recipe_of(raw), out, workers=0)
    return out


@pytest.mark.parametrize(
    ("score", "group"), [(10**400, NO_SCORE), (float("inf"), NO_SCORE), (10**30, 0), (-(10**30), BELOW)]
)
def test_huge_scores(score, group):
    """JSON lines may hold integers beyond floating-point numbers."""
    grouping = Grouping(quality=(0.0, 1.0), note="score")
    assert _group_of(Document("a", "0", notes={"score": score}), grouping, {}) == group


def test_each_shard_has_documents_of_one_group(built):
    manifest = read_manifest(built)
    groups = manifest.made_from["groups"]
    assert (groups["quality"], groups["domains"]) == ([0.0, 0.5, 1.0], ["books", "web"])
    for split, counts in groups["shards"].items():
        expected = [group for group, count in enumerate(counts) for _ in range(count)]
        for info, group in zip(manifest.splits[split].shards, expected, strict=True):
            documents = metadata(built / info.name)
            groups_in_shard = {(note["domain"] == "web") * 2 + (note["score"] >= 0.5) for note in documents}
            assert groups_in_shard == {group}
    assert all(count > 1 for count in groups["shards"]["train"])
    assert sum(split.samples for split in manifest.splits.values()) == COUNT


def test_a_mix_reads_texts_of_the_range(built):
    """Every text of an epoch of `quality: [0.5, 1.0]` has a score of at least 0.5."""
    tokenizer = load_tokenizer(built / "tokenizer")
    part = {"weight": 1, "quality": [0.5, 1.0], "domains": ["web"]}
    mix = open_mix({str(built): part}, objective="causal-lm", sequence=64, seed=0, special=tokenizer.special)
    texts = " ".join(tokenizer.decode(mix.sample(index)["tokens"]) for index in range(mix.fresh_samples))
    numbers = {int(number) for number in re.findall(r" (\d{3})\.", texts)}
    assert len(numbers) > 40
    assert all(number % 2 and number % 100 >= 50 for number in numbers)


def test_the_report_has_sizes_by_group(built):
    report = json.loads((built / "report.json").read_text())
    sizes = {name: size["documents"] for name, size in report["groups"].items()}
    assert sizes == {"books 0 to 0.5": 100, "books 0.5 to 1": 100, "web 0 to 0.5": 100, "web 0.5 to 1": 100}


class Shuffled(InProcess):
    """Jobs in another order, each result as it comes."""

    def run(self, function, jobs):
        numbered = list(enumerate(jobs))
        random.Random(5).shuffle(numbered)
        yield from ((number, function(job)) for number, job in numbered)


class Stopped(InProcess):
    """Fails after some jobs."""

    left = 5

    def run(self, function, jobs):
        for number, job in enumerate(jobs):
            if not Stopped.left:
                raise UserError("stopped")
            Stopped.left -= 1
            yield number, function(job)


def test_bytes_do_not_depend_on_executor_or_interruptions(raw, built, tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.corpus.parts.PART_BYTES", 10 << 10)
    monkeypatch.setattr("data_pipeline.corpus.output.MIN_STORED_SECONDS", 0)
    monkeypatch.setattr("data_pipeline.corpus.workers.InProcess", Stopped)
    for stopped_after in (5, 12, 20):
        Stopped.left = stopped_after
        with pytest.raises(UserError, match="stopped"):
            build_corpus(recipe_of(raw), tmp_path / "corpus", workers=0)
    monkeypatch.setattr("data_pipeline.corpus.workers.InProcess", Shuffled)
    report = build_corpus(recipe_of(raw), tmp_path / "corpus", workers=0)
    assert report.reused_jobs > 10
    assert files_of(tmp_path / "corpus") == files_of(built)


def test_buckets_are_sampled_by_hash(raw, tmp_path):
    recipe = recipe_of(raw, quality=(0.1, 0.5, 0.9), shares=(0.25, 1.0), domain=None)
    report = build_corpus(recipe, tmp_path / "corpus", workers=0)
    sizes = {name: size.documents for name, size in report.groups.items()}
    assert sizes["0.5 to 0.9"] == 200
    assert 25 <= sizes["0.1 to 0.5"] <= 55
    assert report.dropped["score below 0.1"] == 40
    assert report.dropped["not sampled (groups.shares)"] == 160 - sizes["0.1 to 0.5"]
    split = read_manifest(tmp_path / "corpus").splits["validation"]
    assert 4 <= split.samples <= 50


def test_documents_without_score_or_domain_are_counted(raw, tmp_path):
    recipe = recipe_of(raw)
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(json.dumps({"text": text(number), "score": score}) + "\n"
                            for number, score in enumerate([None, "high", True, 0.7], COUNT)))  # fmt: skip
    recipe = replace(recipe, sources=(*recipe.sources, Source(str(bare), keep=("score",))))
    report = build_corpus(recipe, tmp_path / "corpus", workers=0)
    assert report.dropped == {"no score": 3, "no domain": 1}


def test_drops_are_added_up_if_score_and_domain_are_one_note(tmp_path):
    save_table(table := str(tmp_path / "a.npy"), np.array([NO_SCORE, NO_DOMAIN, NO_DOMAIN, 0], dtype=np.int32))
    groups = CorpusGroups(Grouping(quality=(0.0, 1.0), domain="quality"), [], ["a"], [(table, ["a"])])
    assert groups.count_dropped(0, np.ones(4, dtype=bool)) == {"no quality": 3}


def test_too_many_domains_are_rejected(raw, tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.corpus.groups.MAX_DOMAINS", 1)
    with pytest.raises(UserError, match=r"the note domain has 2 values \(books, web and others\), more than 1"):
        build_corpus(recipe_of(raw), tmp_path / "corpus", workers=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("groups={}", r"groups: set `quality` \(edges of buckets\) or `domain` \(name of a note\)"),
        ("groups={quality: [0.5]}", "must be two or more ascending edges"),
        ("groups={quality: [0, 1], shares: [1, 1]}", "has 2 values for 1 buckets"),
        ("groups={quality: [0, 1], shares: [0]}", "shares are all 0"),
        ("groups={quality: [0, 1], shares: [2]}", "must be from 0 to 1"),
    ],
)
def test_invalid_groups_are_rejected(settings, message):
    with pytest.raises(UserError, match=message):
        read_recipe(["python-library"], [settings])


def test_recipes_without_groups_have_the_same_manifest(raw, tmp_path):
    recipe = replace(recipe_of(raw), groups=None)
    build_corpus(recipe, tmp_path / "corpus", workers=0)
    assert "groups" not in read_manifest(tmp_path / "corpus").made_from
    assert "groups" not in recipe.for_manifest()
    assert Corpus.open(tmp_path / "corpus").split("train").samples
