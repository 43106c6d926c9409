"""MLflow's SQLite file: made whole or not at all, by one of those who want it at the same time."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from sqlalchemy.engine import make_url

from megaptm.errors import UserError
from megaptm.storage.atomic_file import SUFFIX
from megaptm.track import Tracker, default_uri
from megaptm.track.database import _can_open, _remove_partial_files, ensure_database

pytestmark = pytest.mark.real

KILLS = 6
# Children are forked from a process that has imported MLflow, which takes most of the time and makes no files.
KILL_WHILE_IT_IS_MADE = """
import json, os, signal, sys, time
from pathlib import Path
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from megaptm.track.journal import UploadState
from megaptm.track.store import MlflowRun

def fork(folder):
    child = os.fork()
    if child == 0:
        if made_by == "us":
            MlflowRun(folder / "run", UploadState.read(folder / "run", uri=None, experiment="megaptm"))
        else:  # as `mlflow ui` makes it
            SqlAlchemyStore(f"sqlite:///{folder}/mlflow.db", "./mlruns")
        os._exit(0)
    return child

def begun(folder):
    return any(path.stat().st_size for path in folder.glob("*mlflow.db*"))

folder, kills, made_by = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
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


def kill(folder, kills, *, made_by):
    script = [sys.executable, "-c", KILL_WHILE_IT_IS_MADE, str(folder), str(kills), made_by]
    subprocess.run(script, check=True, timeout=300)


def track(run):
    tracker = Tracker(run, retry_seconds=0.1)
    tracker.log_metrics(1, {"loss": 2.0})
    assert tracker.close(seconds=120) == 0


def test_a_start_after_one_killed_while_making_the_database_tracks(tmp_path):
    kill(tmp_path, KILLS, made_by="us")
    without = 0
    for number in range(KILLS):
        place = tmp_path / str(number)
        without += not (place / "mlflow.db").exists()
        track(place / "run")
        assert losses(place / "mlflow.db", "run") == [2.0]
        assert tables(place / "mlflow.db") == tables(tmp_path / "whole" / "mlflow.db")
        assert list(place.glob("*.part*")) == []
    assert without >= 2, "too few kills came before the database was there: the drill proves nothing"


def test_a_database_that_mlflow_itself_left_half_made_is_made_anew(tmp_path):
    """MLflow killed while it makes it; and, for certain, one that has a table which its next step would make."""
    kill(tmp_path, 1, made_by="MLflow")
    (tmp_path / "dead").mkdir()
    shutil.copy(tmp_path / "whole" / "mlflow.db", tmp_path / "dead")
    with sqlite3.connect(tmp_path / "dead" / "mlflow.db") as database:
        database.execute("update alembic_version set version_num = 'c48cb773bb87'")
    # Long ago; and just as long ago, by a clock that has been set back since.
    for place, moment in ((tmp_path / "0", 0), (tmp_path / "dead", time.time() + 3600)):
        os.utime(place / "mlflow.db", (moment, moment))
        track(place / "run")
        assert losses(place / "mlflow.db", "run") == [2.0]
    assert any(".incomplete-" in path.name for path in (tmp_path / "dead").iterdir())


def test_one_that_somebody_is_making_just_now_is_left_to_them(tmp_path, monkeypatch):
    monkeypatch.setattr("megaptm.track.database.QUIET_SECONDS", 3600)  # however slowly this test runs
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("create table experiments (name text)")
    tracker = Tracker(tmp_path / "run", retry_seconds=0.1)
    tracker.log_metrics(1, {"loss": 2.0})
    assert tracker.close(seconds=60) == 1
    assert not [path for path in tmp_path.iterdir() if ".incomplete-" in path.name]


def test_a_database_of_another_program_is_left_as_it_is(tmp_path):
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("create table bookmarks (name text)")
    before = (tmp_path / "mlflow.db").read_bytes()
    with pytest.raises(UserError, match=r"mlflow.db is not an MLflow database \(it has a table bookmarks\)"):
        ensure_database(default_uri(tmp_path / "run"))
    assert (tmp_path / "mlflow.db").read_bytes() == before


def test_one_that_is_locked_is_waited_for_and_not_called_half_made(tmp_path):
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("create table experiments (name text)")
        other.execute("begin immediate")
        with pytest.raises(BlockingIOError, match="another process is creating"):
            _can_open(make_url(f"sqlite:///{path}"), timeout=0.1)


def test_what_was_left_of_a_database_is_removed_whatever_its_name_and_nothing_beside_it(tmp_path):
    mine, others = (tmp_path / f".{name}.db.1{SUFFIX}" for name in ("[ab]", "a"))
    mine.touch()
    others.touch()
    _remove_partial_files(tmp_path / "[ab].db")
    assert others.exists()
    assert not mine.exists()


def test_a_folder_may_have_signs_in_its_name_that_addresses_use(tmp_path):
    """One database for all signs: MLflow takes seconds to create its tables."""
    folder = tmp_path / "a#b%c d%20e"
    ensure_database(default_uri(folder / "run"))
    assert tables(folder / "mlflow.db")


def test_a_question_mark_which_no_address_of_a_database_can_have_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"a\?b contains a question mark.*choose another run=FOLDER, set track.uri"):
        default_uri(tmp_path / "a?b" / "run")


TRACK = """
import sys, time
import megaptm.track.store
from megaptm.errors import UserError
from megaptm.storage.atomic_file import SUFFIX
from megaptm.track import Tracker, default_uri
from megaptm.track.database import _can_open, _remove_partial_files, ensure_database
print("ready", flush=True)
sys.stdin.readline()
tracker = Tracker(sys.argv[1], retry_seconds=0.1)
for step in range(500):
    tracker.log_metrics(step, {"loss": float(step)})
sys.exit(tracker.close(seconds=120))
"""


def test_runs_that_start_together_share_a_database_that_is_not_there_yet_and_write_to_it_at_once(tmp_path):
    path, names = tmp_path / "mlflow.db", ["one", "two", "three"]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", TRACK, str(tmp_path / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    for job in jobs:
        assert job.communicate(timeout=300) == ("", "")
        assert job.returncode == 0
    assert [sorted(losses(path, name)) for name in names] == [[float(step) for step in range(500)]] * 3
    assert all(json.loads((tmp_path / name / "track.json").read_text())["run_id"] for name in names)
