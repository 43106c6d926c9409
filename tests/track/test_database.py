"""MLflow's SQLite file: made whole or not at all, by one of those who want it at the same time."""

import json
import sqlite3
import subprocess
import sys

import pytest

from megaptm.track import Tracker

pytestmark = pytest.mark.real

KILLS = 10
# Children are forked from a process that has imported MLflow, which takes most of the time and makes no files.
KILL_WHILE_IT_IS_MADE = """
import json, os, signal, sys, time
from pathlib import Path
from megaptm.track.state import State
from megaptm.track.store import Store

def fork(folder):
    child = os.fork()
    if child == 0:
        Store(folder, State.read(folder, uri=None, experiment="megaptm"))
        os._exit(0)
    return child

def begun(folder):
    return any(path.stat().st_size for path in folder.glob("*mlflow.db*"))

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
(folder / "whole").mkdir()
child = fork(folder / "whole")
while not begun(folder / "whole"):
    time.sleep(0.001)
started = time.monotonic()
assert os.waitpid(child, 0)[1] == 0
seconds = time.monotonic() - started
for number in range(kills):
    run = folder / str(number)
    run.mkdir()
    child = fork(run)
    while not begun(run):
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


def test_a_start_after_one_killed_while_making_the_database_tracks(tmp_path):
    script = [sys.executable, "-c", KILL_WHILE_IT_IS_MADE, str(tmp_path), str(KILLS)]
    subprocess.run(script, check=True, timeout=300)
    without = 0
    for number in range(KILLS):
        run = tmp_path / str(number)
        without += not (run / "mlflow.db").exists()
        tracker = Tracker(run, retry_seconds=0.1)
        tracker.log_metrics(1, {"loss": 2.0})
        assert tracker.close(seconds=120) == 0
        assert losses(run / "mlflow.db", str(number)) == [2.0]
        assert tables(run / "mlflow.db") == tables(tmp_path / "whole" / "mlflow.db")
        assert list(run.glob("*.part*")) == []
    assert without >= 2, "too few kills came before the database was there: the drill proves nothing"


TRACK = """
import sys, time
import megaptm.track.store
from megaptm.track import Tracker
print("ready", flush=True)
sys.stdin.readline()
tracker = Tracker(sys.argv[1], uri=sys.argv[2], experiment="array", retry_seconds=0.1)
tracker.log_metrics(1, {"loss": 2.0})
sys.exit(tracker.close(seconds=120))
"""


def test_jobs_that_start_together_share_a_database_that_is_not_there_yet(tmp_path):
    path, names = tmp_path / "shared" / "mlflow.db", ["one", "two", "three"]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", TRACK, str(tmp_path / name), f"sqlite:///{path}"],
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
    assert [losses(path, name) for name in names] == [[2.0]] * 3
    assert all(json.loads((tmp_path / name / "track.json").read_text())["run_id"] for name in names)
