"""Tracker with a real database, and its journal."""

import json
import math
import sqlite3
import subprocess
import sys
import time

import pytest

from megaptm.track import Tracker, read_metrics, view_instructions
from megaptm.track.journal import Journal


def history(run, key):
    """Return (step, value, is_nan, timestamp) of a metric in the run folder's database, in order."""
    with sqlite3.connect(run.parent / "mlflow.db") as database:
        query = "select step, value, is_nan, timestamp from metrics where key = ? order by step, timestamp"
        return database.execute(query, (key,)).fetchall()


def rows(run, query):
    with sqlite3.connect(run.parent / "mlflow.db") as database:
        return database.execute(query).fetchall()


LONG_NAME = "loss of " + "a" * 300


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run that was tracked in two parts, with infinite and NaN values, long parameters and foreign files."""
    run = tmp_path_factory.mktemp("runs") / "my run"
    first = Tracker(run)
    first.log_status("RUNNING")
    first.log_params({"layout.data": 1, "model.family": "gpt2", "long": "x" * 10_000})
    for step in range(1, 200):
        first.log_metrics(step, {"loss": 10.0 / step, "lr": 0.1})
    first.log_metrics(200, {"loss": math.inf, "lr": math.nan})
    first.log_metrics(200, {LONG_NAME: 1.0, f"{LONG_NAME}b": 2.0, "a//b": 3.0, "../a": 4.0, ".": 5.0, "kept": 6.0})
    (run / "curve.txt").write_text("a picture")
    first.log_artifact(run / "curve.txt")
    first.log_artifact(run / "never-written.txt")
    # As in a journal written by an attacker.
    (run.parent / "secret.txt").write_text("of the user")
    (run / "link.txt").symlink_to(run.parent / "secret.txt")
    for name in ("../secret.txt", "link.txt"):
        Journal(run).add({"artifact": name})
    assert first.close(seconds=120) == 0
    second = Tracker(run)
    second.log_params({"layout.data": 2, "model.family": "gpt2"})
    second.log_status("RUNNING")
    second.log_metrics(201, {"loss": 0.5})
    second.log_status("SCHEDULED")
    assert second.close(seconds=120) == 0
    return run


def test_restart_continues_the_mlflow_run(run):
    assert rows(run, "select name, status from runs") == [("my run", "SCHEDULED")]
    steps = [step for step, *_ in history(run, "loss")]
    assert steps == list(range(1, 202))


def test_values_and_times_equal_the_journal(run):
    record = read_metrics(run)[9]
    step, value, _, moment = history(run, "loss")[9]
    assert (step, value, moment) == (10, 1.0, round(1000 * record["time"]))


def test_infinite_loss_is_nan_in_mlflow_and_infinite_in_the_journal(run):
    assert [(value, is_nan) for step, value, is_nan, _ in history(run, "loss") if step == 200] == [(0.0, 1)]
    record = read_metrics(run)[199]
    assert record["loss"] == math.inf
    assert math.isnan(record["lr"])
    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_infinite_loss_is_a_tag_in_mlflow(run):
    tags = rows(run, "select key, value from tags where key like 'infinite%'")
    assert tags == [("infinite.loss", "inf at step 200")]


def test_names_that_mlflow_rejects_are_changed(run):
    """Other metrics of the record must not be lost with them."""
    metrics = dict(rows(run, "select key, value from metrics where step = 200 and value > 0"))
    long_names = {name: metrics.pop(name) for name in list(metrics) if name.startswith("loss of aaa")}
    assert metrics == {"_a__b": 3.0, "_.._a": 4.0, "_.": 5.0, "kept": 6.0}
    assert sorted(long_names.values()) == [1.0, 2.0]
    assert {len(name) for name in long_names} == {240}


def test_shortened_name_gives_one_warning(tmp_path, caplog):
    tracker = Tracker(tmp_path / "run")
    for step in range(3):
        tracker.log_metrics(step, {LONG_NAME: 1.0})
    assert tracker.close(seconds=120) == 0
    assert caplog.text.count("MLflow allows shorter names: it has loss of aaa") == 1


def test_parameter_that_returns_to_its_first_value_updates_the_tag(tmp_path):
    """A run that goes back to an earlier checkpoint has the learning rate of that step again."""
    for rate in (0.1, 0.2, 0.1):
        tracker = Tracker(tmp_path / "run")
        tracker.log_params({"optimizer.lr": rate})
        assert tracker.close(seconds=120) == 0
    assert rows(tmp_path / "run", "select key, value from tags where key like 'latest.%'") == [
        ("latest.optimizer.lr", "0.1")
    ]


def test_changed_parameter_becomes_a_tag(run):
    params = dict(rows(run, "select key, value from params"))
    assert params["layout.data"] == "1"
    assert len(params["long"]) == 6000
    assert dict(rows(run, "select key, value from tags where key like 'latest.%'")) == {"latest.layout.data": "2"}


def test_artifacts_are_beside_the_database(run):
    assert [path.read_text() for path in run.parent.glob("mlartifacts/**/curve.txt")] == ["a picture"]


def test_files_outside_the_run_are_not_uploaded(run):
    assert not [*run.parent.glob("mlartifacts/**/secret.txt"), *run.parent.glob("mlartifacts/**/link.txt")]


def test_mlflow_times_are_those_of_training(tmp_path):
    """The journal of ten minutes of training, with a stop, is uploaded much later."""
    run = tmp_path / "run"
    run.mkdir()
    lines = [
        {"time": 1000.0, "status": "RUNNING"},
        {"time": 1060.0, "step": 1, "loss": 3.0},
        {"time": 1100.0, "status": "SCHEDULED"},
        {"time": 1500.0, "status": "RUNNING"},
        {"time": 1590.0, "step": 2, "loss": 2.0},
        {"time": 1600.0, "status": "FINISHED"},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    query = "select status, start_time, end_time from runs"
    assert Tracker(run).close(seconds=120) == 0
    assert rows(run, query) == [("FINISHED", 1_000_000, 1_600_000)]
    evaluation = Tracker(run)  # as `megaptm evaluate` does
    evaluation.log_metrics(2, {"evaluation/loss": 2.1})
    assert evaluation.close(seconds=120) == 0
    assert rows(run, query) == [("FINISHED", 1_000_000, 1_600_000)]
    assert len(history(run, "evaluation/loss")) == 1
    assert [record["step"] for record in read_metrics(run)] == [1, 2, 2]


def test_view_instructions_lead_to_the_curves(run):
    """The printed command and URL, and the link in the description of the MLflow run, show the curves."""
    command, address = view_instructions(run)
    [(identifier, experiment)] = rows(run, "select run_uuid, experiment_id from runs")
    assert command.endswith(f"mlflow ui --backend-store-uri sqlite:///{run.parent}/mlflow.db")
    page = f"#/experiments/{experiment}/runs/{identifier}/model-metrics"
    assert address == f"http://127.0.0.1:5000/{page}"
    [(note,)] = rows(run, "select value from tags where key = 'mlflow.note.content'")
    assert note == f"[Curves]({page}) of the run in `{run}`"
    assert rows(run, "select key, value from experiment_tags") == [
        ("mlflow.experimentKind", "custom_model_development")
    ]


def test_upload_after_a_crash_adds_no_duplicates(run, tmp_path):
    before = len(history(run, "loss"))
    state = json.loads((run / "track.json").read_text())
    (run / "track.json").write_text(json.dumps({**state, "uploaded_bytes": 0, "run_id": None}))
    assert Tracker(run).close(seconds=120) == 0
    assert len(history(run, "loss")) == before
    assert rows(run, "select count(*) from runs") == [(1,)]
    assert json.loads((run / "track.json").read_text())["run_id"] == state["run_id"]


def test_disabled_tracker_writes_the_journal(tmp_path):
    with Tracker(tmp_path, enabled=False) as tracker:
        tracker.log_metrics(1, {"loss": 2.0})
    assert [record["loss"] for record in read_metrics(tmp_path)] == [2.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl"]


def test_truncated_line_is_skipped(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"time": 1, "step": 1, "loss": 3.0}\n{"time": 2, "st')
    with Tracker(tmp_path, enabled=False) as tracker:
        tracker.log_metrics(2, {"loss": 2.0})
    assert [record["loss"] for record in read_metrics(tmp_path)] == [3.0, 2.0]


def test_unreachable_server_gives_one_warning_and_no_delay(tmp_path, caplog):
    tracker = Tracker(tmp_path, uri="http://127.0.0.1:9", retry_seconds=0.05)
    slowest = 0.0
    for step in range(100):
        start = time.monotonic()
        tracker.log_metrics(step, {"loss": 1.0})
        slowest = max(slowest, time.monotonic() - start)
        time.sleep(0.01)
    start = time.monotonic()
    assert tracker.close() == 100
    assert time.monotonic() - start < 25
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("megaptm")]
    assert len([message for message in messages if "training continues" in message]) == 1
    assert len([message for message in messages if "100 records" in message]) == 1
    assert slowest < 1.0
    assert len(read_metrics(tmp_path)) == 100


def test_tracker_does_not_import_mlflow():
    source = "import sys, megaptm.track; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


def test_first_use_prints_nothing(tmp_path):
    source = (
        "import sys; from megaptm.track import Tracker; t = Tracker(sys.argv[1])\n"
        "t.log_metrics(1, {'a': 1.0}); t.close(seconds=120)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(history(tmp_path / "run", "a")) == 1
