"""Equal documents over parts and jobs."""

import numpy as np

from data_pipeline.deduplicate import Deduplicate, Near, read_part
from tests.data_pipeline.deduplicate.corpora import backwards, find, in_process, write_parts

EQUAL = Deduplicate()
TEXTS = ["a", "b", "a", "", "c", "b", "a", "", "d"]
REASONS = [0, 0, 1, 0, 0, 1, 1, 1, 0]


def test_the_first_of_equal_documents_stays(tmp_path):
    found = find(tmp_path, TEXTS, EQUAL)
    assert found.reasons.tolist() == REASONS
    assert found.counts == {"duplicate": 4}
    assert found.examples == {"duplicate": [("2", "0"), ("5", "1"), ("6", "0"), ("7", "3")]}


def test_a_letter_makes_a_difference(tmp_path):
    assert not find(tmp_path, ["some words", "Some words", "some  words", "some words "], EQUAL).reasons.any()


def test_it_is_the_same_in_any_parts_and_jobs(tmp_path, monkeypatch):
    monkeypatch.setattr("data_pipeline.deduplicate.buckets.ENTRIES", 2)
    for size in (1, 2, 4):
        found = find(tmp_path / str(size), TEXTS, EQUAL, size=size, run=backwards)
        assert found.reasons.tolist() == REASONS
        assert found.stay(1).tolist() == [reason == 0 for reason in REASONS[size : 2 * size]]
        assert found.examples["duplicate"][0] == ("2", "0")


def test_equal_documents_are_not_counted_as_nearly_equal(tmp_path):
    text = "some words that are more than five, and some more"
    found = find(tmp_path, [text, text, text.upper(), text], Deduplicate(near=Near()))
    assert found.counts == {"duplicate": 2, "near duplicate": 1}
    assert found.reasons.tolist() == [0, 1, 2, 1]


def test_nothing_is_looked_for_that_is_not_asked_for(tmp_path):
    assert not find(tmp_path, TEXTS, Deduplicate(documents=False)).counts


def test_no_documents_at_all(tmp_path):
    assert find(tmp_path / "empty", [], Deduplicate(near=Near())).counts == {}
    written = write_parts(tmp_path, ["a"], Deduplicate(near=Near()))
    assert [document.text for document in read_part(written[0].stem, np.array([], int))] == []


def test_a_part_without_documents_is_a_part(tmp_path):
    from data_pipeline.deduplicate import find_duplicates, write_part
    from tests.data_pipeline.deduplicate.corpora import Written

    nothing = Written(str(tmp_path / "nothing"), write_part(str(tmp_path / "nothing"), [], Deduplicate(near=Near())))
    parts = [nothing, *write_parts(tmp_path, ["a", "a"], Deduplicate(near=Near())), nothing]
    found = find_duplicates(parts, Deduplicate(near=Near()), in_process, str(tmp_path / "found"))
    assert [found.stay(number).tolist() for number in range(3)] == [[], [True, False], []]


def test_files_of_a_part_are_the_same_bytes_each_time(tmp_path):
    for name in "ab":
        write_parts(tmp_path / name, ["first text", "second text", "ünïcode"], Deduplicate(near=Near()))
    files = {path.name: path.read_bytes() for path in sorted((tmp_path / "a").iterdir())}
    assert files == {path.name: path.read_bytes() for path in sorted((tmp_path / "b").iterdir())}
    assert list(files) == [
        f"part-0.{kind}" for kind in ("bands.npy", "columns.npy", "digests.npy", "jsonl", "signatures.npy")
    ]
