"""Tracker with a real MLflow server that is killed and restarted."""

import time

import pytest

from megaptm.track import Tracker
from tests.track.server import TrackingServer

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path):
    server = TrackingServer(tmp_path)
    yield server
    server.kill()


def test_no_record_is_lost_by_a_server_restart(server, tmp_path):
    from mlflow import MlflowClient

    server.start()
    tracker = Tracker(tmp_path / "run", uri=server.uri, experiment="drill", retry_seconds=0.2)
    for step in range(10):
        tracker.log_metrics(step, {"loss": float(step)})
    client = MlflowClient(tracking_uri=server.uri)
    for _ in range(300):
        experiment = client.get_experiment_by_name("drill")
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        if runs and len(client.get_metric_history(runs[0].info.run_id, "loss")) == 10:
            break
        time.sleep(0.1)
    server.kill()
    for step in range(10, 20):
        tracker.log_metrics(step, {"loss": float(step)})
    time.sleep(1.0)
    # The first job ends while the server is down. The second sends the missing records, including those that the server
    # stored without confirming them.
    assert 10 <= tracker.close(seconds=15) <= 20
    server.start()
    with Tracker(tmp_path / "run", uri=server.uri, experiment="drill") as again:
        again.log_metrics(20, {"loss": 20.0})
    (run,) = client.search_runs([client.get_experiment_by_name("drill").experiment_id])
    points = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((point.step, point.value) for point in points) == [(step, float(step)) for step in range(21)]
    assert run.info.status == "FINISHED"
