"""Datasets of the Hugging Face Hub, whose shards have their number in the name."""

import pytest

from data_pipeline.sources import Source, find_files
from megaptm.errors import UserError
from tests.data_pipeline.sources.reading import written

COMPLETE = ["train-00000-of-00003.jsonl", "train-00001-of-00003.jsonl", "train-00002-of-00003.jsonl"]


def count(folder, names, pattern="", **options):
    """Number of files of a source that are read."""
    for name in names:
        written(folder / name, "{}")
    return len(find_files([Source(str(folder / pattern), **options)]))


@pytest.mark.parametrize(
    "names",
    [
        COMPLETE,
        [*COMPLETE, "test-00000-of-00001.jsonl", "train-00000.jsonl", "other/train-00000-of-00001.jsonl"],
        ["c4-train.00000-of-00002.json.gz", "c4-train.00001-of-00002.json"],
        ["train-00000-of-00002-6f3344faa23e9b0a.jsonl", "train-00001-of-00002-42464471795ea5c5.jsonl"],
        ["train-00001-of-00002.jsonl", "train-00002-of-00002.jsonl"],
        ["part-1-of-3.txt"],
    ],
    ids=["complete", "splits", "compressed", "hash", "from 1", "other numbers"],
)
def test_complete_datasets(names, tmp_path):
    assert count(tmp_path / "data", names, format="json-lines" if "json" in names[0] else None) == len(names)
    assert count(tmp_path / "data", names, "**/*") == len(names)


@pytest.mark.parametrize("pattern", ["", "*", "train-*-of-00003.jsonl", "train-0000[0-2]-of-*"])
def test_missing_shard_is_named(pattern, tmp_path):
    expected = (
        "data/train-00001-of-00003.jsonl does not exist beside data/train-00000-of-00003.jsonl: complete the copy, or "
        "set `incomplete: true` to read a part of the dataset."
    )
    with pytest.raises(UserError) as error:
        count(tmp_path / "data", COMPLETE[::2], pattern)
    assert str(error.value).endswith(expected)
    assert count(tmp_path / "data", COMPLETE[::2], pattern, incomplete=True) == 2


def test_missing_shards_are_counted(tmp_path):
    with pytest.raises(UserError, match=r"data/train-00001-of-90000.jsonl and 89,998 others do not exist beside"):
        count(tmp_path / "data", ["train-00000-of-90000.jsonl"])


def test_glob_of_some_shards(tmp_path):
    """A part of a large dataset is chosen by the digits of its shards, or by name."""
    assert count(tmp_path / "data", COMPLETE[::2], "train-0000[02]-of-*") == 2
    assert count(tmp_path / "data", [], COMPLETE[0]) == 1


@pytest.mark.parametrize("options", [{}, {"incomplete": True}])
def test_shards_of_two_datasets_are_named(options, tmp_path):
    """A dataset of three shards was saved again with one."""
    with pytest.raises(UserError) as error:
        count(tmp_path / "data", [*COMPLETE, "train-00000-of-00001.jsonl"], **options)
    assert str(error.value).endswith(
        "data/train-00000-of-00001.jsonl and data/train-00000-of-00003.jsonl are shards of two datasets: remove the "
        "earlier one, or name the shards of one with a glob, such as `*-of-00003*`."
    )
    assert count(tmp_path / "data", [], "*-of-00003*") == 3


@pytest.mark.parametrize(
    "second", ["train-00001-of-00003.jsonl.gz", "train-00001-of-00003-6f3344faa23e9b0a.jsonl"], ids=["copy", "hash"]
)
def test_two_files_of_one_shard_are_named(second, tmp_path):
    """A dataset was downloaded twice, or decompressed beside its files."""
    with pytest.raises(
        UserError, match=r"data/train-00001-of-00003.* and .* are one shard of two datasets, or of two"
    ) as error:
        count(tmp_path / "data", [*COMPLETE, second])
    assert str(error.value).endswith("remove one of them, or name the files of one dataset with a glob.")
    assert count(tmp_path / "data", [], "*-of-00003.jsonl") == 3


def test_missing_archive_is_named(tmp_path):
    names = ["pile-00000-of-00003.tar", "pile-00002-of-00003.tar"]
    with pytest.raises(
        UserError, match=r"data/pile-00001-of-00003\.tar does not exist beside data/pile-00000-of-00003"
    ):
        count(tmp_path / "data", names)
