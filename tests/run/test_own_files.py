"""A run folder of another user must not make a run write outside the folder."""

import os
from pathlib import Path

import matplotlib
import pytest

from megaptm.config import load_config
from megaptm.errors import UserError
from megaptm.launch.slurm.preflight import make_log_folder
from megaptm.launch.worker_group import LocalWorkerGroup
from megaptm.report.curves import plot_curves, save_picture
from megaptm.resilience.events import Events
from megaptm.resilience.heartbeat import Heartbeat
from megaptm.resilience.lock import RunLock
from megaptm.run.folder import absolute_paths, exclusive_start, prepare_run_folder
from megaptm.storage import safe_open
from megaptm.track.journal import Journal, UploadState
from megaptm.track.uri import view_instructions
from tests.run.test_folder import TINY


def make_config(run):
    return absolute_paths(load_config(TINY, [f"run={run}", f"data.mix={{{run.parent / 'corpus'}: 1}}"]))


PRECIOUS = "of the user"
RECORDS = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "precious"
    path.write_text(PRECIOUS)
    return path


WRITERS = {
    "lock": lambda run: RunLock(run).acquire().release(),
    "launch.lock": lambda run: RunLock(run, file="launch.lock").acquire().release(),
    "metrics.jsonl": lambda run: Journal(run).add({"step": 1}),
    "events.jsonl": Events,
    "rank-0.stacks": lambda run: Heartbeat(0).open(run),
    "ranks-0-7.beats": lambda run: Heartbeat(0).open(run),
    "rank-1.log": lambda run: LocalWorkerGroup(["true"], logs=run, out=None, err=None).start({1: dict(os.environ)}),
}


@pytest.mark.parametrize("make_link", [os.symlink, os.link])
@pytest.mark.parametrize("name", WRITERS)
def test_run_files_must_not_be_links(run, user_file, name, make_link):
    make_link(user_file, run / name)
    with pytest.raises(
        UserError, match=rf"{name} (is a link to|has a hard link elsewhere).*a run writes only to its own folder"
    ):
        WRITERS[name](run)
    assert user_file.read_text() == PRECIOUS


@pytest.mark.parametrize("umask", [0o002, 0o022])
def test_files_of_a_run_have_the_mode_of_the_umask(umask, run):
    """filelock's issue 378: a lock of mode 0644 keeps the other users of a group from continuing a run."""
    before = os.umask(umask)
    try:
        with RunLock(run), Events(run):
            pass
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (run / "lock", run / "events.jsonl")} == {0o666 & ~umask}


def test_broken_link_creates_no_file(run, tmp_path):
    (run / "events.jsonl").symlink_to(tmp_path / "absent")
    with pytest.raises(UserError, match="is a link to"):
        Events(run)
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_WRONLY])
def test_pipe_is_refused_without_blocking(run, flags):
    os.mkfifo(run / "lock")
    with pytest.raises(UserError, match="is not a regular file"):
        safe_open(run / "lock", flags | os.O_CREAT)


def test_pipe_as_upload_state_does_not_block(run):
    os.mkfifo(run / "track.json")
    assert view_instructions(run) == []
    with pytest.raises(OSError, match="Not a regular file"):
        UploadState.read(run, uri=None, experiment="e")


@pytest.mark.parametrize("name", ["logs", "tokenizer", "heartbeats", "verified", "profile", "submitted"])
def test_run_subfolders_must_not_be_links(run, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name} is a link to"):
        prepare_run_folder(make_config(run))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (run / "config.yaml").exists()


def test_checkpoints_must_not_be_those_of_another_run(run, tmp_path):
    """A run removes its oldest checkpoints."""
    (tmp_path / "other/checkpoints").mkdir(parents=True)
    (run / "checkpoints").symlink_to(tmp_path / "other/checkpoints")
    (run / "events.jsonl").touch()
    prepare_run_folder(make_config(run))
    (tmp_path / "other/config.yaml").touch()
    with pytest.raises(UserError, match="is a link to the checkpoints of another run"):
        prepare_run_folder(make_config(run))


@pytest.mark.parametrize("name", ["logs", "logs/7.0", "logs/7.0/nodes"])
def test_logs_of_a_slurm_job_must_not_be_links(run, user_file, name):
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(user_file)
    with pytest.raises(UserError, match=f"{name} is a link to"):
        make_log_folder(run, "7.0")


def test_picture_replaces_a_link(run, user_file):
    (run / "loss.png").symlink_to(user_file)
    save_picture(run / "loss.png", lambda: plot_curves(RECORDS, title="a run"))
    assert user_file.read_text() == PRECIOUS
    assert not (run / "loss.png").is_symlink()


def test_picture_ignores_matplotlibrc_in_the_working_directory(run, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "text.usetex", True)  # set by a file `matplotlibrc`; LaTeX can read files
    monkeypatch.setenv("PATH", "")
    save_picture(run / "loss.png", lambda: plot_curves(RECORDS, title="a run"))
    assert (run / "loss.png").is_file()


def test_run_folder_may_be_below_a_link(tmp_path):
    (tmp_path / "scratch").mkdir()
    Path(tmp_path / "runs").symlink_to(tmp_path / "scratch")
    config = make_config(tmp_path / "runs" / "one")
    with exclusive_start(config):
        prepare_run_folder(config)
    assert (tmp_path / "scratch/one/config.yaml").is_file()
