"""Near duplicates planted in real text, and their similarities."""

import random

import numpy as np
import pytest

from data_pipeline.deduplicate import Deduplicate, NearDuplicateOptions, write_part
from data_pipeline.deduplicate.buckets import PartListing
from data_pipeline.deduplicate.near import find_near_duplicates
from data_pipeline.deduplicate.sketch import compute_signatures
from data_pipeline.document import Document
from megaptm.errors import UserError
from tests.data_pipeline.deduplicate.corpora import (
    backwards,
    edited,
    find,
    in_process,
    jaccard,
    real_documents,
    write_parts,
)
from tests.data_pipeline.unspaced import WORDS, page

KINDS = ("replace", "delete", "insert", "shuffle")
NEAR = NearDuplicateOptions()
ROUNDS = 8


def planted(kind, seed):
    """[(document, changed copy, their similarity)], with changes from none to many."""
    rng = random.Random(f"{kind} {seed}")
    pairs = []
    for paragraphs in real_documents():
        copy = edited(paragraphs, kind, 0.03 * rng.random(), rng)
        text = "\n\n".join(paragraphs)
        pairs.append((text, copy, jaccard(text, copy)))
    return pairs


def connected(folder, texts):
    """row -> lowest row that it is a near duplicate of."""
    options = Deduplicate(documents=False, near=NearDuplicateOptions())
    parts = write_parts(folder, texts, options)
    components = find_near_duplicates(PartListing.write(str(folder), parts, options), NEAR, None, in_process)
    return dict(zip(*(rows.tolist() for rows in components.duplicate_rows()), strict=True))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Kind -> (similarity, whether detected) of each planted pair, and all other pairs that were detected."""
    result, unrelated = {}, 0
    for kind in KINDS:
        result[kind] = []
        for seed in range(ROUNDS):
            pairs = planted(kind, seed)
            texts = [text for text, _, _ in pairs] + [copy for _, copy, _ in pairs]
            lowest = connected(tmp_path_factory.mktemp("planted"), texts)
            result[kind] += [
                (similarity, lowest.get(row + len(pairs)) == row) for row, (_, _, similarity) in enumerate(pairs)
            ]
            unrelated += sum(row % len(pairs) != low % len(pairs) for row, low in lowest.items())
    return result, unrelated


@pytest.mark.parametrize("kind", KINDS)
def test_near_duplicates_are_found(measured, kind):
    pairs = [result for similarity, result in measured[0][kind] if similarity >= NEAR.threshold]
    assert len(pairs) > 200
    assert np.mean(pairs) >= 0.95


@pytest.mark.parametrize("language", WORDS)
def test_near_duplicates_without_spaces(language, tmp_path):
    """The second page has one other sentence of 20; the third shares the first sentence only."""
    pages = [
        page(language, *range(20)),
        page(language, *range(7), 99, *range(8, 20)),
        page(language, 0, *range(40, 59)),
    ]
    assert connected(tmp_path, pages) == {1: 0}


def test_pairs_above_threshold_are_found(measured):
    pairs = [result for kind in KINDS for similarity, result in measured[0][kind] if 0.8 <= similarity < 0.85]
    assert len(pairs) > 100
    assert np.mean(pairs) >= 0.95


def test_unrelated_documents_are_retained(measured):
    documents = 2 * len(real_documents())
    pairs = ROUNDS * len(KINDS) * documents * (documents - 2) // 2
    assert measured[1] / pairs < 0.0001


def test_pairs_below_threshold_are_retained(measured):
    pairs = [result for kind in KINDS for similarity, result in measured[0][kind] if similarity < NEAR.threshold]
    assert len(pairs) > 200
    assert np.mean(pairs) < 0.01


@pytest.mark.parametrize("words", [12, 60, 450])
def test_similarity_estimate_is_unbiased(words):
    pairs = []
    for kind in KINDS:
        for text, copy, _ in planted(kind, seed=2):
            first, second = (" ".join(version.split()[:words]) for version in (text, copy))
            pairs.append((first, second, jaccard(first, second)))
    first, second = (compute_signatures([pair[side] for pair in pairs], NEAR) for side in (0, 1))
    errors = (first == second).mean(axis=1) - [similarity for _, _, similarity in pairs]
    assert abs(errors.mean()) < 4 * errors.std() / np.sqrt(len(errors))
    similarity = np.array([similarity for _, _, similarity in pairs])
    expected = np.sqrt((similarity * (1 - similarity)).mean() / NEAR.hashes)
    # Borrowed bins, which short texts have many of, cost some precision.
    assert errors.std() < (1.1 if words == 450 else 1.5) * expected


def test_result_does_not_depend_on_parts_and_jobs(tmp_path, monkeypatch):
    texts = [text for pair in planted("replace", 3) for text in pair[:2]]
    uncut = find(tmp_path / "a", texts, Deduplicate(near=NearDuplicateOptions()), size=1000).reasons
    assert 0 < np.count_nonzero(uncut) < len(texts)
    monkeypatch.setattr("data_pipeline.deduplicate.buckets.ENTRIES_PER_JOB", 1000)
    monkeypatch.setattr("data_pipeline.deduplicate.bands.BLOCK", 50)
    monkeypatch.setattr("data_pipeline.deduplicate.near.PAIRS_PER_JOB", 3)
    for size in (1, 7, 100):
        again = find(tmp_path / str(size), texts, Deduplicate(near=NearDuplicateOptions()), size=size, run=backwards)
        assert np.array_equal(again.reasons, uncut)


def test_groups_do_not_depend_on_order(tmp_path):
    texts = [text for pair in planted("delete", 4) for text in pair[:2]]
    order = np.random.default_rng(0).permutation(len(texts))

    def groups(lowest, name):
        return {
            frozenset(name(row) for row in range(len(texts)) if lowest.get(row, row) == low)
            for low in set(lowest.values())
        }

    straight = groups(connected(tmp_path / "a", texts), lambda row: row)
    shuffled = groups(connected(tmp_path / "b", [texts[row] for row in order]), lambda row: int(order[row]))
    assert len(straight) > 50
    assert straight == shuffled


def test_first_source_is_retained(tmp_path):
    text, copy, _ = next(pair for pair in planted("replace", 5) if 0.8 < pair[2] < 1)
    result = find(tmp_path, ["something else entirely", copy, text], Deduplicate(near=NearDuplicateOptions()))
    assert result.reasons.tolist() == [0, 0, 2]
    assert result.examples == {"near duplicate": [("2", "1")]}


def test_pages_of_one_template(tmp_path):
    rng = random.Random(0)
    documents = ["\n".join(paragraphs) for paragraphs in real_documents()]
    template = " ".join(documents[0].split()[:320])
    own = [word for text in documents[1:] for word in text.split()]
    pages = [template + " " + " ".join(rng.sample(own, 75)) for _ in range(600)]
    twins = [edited([page], "replace", 0.01, rng) for page in pages[:50]]
    related = [jaccard(*pair) for pair in zip(pages, twins, strict=False)]
    assert 0.5 < jaccard(pages[0], pages[1]) < 0.7 < 0.8 < np.median(related)
    lowest = connected(tmp_path, pages + twins)
    result = [lowest.get(600 + number) == number for number in range(50) if related[number] >= 0.8]
    assert np.mean(result) >= 0.95
    assert all(row - 600 == low for row, low in lowest.items())


def test_short_and_empty_documents(tmp_path):
    texts = ["Hello, dear world", "hello dear WORLD!", "", "...", "   ", "farewell", "?!"]
    result = find(tmp_path, texts, Deduplicate(documents=False, near=NearDuplicateOptions()))
    assert result.reasons.tolist() == [0, 2, 0, 0, 0, 0, 0]


def test_signatures_do_not_depend_on_batch():
    texts = ["\n\n".join(paragraphs) for paragraphs in real_documents()[:20]]
    texts += [
        "Straße naïve café — “quoted” words ΣΊΣΥΦΟΣ",
        "東京は日本の首都です。人口は多い。",
        "a\u0301 b c d e f",
        "\u0301 x y z v w",
    ]
    together = compute_signatures(texts, NEAR)
    assert np.array_equal(together, np.concatenate([compute_signatures([text], NEAR) for text in texts]))


def test_long_document_similarity(monkeypatch):
    text, copy, similarity = next(pair for pair in planted("replace", 6) if pair[2] < 0.9)
    monkeypatch.setattr("data_pipeline.deduplicate.sketch.PIECE", 500)
    first, second = compute_signatures([text, "short", copy], NEAR)[[0, 2]]
    assert abs((first == second).mean() - similarity) < 0.15


def test_too_many_documents_of_a_file_are_reported(tmp_path, monkeypatch):
    """A compressed file is one part, and an entry of a band has bits for so many rows."""
    monkeypatch.setattr("data_pipeline.deduplicate.sketch.ROW_BITS", 2)
    options = Deduplicate(near=NearDuplicateOptions())
    with pytest.raises(UserError, match=r"deduplicate\.near compares at most 4 documents of a compressed file: divide"):
        write_part(str(tmp_path / "a"), (Document(f"text {number}", "a.txt") for number in range(5)), options)
