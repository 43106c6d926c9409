"""MLflow's SQLite file is created completely or not at all, also by concurrent runs."""

import json
import sqlite3
import subprocess
import sys

import pytest

from megaptm.errors import UserError
from megaptm.storage.atomic_file import SUFFIX
from megaptm.track import Tracker, default_tracking_uri
from megaptm.track.database import _remove_partial_files, ensure_database

pytestmark = pytest.mark.real

KILLS = 4
# Children are forked from a process that has imported MLflow, because the import takes most of the time.
KILL_DURING_CREATION = """
import json, os, signal, sys, time
from pathlib import Path
from megaptm.track.journal import UploadState
from megaptm.track.store import MlflowRun

def fork(folder):
    child = os.fork()
    if child == 0:
        MlflowRun(folder / "run", UploadState.read(folder / "run", uri=None, experiment="megaptm"))
        os._exit(0)
    return child

def begun(folder):
    return any(path.stat().st_size for path in folder.glob("*mlflow.db*"))

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
(folder / "whole" / "run").mkdir(parents=True)
(folder / "whole" / "run" / "metrics.jsonl").touch()
child = fork(folder / "whole")
while not begun(folder / "whole"):
    time.sleep(0.001)
started = time.monotonic()
assert os.waitpid(child, 0)[1] == 0
seconds = time.monotonic() - started
for number in range(kills):
    place = folder / str(number)
    (place / "run").mkdir(parents=True)
    (place / "run" / "metrics.jsonl").touch()
    child = fork(place)
    while not begun(place):
        time.sleep(0.001)
    time.sleep(seconds * number / kills)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


def tables(path):
    with sqlite3.connect(path) as database:
        return database.execute("select count(*) from sqlite_master where type = 'table'").fetchone()[0]


def losses(path, run_name):
    query = "select value from metrics join runs on metrics.run_uuid = runs.run_uuid where name = ? and key = 'loss'"
    with sqlite3.connect(path) as database:
        return [value for (value,) in database.execute(query, (run_name,))]


def kill(folder, kills):
    script = [sys.executable, "-c", KILL_DURING_CREATION, str(folder), str(kills)]
    subprocess.run(script, check=True, timeout=300)


def track(run):
    tracker = Tracker(run, retry_seconds=0.1)
    tracker.log_metrics(1, {"loss": 2.0})
    assert tracker.close(seconds=120) == 0


def test_database_of_a_killed_job_is_usable(tmp_path):
    kill(tmp_path, KILLS)
    without = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        without += not (folder / "mlflow.db").exists()
        track(folder / "run")
        assert losses(folder / "mlflow.db", "run") == [2.0]
        assert tables(folder / "mlflow.db") == tables(tmp_path / "whole" / "mlflow.db")
        assert list(folder.glob("*.part*")) == []
    assert without >= 2, "too few kills came before the database was there: the drill proves nothing"


def test_database_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("create table bookmarks (name text)")
    before = (tmp_path / "mlflow.db").read_bytes()
    with pytest.raises(UserError, match=r"mlflow.db is not an MLflow database \(it has a table bookmarks\)"):
        ensure_database(default_tracking_uri(tmp_path / "run"))
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_only_own_partial_files_are_removed(tmp_path):
    own, foreign = (tmp_path / f".{name}.db.1{SUFFIX}" for name in ("[ab]", "a"))
    own.touch()
    foreign.touch()
    _remove_partial_files(tmp_path / "[ab].db")
    assert foreign.exists()
    assert not own.exists()


def test_folder_name_may_have_characters_of_uris(tmp_path):
    """One database for all characters: MLflow takes seconds to create its tables."""
    folder = tmp_path / "a#b%c d%20e"
    ensure_database(default_tracking_uri(folder / "run"))
    assert tables(folder / "mlflow.db")


def test_question_mark_in_the_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"a\?b contains a question mark.*choose another run=FOLDER, set track.uri"):
        default_tracking_uri(tmp_path / "a?b" / "run")


# Children are forked from a process that has imported MLflow.
TRACK = """
import os, sys
import megaptm.track.store
from megaptm.track import Tracker

def track(run):
    tracker = Tracker(run, retry_seconds=0.1)
    for step in range(500):
        tracker.log_metrics(step, {"loss": float(step)})
    os._exit(tracker.close(seconds=120))

children = [os.fork() or track(run) for run in sys.argv[1:]]
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def test_concurrent_runs_create_and_share_a_database(tmp_path):
    path, names = tmp_path / "mlflow.db", ["one", "two", "three"]
    command = [sys.executable, "-c", TRACK, *(str(tmp_path / name) for name in names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    assert [sorted(losses(path, name)) for name in names] == [[float(step) for step in range(500)]] * 3
    assert all(json.loads((tmp_path / name / "track.json").read_text())["run_id"] for name in names)
