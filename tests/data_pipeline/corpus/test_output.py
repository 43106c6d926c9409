import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.corpus.output import building
from data_pipeline.corpus.work import JobRunner
from data_pipeline.corpus.workers import InProcess
from data_pipeline.progress import Stages
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus

NO_WORK = JobRunner(Path(), InProcess(), Stages(None))
"""A folder needs none to appear."""


def build(out: Path, **options) -> None:
    with building(out, overwrite=options.pop("overwrite", False)) as work:
        tiny_corpus(work.folder, **options)
        work.publish(NO_WORK)


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_finished_build_appears_under_its_name(tmp_path):
    build(tmp_path / "deep" / "corpus")
    assert entries(tmp_path / "deep") == {"corpus"}
    assert "manifest.json" in entries(tmp_path / "deep" / "corpus")


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failed_build_leaves_nothing(failure, tmp_path):
    def fail_half_way() -> None:
        with building(tmp_path / "corpus", overwrite=False) as work:
            (work.folder / "train-000000.tar").write_text("half")
            raise failure

    with pytest.raises(failure):
        fail_half_way()
    assert entries(tmp_path) == set()


def test_a_build_keeps_the_finished_work_of_a_killed_one_and_nothing_else(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from data_pipeline.corpus.output import building\n"
        "with building(Path(sys.argv[1]), overwrite=False) as work:\n"
        "    (work.folder / 'left').mkdir(); (work.folder / 'stale.tar').touch(); (work.scratch / 'half.part').touch();"
        "(work.scratch / 'whole').touch(); os._exit(9)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "corpus")], env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    assert entries(tmp_path) == {"corpus.building"}
    with building(tmp_path / "corpus", overwrite=False) as work:
        assert entries(work.folder) == {"scratch"}
        assert entries(work.scratch) == {"whole"}
        tiny_corpus(work.folder)
        work.publish(NO_WORK)
    assert entries(tmp_path) == {"corpus"}
    assert not {"left", "stale.tar", "scratch"} & entries(tmp_path / "corpus")


def test_two_builds_of_one_place_do_not_mix(tmp_path):
    with building(tmp_path / "corpus", overwrite=False) as work:
        tiny_corpus(work.folder)
        with pytest.raises(UserError, match="in use by another build"):
            build(tmp_path / "corpus")
        work.publish(NO_WORK)
    assert "manifest.json" in entries(tmp_path / "corpus")


def test_a_corpus_is_replaced_only_when_asked_and_only_by_a_finished_one(tmp_path):
    out = tmp_path / "corpus"
    build(out)
    first = (out / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="already holds a corpus"):
        build(out, seed=1)
    with pytest.raises(RuntimeError), building(out, overwrite=True):
        raise RuntimeError
    assert (out / "manifest.json").read_bytes() == first
    build(out, seed=1, overwrite=True)
    assert (out / "manifest.json").read_bytes() != first
    assert entries(tmp_path) == {"corpus"}


def test_a_folder_that_is_no_corpus_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="not a corpus"):
            build(tmp_path, overwrite=overwrite)
    with pytest.raises(UserError, match="is a file"):
        build(tmp_path / "thesis.txt", overwrite=True)
    assert entries(tmp_path) == {"thesis.txt"}


def test_an_empty_folder_is_a_place_to_build_in(tmp_path):
    (tmp_path / "corpus").mkdir()
    build(tmp_path / "corpus")
    assert entries(tmp_path) == {"corpus"}


def test_the_current_folder_is_a_place_too(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    build(Path("."))
    assert entries(tmp_path) == {"here"}
    assert "manifest.json" in entries(tmp_path / "here")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        build(tmp_path / "file" / "corpus")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KB, where this test may make one."""
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_one_sentence_and_leaves_nothing(small_disk):
    with pytest.raises(UserError, match=r"disk of .* is full"):
        build(small_disk / "corpus", documents=400)
    assert entries(small_disk) == set()
