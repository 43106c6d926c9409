"""Configs and recipes that name pipes, folders or impossible file names: one sentence, without waiting for a pipe."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from data_pipeline.annotate.options import Annotations
from data_pipeline.clean.c4 import C4Quality
from data_pipeline.clean.decontaminate import Decontaminate
from data_pipeline.corpus.parts import hash_files
from data_pipeline.document import Document, DropCounts
from megaptm.checkpoint.files import RetriedFile, StorageError, read_small_file
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.families.unimo.corpus.meanings import read_meanings
from megaptm.run.word_vector_file import with_word_vectors
from megaptm.storage import regular_file
from tests.data.corpora import tiny_corpus
from tests.data_pipeline.images.pictures import build, picture, write_tar


def images(path: str, folder: Path) -> None:
    (folder / "given").mkdir()
    write_tar(folder / "given/a.tar", {"1.jpg": picture(), "1.cls": b"0"})
    build(folder / "given", folder / "corpus", validation=0.0, classes=path)


NAMES: dict[str, Callable[[str, Path], object]] = {
    "annotate.chinese": lambda path, _: Annotations(words=True, chinese=path).check(),
    "annotate.phrases": lambda path, _: Annotations(phrases=path).check(),
    "annotate.tags": lambda path, _: Annotations(tags=path).check(),
    "c4-quality: bad_words": lambda path, _: [*C4Quality(bad_words=path)([Document("A page. " * 9, "")], DropCounts())],
    "an input of the recipe": lambda path, _: hash_files([path]),
    "classes": images,
    "cannot be read": lambda path, _: read_meanings(Path(path)),
    "model.word_vectors": lambda path, _: with_word_vectors(torch.zeros(3, 2), path, ["king", "queen", "sea"]),
}
"""Part of the error message -> function that reads the file."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("setting", NAMES)
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pipe.txt", "Not a regular file"),
        ("folder.txt", "Is a directory"),
        ("nu\0l.txt", "Invalid file name"),
        ("none.txt", "No such file or directory"),
    ],
)
def test_path_is_no_file(setting: str, name: str, reason: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(UserError, match=reason) as error:
        NAMES[setting](str(tmp_path / name), tmp_path)
    assert setting in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.timeout(60)
def test_evaluation_text_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.txt")
    step = Decontaminate(against=(str(pipe),))
    with pytest.raises(UserError, match=r"decontaminate: .*pipe\.txt cannot be read \(.*Not a regular file"):
        [*step([Document("A page.", "")], DropCounts())]


def test_home_and_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "it.txt").write_text("one")
    (tmp_path / "link.txt").symlink_to("it.txt")
    assert regular_file("~/it.txt") == tmp_path / "it.txt"
    assert regular_file(tmp_path / "link.txt").read_text() == "one"
    for name in ("~nobody-at-all/it.txt", "/dev/zero"):
        with pytest.raises(OSError, match=r"Invalid file name|Not a regular file"):
            regular_file(name)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["manifest.json", "train.shards.npy", "train-000000.index.npy", "train-000000.tar"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_corpus_file_is_a_pipe_or_device(kind: str, name: str, tmp_path: Path) -> None:
    tiny_corpus(tmp_path)
    (tmp_path / name).unlink()
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match=name):
        _read_all(tmp_path)


def _read_all(folder: Path) -> None:
    corpus = Corpus.open(folder)
    corpus.open_shard(corpus.split("train").shards[0], verify="none")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("read", [read_small_file, lambda path: RetriedFile(path).size()])
def test_checkpoint_file_is_a_pipe_or_folder(read: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, reason in (("pipe", "Not a regular file"), ("folder", "Is a directory")):
        with pytest.raises(StorageError, match=rf"{name} cannot be read \({reason}\)"):
            read(tmp_path / name)
