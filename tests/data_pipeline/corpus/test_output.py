import contextlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.corpus import output
from data_pipeline.corpus.output import open_output
from data_pipeline.corpus.work import JobRunner
from data_pipeline.corpus.workers import InProcess
from data_pipeline.progress import StageProgress
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus

NO_WORK = JobRunner(Path(), InProcess(), StageProgress(None))
"""A folder needs none to appear."""


def build(out: Path, **options) -> None:
    with open_output(out, overwrite=options.pop("overwrite", False)) as work:
        tiny_corpus(work.folder, **options)
        work.publish(NO_WORK)


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def run_killed(code: str, *words: object) -> None:
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    ended = subprocess.run([sys.executable, "-c", code, *map(str, words)], env=environment)
    assert ended.returncode == 9


def test_finished_build_is_renamed(tmp_path):
    build(tmp_path / "deep" / "corpus")
    assert entries(tmp_path / "deep") == {"corpus"}
    assert "manifest.json" in entries(tmp_path / "deep" / "corpus")


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_failed_build_removes_files(failure, tmp_path):
    def fail_half_way() -> None:
        with open_output(tmp_path / "corpus", overwrite=False) as work:
            (work.folder / "train-000000.tar").write_text("half")
            raise failure

    with pytest.raises(failure):
        fail_half_way()
    assert entries(tmp_path) == set()


def test_build_keeps_finished_work_of_killed_build(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from data_pipeline.corpus.output import open_output\n"
        "with open_output(Path(sys.argv[1]), overwrite=False) as work:\n"
        "    (work.folder / 'left').mkdir(); (work.folder / 'stale.tar').touch(); (work.scratch / 'half.part').touch();"
        "(work.scratch / 'whole').touch(); os._exit(9)\n"
    )
    run_killed(code, tmp_path / "corpus")
    assert entries(tmp_path) == {"corpus.building"}
    with open_output(tmp_path / "corpus", overwrite=False) as work:
        assert entries(work.folder) == set()
        assert entries(work.scratch) == {"whole"}
        tiny_corpus(work.folder)
        work.publish(NO_WORK)
    assert entries(tmp_path) == {"corpus"}
    assert not {"left", "stale.tar", "scratch"} & entries(tmp_path / "corpus")


@pytest.mark.parametrize("name", ["notes.txt", ".gitattributes"])
@pytest.mark.parametrize(
    ("folder", "reason"),
    [("corpus.building", "would be removed by the build"), ("corpus", "would be removed with the corpus beside it")],
)
def test_files_of_the_user_are_not_removed(folder, reason, name, tmp_path):
    build(tmp_path / "corpus")
    notes = tmp_path / folder / name
    notes.parent.mkdir(exist_ok=True)
    notes.write_text("of the user")
    with pytest.raises(UserError, match=f"{name} {reason}"):
        build(tmp_path / "corpus", overwrite=True)
    assert notes.read_text() == "of the user"


@pytest.mark.parametrize("name", [".DS_Store", ".nfs0000000000a1b2c3", ".manifest.json.7-0a1b2c3d.part"])
def test_leftovers_do_not_stop_a_build(name, tmp_path):
    build(tmp_path / "corpus")
    (tmp_path / "corpus.building").mkdir()
    for folder in ("corpus", "corpus.building"):
        (tmp_path / folder / name).touch()
    build(tmp_path / "corpus", overwrite=True)
    assert entries(tmp_path) == {"corpus"}
    assert name not in entries(tmp_path / "corpus")


class Killed(BaseException):
    """Raised before a system call."""


def publish_until(call: int, out: Path, monkeypatch) -> bool:
    """Replace `out` by the corpus of seed 1, killed before system call number `call`; returns whether there are fewer
    calls."""
    calls = 0

    def dying(function):
        def counted(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return function(*arguments, **options)

        return counted

    with (
        monkeypatch.context() as patch,
        contextlib.suppress(Killed),
        open_output(out, overwrite=True) as work,
    ):
        (work.scratch / "work").touch()
        tiny_corpus(work.folder, seed=1)
        patch.setattr(output, "MIN_STORED_SECONDS", 0.0)  # a killed process removes nothing
        for name in ("rename", "unlink", "rmdir", "fsync"):
            patch.setattr(os, name, dying(getattr(os, name)))
        work.publish(NO_WORK)
    return calls < call


@pytest.mark.parametrize("replaces", [False, True])
def test_kill_while_publishing_loses_nothing(replaces, tmp_path, monkeypatch):
    out = tmp_path / "corpus"
    visited = set()
    for call in itertools.count(1):
        shutil.rmtree(out, ignore_errors=True)
        if replaces:
            build(out)
            old = (out / "manifest.json").read_bytes()
        if publish_until(call, out, monkeypatch):
            break
        published = out.exists() and not (replaces and (out / "manifest.json").read_bytes() == old)
        visited.add(published)
        if not published:
            with open_output(out, overwrite=True) as work:
                assert entries(work.scratch) == {"work"}
                assert not replaces or (out / "manifest.json").read_bytes() == old
                tiny_corpus(work.folder)
                work.publish(NO_WORK)
            assert entries(tmp_path) == {"corpus"}
    assert visited == {True, False}


def test_failed_build_keeps_work_of_killed_build(tmp_path):
    run_killed(
        "import os, sys; from data_pipeline.corpus.output import open_output\n"
        "with open_output(sys.argv[1], overwrite=False) as work: (work.scratch / 'whole').touch(); os._exit(9)",
        tmp_path / "corpus",
    )
    with pytest.raises(RuntimeError), open_output(tmp_path / "corpus", overwrite=False):
        raise RuntimeError
    with open_output(tmp_path / "corpus", overwrite=False) as work:
        assert entries(work.scratch) == {"whole"}


def test_replacing_keeps_sibling_folder(tmp_path):
    (tmp_path / "corpus.old").mkdir()
    build(tmp_path / "corpus")
    build(tmp_path / "corpus", seed=1, overwrite=True)
    assert entries(tmp_path) == {"corpus", "corpus.old"}


def test_builds_share_scratch_folder(tmp_path):
    common = str(tmp_path / "common")
    with open_output(tmp_path / "one", overwrite=False, scratch=common) as first:
        (first.scratch / "half.part").touch()
        (first.scratch / "whole").touch()
        with open_output(tmp_path / "two", overwrite=False, scratch=common) as second:
            tiny_corpus(second.folder)
            second.publish(NO_WORK)
        assert entries(first.scratch) == {"half.part", "whole"}
        with pytest.raises(UserError, match="in use by another build"):
            build(tmp_path / "one")
        tiny_corpus(first.folder)
        first.publish(NO_WORK)
    assert entries(tmp_path) == {"common", "one", "two"}
    assert entries(tmp_path / "common") == set()


def test_concurrent_build_is_rejected(tmp_path):
    with open_output(tmp_path / "corpus", overwrite=False) as work:
        tiny_corpus(work.folder)
        with pytest.raises(UserError, match="in use by another build"):
            build(tmp_path / "corpus")
        work.publish(NO_WORK)
    assert "manifest.json" in entries(tmp_path / "corpus")


def test_overwrite_replaces_corpus_when_finished(tmp_path):
    out = tmp_path / "corpus"
    build(out)
    first = (out / "manifest.json").read_bytes()
    with pytest.raises(UserError, match="already contains a corpus"):
        build(out, seed=1)
    with pytest.raises(RuntimeError), open_output(out, overwrite=True):
        raise RuntimeError
    assert (out / "manifest.json").read_bytes() == first
    build(out, seed=1, overwrite=True)
    assert (out / "manifest.json").read_bytes() != first
    assert entries(tmp_path) == {"corpus"}


def test_other_folder_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="other files than a corpus"):
            build(tmp_path, overwrite=overwrite)
    with pytest.raises(UserError, match="is a file"):
        build(tmp_path / "thesis.txt", overwrite=True)
    assert entries(tmp_path) == {"thesis.txt"}


def test_build_into_empty_folder(tmp_path):
    (tmp_path / "corpus").mkdir()
    build(tmp_path / "corpus")
    assert entries(tmp_path) == {"corpus"}


def test_build_into_current_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    build(Path("."))
    assert entries(tmp_path) == {"here"}
    assert "manifest.json" in entries(tmp_path / "here")


def test_unwritable_output_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        build(tmp_path / "file" / "corpus")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KB, where the user may create one."""
    mount = tmp_path / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_full_disk_is_reported(small_disk):
    with pytest.raises(UserError, match=r"no space left on the disk of .*: free some space or choose another folder"):
        build(small_disk / "corpus", documents=400)
    assert entries(small_disk) == set()
