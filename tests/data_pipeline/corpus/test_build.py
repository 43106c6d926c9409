"""The whole path in this process: raw text in, shards out that every reader can read."""

import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.corpus.build import build_corpus
from data_pipeline.recipe import Recipe, TokenizerRecipe
from data_pipeline.sources import Source
from megaptm.data.shards import Corpus, read_manifest
from megaptm.errors import UserError
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.annotate.pieces import split_sentences


def files_of(folder: Path) -> dict[str, bytes]:
    """Everything except the report, which contains times."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.stem != "report")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def texts_of(folder: Path, split: str) -> list[str]:
    tokenizer = load_tokenizer(folder / "tokenizer")
    return [tokenizer.decode(tokens) for tokens in Corpus.open(folder).documents(split)]


@pytest.fixture(scope="module")
def built(text, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("built") / "corpus"
    tokenizer = TokenizerRecipe(vocabulary=500)
    recipe = Recipe(sources=(Source(str(text)),), tokenizer=tokenizer, validation=0.2, shard_bytes=64 << 10)
    build_corpus(recipe, out, workers=0)
    return out


def test_corpus_contains_each_document_once(built, text):
    expected = [path.read_text(encoding="utf-8").strip("\n") for path in text.glob("*.py")]
    expected += ["The first record has a sentence. And a second one!", "A record that comes twice."]
    arrived = [document.strip("\n") for split in ("train", "validation") for document in texts_of(built, split)]
    assert sorted(arrived) == sorted(set(expected))


def test_report_counts_documents_and_drops(built):
    report = json.loads((built / "report.json").read_text(encoding="utf-8"))
    splits = read_manifest(built).splits
    assert report["dropped"] == {
        "not UTF-8": 1,
        "empty": 1,
        "shorter than 16 characters": 1,
        "duplicate": 2,
        "unknown format": 1,
    }
    assert report["examples"]["unknown format"] == [["library/picture.png", ""]]
    message = "is not UTF-8: byte 0xe9 at offset 3: convert it to UTF-8, or set `encoding: auto` for its source"
    assert report["examples"]["not UTF-8"] == [["library/latin.txt", message]]
    assert report["messages"]["not UTF-8"] == message
    assert report["documents"] == sum(split.samples for split in splits.values()) == sum(report["lengths"].values())
    assert report["tokens"] == sum(split.tokens for split in splits.values())
    assert report["tokens_per_byte"] == report["tokens"] / report["bytes"]
    assert set(report["seconds"]) == {
        *("start workers", "read and clean", "equal documents", "tokenizer", "tokenize and write")
    }


def test_shard_size_is_bounded(built):
    splits = read_manifest(built).splits
    assert len(splits["train"].shards) > 2
    assert splits["validation"].samples > 0
    biggest_document = 120 << 10
    assert all(shard.bytes < (64 << 10) + biggest_document for shard in splits["train"].shards)


def test_webdataset_reads_shards(built):
    import webdataset

    paths = sorted(str(path) for path in built.glob("train-*.tar"))
    samples = list(webdataset.WebDataset(paths, shardshuffle=False).decode())
    tokens = list(Corpus.open(built).documents("train"))
    assert all(np.array_equal(sample["tokens.npy"], ids) for sample, ids in zip(samples, tokens, strict=True))
    assert all(sample["json"]["source"].startswith("library/") for sample in samples)
    with tarfile.open(paths[0]) as tar:
        assert [member.mtime for member in tar] == [0] * (2 * read_manifest(built).splits["train"].shards[0].samples)


def test_build_is_deterministic(built, recipe, tmp_path):
    build_corpus(recipe, tmp_path / "again", workers=0)
    assert files_of(tmp_path / "again") == files_of(built)
    build_corpus(replace(recipe, seed=1), tmp_path / "other", workers=0)
    assert read_manifest(tmp_path / "other").id != read_manifest(built).id


def test_id_does_not_depend_on_the_folder_of_the_text(built, recipe, text, tmp_path):
    moved = shutil.copytree(text, tmp_path / "moved" / text.name)
    build_corpus(replace(recipe, sources=(Source(str(moved)),)), tmp_path / "again", workers=0)
    assert read_manifest(tmp_path / "again").id == read_manifest(built).id
    assert read_manifest(tmp_path / "again").made_from != read_manifest(built).made_from


def test_part_size_does_not_change_corpus(built, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.corpus.parts.PART_BYTES", 1)
    build_corpus(recipe, tmp_path / "again", workers=0)
    assert files_of(tmp_path / "again") == files_of(built)


def test_transformers_loads_corpus_tokenizer(built):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(built / "tokenizer")
    for tokens in Corpus.open(built).documents("validation"):
        assert reference(reference.decode(tokens)).input_ids == tokens.tolist()


def test_wordpiece_corpus_has_sentences(recipe, text, tmp_path):
    expected = TokenizerRecipe(kind="wordpiece", vocabulary=600)
    build_corpus(replace(recipe, tokenizer=expected), tmp_path / "corpus", workers=0)
    corpus, tokenizer = Corpus.open(tmp_path / "corpus"), load_tokenizer(tmp_path / "corpus" / "tokenizer")
    assert corpus.manifest.fields == ("tokens", "sentences")
    source = (text / "textwrap.py").read_text(encoding="utf-8")
    lines = [tokenizer.encode(line).tolist() for line in split_sentences(source, "code")]
    result = [
        np.split(shard.tokens(document), shard.sentences(document)[1:])
        for split in ("train", "validation")
        for info in corpus.split(split).shards
        for shard in [corpus.open_shard(info)]
        for document in range(len(shard))
    ]
    assert [line for line in lines if line] in [[piece.tolist() for piece in pieces] for pieces in result]


def test_unigram_corpus_records_tokenizer(recipe, tmp_path):
    expected = TokenizerRecipe(kind="unigram", vocabulary=600, sentinels=50)
    report = build_corpus(replace(recipe, tokenizer=expected), tmp_path / "corpus", workers=0)
    manifest, tokenizer = read_manifest(tmp_path / "corpus"), load_tokenizer(tmp_path / "corpus" / "tokenizer")
    assert manifest.tokenizer["fingerprint"] == tokenizer.fingerprint
    assert (report.tokenizer["kind"], len(tokenizer.special.sentinels)) == ("unigram", 50)


def test_existing_tokenizer_is_used_unchanged(built, recipe, tmp_path):
    existing = TokenizerRecipe(folder=str(built / "tokenizer"))
    report = build_corpus(replace(recipe, tokenizer=existing), tmp_path / "corpus", workers=0)
    assert report.tokenizer == read_manifest(built).tokenizer
    assert sorted(texts_of(tmp_path / "corpus", "train")) == sorted(texts_of(built, "train"))


def test_limit_bytes_samples_documents(built, recipe, tmp_path):
    report = build_corpus(replace(recipe, limit_bytes=200_000), tmp_path / "corpus", workers=0)
    everything = {text for split in ("train", "validation") for text in texts_of(built, split)}
    retained = {text for split in ("train", "validation") for text in texts_of(tmp_path / "corpus", split)}
    assert retained < everything
    assert report.sum_over_splits("bytes") <= 200_000
    assert report.dropped["beyond limit_bytes"] == len(everything) - len(retained)


def test_single_document_is_not_held_out(recipe, text, tmp_path):
    single = replace(recipe, sources=(Source(str(text / "ast.py")),))
    report = build_corpus(single, tmp_path / "corpus", workers=0)
    assert report.splits["validation"]["documents"] == 0
    assert report.splits["train"]["documents"] == 1
    assert any("only one document" in note for note in report.notes)


def refused(recipe: Recipe, out: Path) -> str:
    """The message for the user; nothing may be left on disk."""
    with pytest.raises(UserError) as error:
        build_corpus(recipe, out, workers=0)
    assert list(out.parent.iterdir()) == []
    assert "\n" not in str(error.value)
    return str(error.value)


def test_empty_corpus_is_rejected_with_reasons(recipe, text, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "corpus"
    sources = tuple(Source(str(text / name)) for name in ("blank.md", "short.rst", "latin.txt"))
    message = refused(replace(recipe, sources=sources), out)
    assert "no document is left" in message
    for reason in (
        "1 empty",
        "1 shorter than 16 characters",
        "1 not UTF-8: the first is not UTF-8: byte 0xe9 at offset 3",
    ):
        assert reason in message


def test_invalid_utf8_ends_build_with_on_error_fail(recipe, tmp_path):
    assert "latin.txt is not UTF-8: byte 0xe9 at offset 3" in refused(replace(recipe, on_error="fail"), tmp_path / "c")


def test_documents_without_tokens_are_dropped(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("control")
    (folder / "a.txt").write_text("\x01" * 40)
    (folder / "b.txt").write_text("ordinary words, enough of them to train on")
    out = tmp_path_factory.mktemp("out") / "tokenizer"
    expected = TokenizerRecipe(kind="wordpiece", vocabulary=100)
    sources = (Source(str(folder)),)
    report = build_corpus(replace(recipe, sources=sources, tokenizer=expected, validation=0), out, workers=0)
    assert report.dropped == {"no tokens": 1}
    existing = TokenizerRecipe(folder=str(out / "tokenizer"))
    only = replace(recipe, sources=(Source(str(folder / "a.txt")),), tokenizer=existing)
    assert "1 no tokens" in refused(only, tmp_path_factory.mktemp("empty") / "corpus")


def test_failed_build_leaves_no_files(recipe, tmp_path):
    small = TokenizerRecipe(vocabulary=100)
    assert "vocabulary (100)" in refused(replace(recipe, tokenizer=small), tmp_path / "corpus")


def small_files(folder: Path, count: int, words: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        spoken = " ".join(f"w{word}" for word in rng.integers(0, 300, words))
        (folder / f"{number}.{('txt', 'md', 'py')[number % 3]}").write_text(spoken + "\n", encoding="utf-8")
    return folder


def test_small_corpus_holds_out_a_batch(tmp_path):
    report = build_corpus(Recipe(sources=(Source(str(small_files(tmp_path / "mine", 50, 250))),)), tmp_path / "corpus")
    assert report.splits["validation"]["tokens"] > 2048
    assert report.splits["validation"]["bytes"] < 0.3 * report.sum_over_splits("bytes")
    assert not any("validation" in note for note in report.notes)


def test_small_validation_split_suggests_share(tmp_path):
    recipe = Recipe(sources=(Source(str(small_files(tmp_path / "mine", 30, 180))),))
    (note,) = (note for note in build_corpus(recipe, tmp_path / "corpus").notes if "held out" in note)
    share = re.fullmatch(
        r"only [\d,]+ tokens are held out for validation, which may be less than one batch of a run \(train.batch x "
        r"data.sequence; 2,048 in a tiny.yaml\): validation=(\S+) overwrite=true holds out enough, or lower "
        r"train.batch",
        note,
    )[1]
    again = build_corpus(replace(recipe, validation=float(share)), tmp_path / "corpus", overwrite=True)
    assert again.splits["validation"]["tokens"] > 2048
    assert not any("held out" in note for note in again.notes)


def giant_among(folder, seed):
    """Return a recipe of 30 short documents and one giant document."""
    small_files(folder, 30, 180)
    (folder / "giant.txt").write_text(" ".join(f"word{number}" for number in range(200_000)))
    return Recipe(sources=(Source(str(folder)),), seed=seed)


def test_giant_document_in_validation_suggests_seed(tmp_path):
    recipe = giant_among(tmp_path / "mine", seed=5)  # whose hashes hold it out
    (note,) = (note for note in build_corpus(recipe, tmp_path / "corpus").notes if "is held out" in note)
    match = re.fullmatch(
        r"9\d% of the text is held out for validation and not trained on, because one of its [\d,]+ documents has "
        r"[\d,]+ bytes: seed=(\d+) overwrite=true holds out [\d.]+%",
        note,
    )
    again = build_corpus(replace(recipe, seed=int(match[1])), tmp_path / "corpus", overwrite=True)
    assert again.splits["validation"]["bytes"] < 0.2 * again.sum_over_splits("bytes")
    assert not any("is held out" in note for note in again.notes)


def test_minimum_validation_size_does_not_need_a_giant_document(tmp_path):
    report = build_corpus(giant_among(tmp_path / "mine", seed=0), tmp_path / "corpus")
    assert 2048 < report.splits["validation"]["tokens"] < 5000


def test_tiny_corpus_suggests_more_text(tmp_path):
    recipe = Recipe(sources=(Source(str(small_files(tmp_path / "mine", 5, 20))),))
    report = build_corpus(recipe, tmp_path / "corpus")
    assert any(note.endswith(": use more text, or lower train.batch") for note in report.notes)
