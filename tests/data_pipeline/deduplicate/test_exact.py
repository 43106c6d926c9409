"""Equal documents across parts and jobs."""

import numpy as np

from data_pipeline.deduplicate import Deduplicate, NearDuplicateOptions, read_part
from tests.data_pipeline.deduplicate.corpora import backwards, find, in_process, write_parts

EQUAL = Deduplicate()
TEXTS = ["a", "b", "a", "", "c", "b", "a", "", "d"]
REASONS = [0, 0, 1, 0, 0, 1, 1, 1, 0]


def test_first_of_equal_documents_is_retained(tmp_path):
    result = find(tmp_path, TEXTS, EQUAL)
    assert result.reasons.tolist() == REASONS
    assert result.counts == {"duplicate": 4}
    assert result.examples == {"duplicate": [("2", "0"), ("5", "1"), ("6", "0"), ("7", "3")]}


def test_documents_are_compared_exactly(tmp_path):
    assert not find(tmp_path, ["some words", "Some words", "some  words", "some words "], EQUAL).reasons.any()


def test_result_does_not_depend_on_parts_and_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.deduplicate.buckets.ENTRIES_PER_JOB", 2)
    for size in (1, 2, 4):
        result = find(tmp_path / str(size), TEXTS, EQUAL, size=size, run=backwards)
        assert result.reasons.tolist() == REASONS
        assert result.is_retained(1).tolist() == [reason == 0 for reason in REASONS[size : 2 * size]]
        assert result.examples["duplicate"][0] == ("2", "0")


def test_equal_documents_are_not_near_duplicates(tmp_path):
    text = "some words that are more than five, and some more"
    result = find(tmp_path, [text, text, text.upper(), text], Deduplicate(near=NearDuplicateOptions()))
    assert result.counts == {"duplicate": 2, "near duplicate": 1}
    assert result.reasons.tolist() == [0, 1, 2, 1]


def test_disabled_deduplication_drops_nothing(tmp_path):
    assert not find(tmp_path, TEXTS, Deduplicate(documents=False)).counts


def test_no_documents(tmp_path):
    assert find(tmp_path / "empty", [], Deduplicate(near=NearDuplicateOptions())).counts == {}
    written = write_parts(tmp_path, ["a"], Deduplicate(near=NearDuplicateOptions()))
    assert [document.text for document in read_part(written[0].stem, np.array([], int))] == []


def test_empty_part(tmp_path):
    from data_pipeline.deduplicate import find_duplicates, write_part
    from tests.data_pipeline.deduplicate.corpora import Written

    nothing = Written(
        str(tmp_path / "nothing"), write_part(str(tmp_path / "nothing"), [], Deduplicate(near=NearDuplicateOptions()))
    )
    parts = [nothing, *write_parts(tmp_path, ["a", "a"], Deduplicate(near=NearDuplicateOptions())), nothing]
    result = find_duplicates(parts, Deduplicate(near=NearDuplicateOptions()), in_process, str(tmp_path / "found"))
    assert [result.is_retained(number).tolist() for number in range(3)] == [[], [True, False], []]


def test_part_files_are_deterministic(tmp_path):
    for name in "ab":
        write_parts(tmp_path / name, ["first text", "second text", "ünïcode"], Deduplicate(near=NearDuplicateOptions()))
    files = {path.name: path.read_bytes() for path in sorted((tmp_path / "a").iterdir())}
    assert files == {path.name: path.read_bytes() for path in sorted((tmp_path / "b").iterdir())}
    assert list(files) == [
        f"part-0.{kind}" for kind in ("bands.npy", "columns.npy", "digests.npy", "jsonl", "signatures.npy")
    ]
