"""Loggers besides MLflow, each with its real library: all metrics arrive once, also over restarts and copies."""

import contextlib
import csv
import importlib.util
import json
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import get_args

import pytest

from megaptm.config.schema import TrackConfig
from megaptm.errors import UserError
from megaptm.track import Tracker, read_metrics, upload_metrics
from megaptm.track.loggers import LOGGERS, refuse_missing_packages
from megaptm.track.tracker import Uploader
from tests import ROOT

LOCAL = ("tensorboard", "wandb", "csv")
WANDB_HEADER, HEADER, BLOCK, ENDS = 7, 7, 32768, (1, 4)
"""Bytes of the header of a file, of a part of a record, and of a block; kinds of the last part of a record."""


def write_two_jobs(run, logger, *, repeat=True):
    """Write the metrics of a job of ten steps, and of one that repeats the last two of them."""
    if package := LOGGERS[logger].package:
        pytest.importorskip(package)
    for first, last in ((1, 10), (9 if repeat else 11, 20)):
        tracker = Tracker(run, loggers=(logger,))
        tracker.log_status("RUNNING")
        tracker.log_params({"layout.data": 1, "model.family": "gpt2", "objective": {"masked-lm": {"rate": 0.2}}})
        for step in range(first, last + 1):
            tracker.log_metrics(step, {"loss": first + 1.0 / step})
        tracker.log_metrics(last, {"validation/loss": 2.0, "loss_of/late": float(last)})
        tracker.log_status("SCHEDULED" if last == 10 else "FINISHED")
        assert tracker.close(seconds=120) == 0


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")


def tensorboard_values(run, name):
    """Return the (step, value) pairs that TensorBoard would draw."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def wandb_records(run):
    """Return the records of all offline files of a run, in order."""
    return [
        record
        for path in sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
        for record in read_complete(path)
    ]


def read_complete(path, *, seconds=120):
    """Read a file of wandb, whose process writes the end of the run a little after `finish` returns."""
    deadline = time.monotonic() + seconds
    while not (records := read_log(path)) or records[-1].WhichOneof("record_type") != "exit":
        assert time.monotonic() < deadline, records[-1:]
        time.sleep(0.1)
    return records


def read_log(path):
    """Read the records of a log in LevelDB's format."""
    protocol = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    records, content, at, record = [], path.read_bytes(), WANDB_HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        record += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in ENDS and at <= len(content):
            records.append(protocol.Record.FromString(record))
            record = b""
    return records


def wandb_values(run, name):
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in wandb_records(run)
        if record.WhichOneof("record_type") == "history"
    ]
    return [(row["step"], row[name]) for row in rows if name in row]


def csv_values(run, name):
    with (run / "metrics.csv").open(newline="") as file:
        return [(int(row["step"]), float(row[name])) for row in csv.DictReader(file) if row[name]]


VALUES = {"tensorboard": tensorboard_values, "wandb": wandb_values, "csv": csv_values}


@pytest.mark.parametrize("logger", LOCAL)
def test_all_metrics_arrive(tmp_path, offline, logger):
    run = tmp_path / "run"
    write_two_jobs(run, logger, repeat=False)
    for name in ("loss", "validation/loss", "loss_of/late"):
        expected = [(record["step"], record[name]) for record in read_metrics(run) if name in record]
        assert dict(VALUES[logger](run, name)) == pytest.approx(dict(expected))
        assert len(VALUES[logger](run, name)) == len(expected)
    assert sorted(path.name for path in run.iterdir()) == sorted(
        {"metrics.jsonl", f"track-{logger}.json", {"csv": "metrics.csv"}.get(logger, logger)}
    )


def test_tensorboard_shows_repeated_steps_once(tmp_path):
    write_two_jobs(tmp_path / "run", "tensorboard")
    values = dict(tensorboard_values(tmp_path / "run", "loss"))
    assert len(tensorboard_values(tmp_path / "run", "loss")) == 20
    assert values == pytest.approx({step: (9 if step >= 9 else 1) + 1.0 / step for step in range(1, 21)})


def test_removed_tensorboard_files_are_written_again(tmp_path):
    write_two_jobs(tmp_path / "run", "tensorboard")
    shutil.rmtree(tmp_path / "run/tensorboard")
    tracker = Tracker(tmp_path / "run", loggers=("tensorboard",))
    tracker.log_metrics(21, {"loss": 1.0})
    assert tracker.close(seconds=120) == 0
    assert [step for step, _ in tensorboard_values(tmp_path / "run", "loss")] == list(range(1, 22))


def test_tensorboard_keeps_files_of_the_user(tmp_path):
    """The logger is enabled on an existing run, where a SummaryWriter of the user has written."""
    pytest.importorskip("tensorboard")
    own = tmp_path / "run/tensorboard/events.out.tfevents.1.host"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"")
    write_two_jobs(tmp_path / "run", "tensorboard")
    assert own.exists()


def test_tensorboard_has_the_config(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_two_jobs(tmp_path / "run", "tensorboard")
    events = accumulator.EventAccumulator(str(tmp_path / "run/tensorboard")).Reload()
    [text] = events.Tensors("config/text_summary")[-1].tensor_proto.string_val
    assert "| model.family | gpt2 |" in text.decode()


def test_wandb_run_is_continued_with_its_config(tmp_path, offline):
    write_two_jobs(tmp_path / "run", "wandb")
    starts = [record.run for record in wandb_records(tmp_path / "run") if record.WhichOneof("record_type") == "run"]
    assert {start.run_id for start in starts} == {json.loads((tmp_path / "run/track-wandb.json").read_text())["job"]}
    assert {(start.project, start.display_name) for start in starts} == {("megaptm", "run")}
    updates = [
        record.config for record in wandb_records(tmp_path / "run") if record.WhichOneof("record_type") == "config"
    ]
    config = {item.key or "/".join(item.nested_key): item.value_json for update in updates for item in update.update}
    assert config["model.family"] == '"gpt2"'


def test_removed_wandb_files_are_written_again_on_request(tmp_path, offline, caplog):
    """They may have been removed after a sync (`wandb clean`), so that a repetition would send them twice."""
    run = tmp_path / "run"
    write_two_jobs(run, "wandb", repeat=False)
    before = wandb_values(run, "loss")
    shutil.rmtree(run / "wandb")
    tracker = Tracker(run, loggers=("wandb",))
    tracker.log_metrics(21, {"loss": 0.5})
    assert tracker.close(seconds=120) == 0
    assert wandb_values(run, "loss") == [(21, 0.5)]
    assert f"remove {run / 'track-wandb.json'}" in caplog.text
    shutil.rmtree(run / "wandb")
    (run / "track-wandb.json").unlink()
    upload_metrics(run, uri=None, experiment="megaptm", loggers=("wandb",))
    assert wandb_values(run, "loss") == [*before, (21, 0.5)]


def test_wandb_without_login_gives_a_warning(tmp_path, monkeypatch, caplog):
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    tracker = Tracker(tmp_path / "run", loggers=("wandb",))
    tracker.log_metrics(1, {"loss": 2.0})
    assert tracker.close(seconds=60) == 1
    assert (
        "Weights & Biases has no login: run `wandb login`, or set WANDB_MODE=offline; training continues" in caplog.text
    )


@pytest.mark.parametrize("location", ["working directory", "run"])
def test_wandb_sends_no_login_to_a_server_that_a_file_names(tmp_path, location):
    """A run from elsewhere may bring a file `wandb/settings`."""
    pytest.importorskip("wandb")
    run, contacts = tmp_path / "run", []
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                contacts.append(connection.recv(4096))
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    folder = tmp_path if location == "working directory" else run
    (folder / "wandb").mkdir(parents=True)
    (folder / "wandb/settings").write_text(f"[default]\nbase_url = http://127.0.0.1:{server.getsockname()[1]}\n")
    source = (
        "import sys; from megaptm.track import Tracker\n"
        "t = Tracker(sys.argv[1], loggers=['wandb']); t.log_metrics(1, {'a': 1.0}); sys.exit(10 + t.close(seconds=90))"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= {"HOME": str(tmp_path), "WANDB_API_KEY": "a" * 40, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source, str(run)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    server.close()
    assert done.returncode == 11, done.stderr
    assert f"{folder}/wandb/settings could send your login to any server" in done.stderr
    assert contacts == []


@pytest.mark.parametrize(("logger", "is_continued"), [("wandb", True), ("mlflow", False)])
def test_only_mlflow_starts_a_new_run_at_another_uri(tmp_path, logger, is_continued):
    first, second = (
        Uploader(tmp_path, logger, uri=f"http://127.0.0.1:{port}", experiment="mine")._state.job for port in (8, 9)
    )
    assert (first == second) == is_continued


def test_csv_keeps_infinite_and_nan_values(tmp_path):
    tracker = Tracker(tmp_path, loggers=("csv",))
    tracker.log_metrics(1, {"loss": math.inf, "lr": math.nan})
    assert tracker.close(seconds=60) == 0
    assert (csv_values(tmp_path, "loss"), str(csv_values(tmp_path, "lr"))) == ([(1, math.inf)], "[(1, nan)]")


@pytest.mark.parametrize("logger", LOCAL)
def test_copied_run_has_its_own_files(tmp_path, offline, logger):
    run, copy = tmp_path / "run", tmp_path / "copy"
    write_two_jobs(run, logger, repeat=False)
    before = VALUES[logger](run, "loss")
    shutil.copytree(run, copy)
    if logger == "wandb":
        shutil.rmtree(copy / "wandb")  # the files of the first run, to read those of the copy alone
    tracker = Tracker(copy, loggers=(logger,))
    tracker.log_status("RUNNING")
    tracker.log_metrics(21, {"loss": 0.5})
    assert tracker.close(seconds=120) == 0
    assert VALUES[logger](copy, "loss") == [*before, (21, 0.5)]
    assert VALUES[logger](run, "loss") == before


def test_several_loggers_are_independent(tmp_path, caplog):
    """An MLflow server that does not respond keeps nothing from other loggers."""
    tracker = Tracker(tmp_path / "run", uri="http://127.0.0.1:9", loggers=("mlflow", "csv"), retry_seconds=0.05)
    tracker.log_metrics(1, {"loss": 2.0})
    assert tracker.close(seconds=60) == 1
    assert csv_values(tmp_path / "run", "loss") == [(1, 2.0)]
    assert "1 record of " in caplog.text
    assert "not sent to MLflow at http://127.0.0.1:9 yet" in caplog.text


def test_upload_sends_what_is_missing(tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    with Tracker(run, enabled=False) as tracker:
        tracker.log_metrics(1, {"loss": 2.0})
    upload_metrics(run, uri=None, experiment="megaptm", loggers=("csv", "tensorboard"))
    assert csv_values(run, "loss") == tensorboard_values(run, "loss") == [(1, 2.0)]


@pytest.mark.parametrize("logger", ["tensorboard", "wandb"])
def test_missing_package_is_an_error(monkeypatch, logger):
    monkeypatch.setattr("megaptm.track.loggers.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"needs the package {logger}: `pip install 'megaptm\[{logger}\]'`"):
        refuse_missing_packages(["csv", logger])


def test_config_lists_all_loggers():
    assert set(LOGGERS) == set(get_args(get_args(TrackConfig.model_fields["loggers"].annotation)[0]))


def test_linked_folder_is_refused(tmp_path, caplog):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (run / "tensorboard").symlink_to(tmp_path / "elsewhere")
    tracker = Tracker(run, loggers=("tensorboard",))
    tracker.log_metrics(1, {"loss": 2.0})
    assert tracker.close(seconds=60) == 1
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def lose_table(tracker, step, table, caplog):
    """Put a folder in the place of the table until the tracker has warned."""
    table.unlink(missing_ok=True)
    table.mkdir(parents=True)
    tracker.log_metrics(step, {"loss": 2.0})
    wait_for(lambda: count_outages(caplog) == step)
    table.rmdir()
    wait_for(lambda: table.is_file() and len(table.read_text().splitlines()) == 1 + step)


def count_outages(caplog):
    return len([message for message in caplog.messages if "training continues" in message])


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_outage_gives_one_warning(tmp_path, caplog):
    with Tracker(tmp_path / "run", loggers=("csv",), retry_seconds=0.05) as tracker:
        lose_table(tracker, 1, tmp_path / "run/metrics.csv", caplog)
        lose_table(tracker, 2, tmp_path / "run/metrics.csv", caplog)
    assert count_outages(caplog) == 2


def test_loggers_print_nothing(tmp_path, offline):
    source = (
        "import sys; from megaptm.track import Tracker; t = Tracker(sys.argv[1], loggers=sys.argv[2:])\n"
        "t.log_metrics(1, {'a': 1.0}); t.close(seconds=120)"
    )
    loggers = [name for name in LOCAL if name == "csv" or importlib.util.find_spec(name)]
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path / "run"), *loggers], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
