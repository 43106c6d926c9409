"""MLflow runs that were deleted, and run folders that were copied or moved. Each folder writes only to its own MLflow
run."""

import json
import shutil
import sqlite3
import time

import pytest

from megaptm.errors import UserError
from megaptm.track import Tracker, default_tracking_uri, upload_metrics, view_instructions
from megaptm.track.journal import STATE, UploadState


def record(run, *steps, **options):
    tracker = Tracker(run, retry_seconds=0.05, **options)
    for step in steps:
        tracker.log_metrics(step, {"loss": 1.0 / step})
    return tracker.close(seconds=120)


def runs(folder):
    """Return (experiment, name, steps) of the runs that are not deleted, in the order of their start."""
    query = """
    select run_uuid, experiments.name, runs.name, metrics.step
    from runs join experiments using (experiment_id) left join metrics using (run_uuid)
    where runs.lifecycle_stage = 'active' order by runs.start_time, metrics.step
    """
    active = {}
    with sqlite3.connect(folder / "mlflow.db") as database:
        for run_id, experiment, name, step in database.execute(query):
            active.setdefault(run_id, (experiment, name, []))[2].append(step)
    return sorted(active.values(), key=lambda run: run[:2])


def client(run):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=default_tracking_uri(run))


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """Create an empty MLflow database once, because its tables take most of the time of a test."""
    from megaptm.track.database import ensure_database  # imports MLflow

    run = tmp_path_factory.mktemp("mlflow") / "run"
    ensure_database(default_tracking_uri(run))
    return run.parent / "mlflow.db"


@pytest.fixture
def run(tmp_path, database):
    run = tmp_path / "run"
    shutil.copy(database, tmp_path)
    assert record(run, 1, 2) == 0
    return run


def test_deleted_mlflow_run_is_recreated(run):
    client(run).delete_run(UploadState.load(run).run_id)
    assert record(run, 3) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 3])]


def test_mlflow_run_deleted_during_training_is_recreated(run, monkeypatch):
    from megaptm.track.store import MlflowRun

    deleted = []
    send = MlflowRun.send

    def delete_and_send(store, records):
        if not deleted:
            deleted.append(UploadState.load(run).run_id)
            client(run).delete_run(deleted[0])
        send(store, records)

    monkeypatch.setattr(MlflowRun, "send", delete_and_send)
    tracker = Tracker(run, retry_seconds=0.05)
    tracker.log_metrics(3, {"loss": 1.0})
    while not deleted or UploadState.load(run).run_id == deleted[0]:
        time.sleep(0.05)
    assert tracker.close(seconds=120) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 3])]


def test_deleted_experiment_gets_a_numbered_successor(run):
    client(run).delete_experiment(UploadState.load(run).experiment_id)
    assert record(run, 3) == 0
    assert record(run.parent / "other", 1) == 0
    assert runs(run.parent) == [("megaptm-2", "other", [1]), ("megaptm-2", "run", [1, 2, 3])]


def test_copied_folder_gets_its_own_mlflow_run(run, caplog):
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    assert view_instructions(copy) == []
    assert record(copy, 3) == 0
    assert record(run, 4) == 0
    assert record(copy, 5) == 0
    assert runs(run.parent) == [("megaptm", "copy", [1, 2, 3, 5]), ("megaptm", "run", [1, 2, 4])]
    parent = UploadState.load(run).run_id
    assert client(copy).get_run(UploadState.load(copy).run_id).data.tags["mlflow.parentRunId"] == parent
    message = f"{copy} is a copy of {run}: it gets its own run in mlflow (parent: {parent})"
    assert [number.getMessage() for number in caplog.records].count(message) == 1


def test_moved_folder_continues_its_mlflow_run(run):
    moved = run.rename(run.with_name("moved"))
    assert record(moved, 3) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 3])]


def test_moved_folder_with_a_new_run_at_its_old_path(run):
    moved = run.rename(run.with_name("moved"))
    assert record(run, 7) == 0
    assert record(moved, 3) == 0
    assert sorted(steps for _, _, steps in runs(run.parent)) == [[1, 2, 3], [7]]


def test_folder_behind_a_link_is_not_a_copy(run):
    link = run.with_name("link")
    link.symlink_to(run)
    assert record(link, 3) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 3])]


@pytest.mark.parametrize(("same_inode", "is_copy"), [(True, False), (False, True)])
def test_inode_distinguishes_mount_from_copy_on_another_host(run, same_inode, is_copy):
    state = UploadState.load(run)
    state.folder, state.host = "/not/here", "elsewhere"
    state.inode += not same_inode
    assert state.was_copied_to(run) is is_copy


def test_state_without_a_folder_continues(run):
    state = json.loads((run / STATE).read_text())
    for key in ("folder", "inode", "host", "parent"):
        del state[key]
    (run / STATE).write_text(json.dumps(state))
    assert record(run, 3) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 3])]


def test_replaced_journal_is_uploaded_from_the_start(run):
    (run / "metrics.jsonl").unlink()
    assert record(run, 9) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 9])]


def test_rejected_record_does_not_block_later_ones(run, caplog):
    (run / "metrics.jsonl").open("a").write('{"time": -5.0, "step": 3, "a": 1.0}\n')
    assert record(run, 4) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 4])]
    assert "MLflow rejected a record of" in caplog.text


@pytest.mark.parametrize(
    "line",
    [
        '"params": 5',
        '"params": {"a": 10}, "artifact": "a\\u0000b"',
        '"artifact": []',
        '"status": "RUNNIN"',
        '"step": {}',
    ],
)
def test_damaged_record_does_not_block_later_ones(run, line):
    (run / "metrics.jsonl").open("a").write(f'{{"time": 5.0, {line}}}\n')
    assert record(run, 4) == 0
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 4])]


def test_loss_name_may_have_characters_that_mlflow_rejects(tmp_path):
    tracker = Tracker(tmp_path / "run", retry_seconds=0.05)
    tracker.log_metrics(1, {"loss/a(b)": 1.0})
    assert tracker.close(seconds=120) == 0
    assert runs(tmp_path) == [("megaptm", "run", [1])]


def test_upload_to_an_unreachable_server_fails(run):
    with pytest.raises(UserError, match=r"metrics.jsonl was not sent to MLflow at http://127.0.0.1:9 \(.*responds"):
        upload_metrics(run, uri="http://127.0.0.1:9", experiment="megaptm")


def test_upload_sends_the_missing_records(run):
    tracker = Tracker(run, enabled=False)
    tracker.log_metrics(3, {"loss": 1.0})
    tracker.close()
    upload_metrics(run, uri=None, experiment="megaptm")
    assert runs(run.parent) == [("megaptm", "run", [1, 2, 3])]
