"""The user's login is sent to servers that the user named, and not to those that only a config names."""

import http.server
import threading
from pathlib import Path

import pytest

from megaptm.errors import UserError
from megaptm.run.folder import config_variables, read_config
from megaptm.track import Tracker, upload_metrics
from megaptm.track.uri import (
    DATABASE_LOGINS,
    LOGIN_VARIABLES,
    MLFLOW_URI,
    TYPED_URI,
    refuse_foreign_server,
    refuse_other_scheme,
    tracking_database_path,
)
from tests import ROOT

FOREIGN = "http://foreign.example:5000"
CONFIG = ROOT / "configs/gpt2/tiny.yaml"


@pytest.fixture(autouse=True)
def without_login(monkeypatch, tmp_path):
    for name in (*LOGIN_VARIABLES, *DATABASE_LOGINS.values(), MLFLOW_URI, TYPED_URI):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def token(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")


@pytest.fixture
def server():
    """Return the `Authorization` headers that a server received, and its URL."""
    sent = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(self.headers["Authorization"])
            self.send_error(500)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", sent
        listening.shutdown()
        thread.join()


def test_token_is_not_sent_to_a_server_named_only_by_the_config(server, token, tmp_path, caplog):
    uri, sent = server
    tracker = Tracker(tmp_path / "run", uri=uri, retry_seconds=0.05)
    tracker.log_metrics(1, {"loss": 1.0})
    assert tracker.close(seconds=60) == 1
    assert sent == []
    assert f"set MLFLOW_TRACKING_URI={uri} in the environment if you trust that server" in caplog.text


def test_upload_to_such_a_server_is_refused(server, token, tmp_path):
    uri, sent = server
    tracker = Tracker(tmp_path / "run", enabled=False)
    tracker.log_metrics(1, {"loss": 1.0})
    tracker.close()
    with pytest.raises(UserError, match="MLflow would send the login in MLFLOW_TRACKING_TOKEN to it"):
        upload_metrics(tmp_path / "run", uri=uri, experiment="megaptm")
    assert sent == []


def test_token_is_sent_to_the_server_of_the_environment(server, token, tmp_path, monkeypatch):
    uri, sent = server
    monkeypatch.setenv(MLFLOW_URI, f"{uri}/")
    tracker = Tracker(tmp_path / "run", uri=uri, retry_seconds=0.05)
    tracker.log_metrics(1, {"loss": 1.0})
    tracker.close(seconds=60)
    assert set(sent) == {"Bearer secret"}


@pytest.mark.parametrize("other", [f"{FOREIGN}1", "https://foreign.example:5000", f"{FOREIGN}/path", "http://[", ""])
def test_other_uri_in_the_environment_does_not_allow_it(token, monkeypatch, other):
    monkeypatch.setenv(MLFLOW_URI, other)
    with pytest.raises(UserError, match="is set only in the config file"):
        refuse_foreign_server(FOREIGN)


@pytest.mark.parametrize(
    "spelling", ["HTTP://foreign.example:5000", " http://foreign.example", "http://[", "Https://x"]
)
def test_server_is_recognized_in_any_spelling(token, spelling):
    with pytest.raises(UserError, match="is set only in the config file"):
        refuse_foreign_server(spelling)


def test_login_in_the_credentials_file_counts(tmp_path):
    refuse_foreign_server(FOREIGN)
    (tmp_path / ".mlflow").mkdir()
    (tmp_path / ".mlflow/credentials").write_text("[mlflow]")
    with pytest.raises(UserError, match=r"MLflow would send the login in .*/.mlflow/credentials to it"):
        refuse_foreign_server(FOREIGN)


def test_database_needs_no_login(token):
    refuse_foreign_server("sqlite:////srv/mlflow.db")


def test_password_of_databases_is_not_sent_to_a_foreign_one(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "secret")
    for uri in ("mysql://foreign.example/db", "sqlite:////srv/mlflow.db"):
        refuse_foreign_server(uri)
    uri = "postgresql+psycopg2://foreign.example/db"
    with pytest.raises(UserError, match="MLflow would send the login in PGPASSWORD to it"):
        refuse_foreign_server(uri)
    monkeypatch.setenv(MLFLOW_URI, uri)
    refuse_foreign_server(uri)


def test_uri_on_the_command_line_is_trusted(token):
    config = read_config(CONFIG, [f"track.uri={FOREIGN}", "data.mix={corpora/none: 1}", "model.vocabulary=300"])
    refuse_foreign_server(FOREIGN)
    assert config_variables(Path(config.run))[TYPED_URI] == FOREIGN


def test_sqlite_options_in_the_uri_are_refused():
    """With `uri=true` SQLite reads another path from the name, which would bypass the check for other databases."""
    with pytest.raises(UserError, match="SQLite options after"):
        tracking_database_path("sqlite:///file:/elsewhere/path.db?uri=true")


@pytest.mark.parametrize(
    ("uri", "problem"),
    [("./x", "is a folder"), ("file:///x", "is a folder"), ("s3://bucket/x", "is not a server"), ("x:1", "is not a")],
)
def test_uri_of_no_server_or_database_is_refused(uri, problem):
    with pytest.raises(UserError, match=rf"^track.uri \({uri}\) {problem}"):
        refuse_other_scheme(uri)


@pytest.mark.parametrize("uri", ["HTTP://server", " https://server", "postgresql+psycopg2://server/db", "databricks"])
def test_uri_of_a_server_or_database_is_accepted(uri):
    refuse_other_scheme(uri)
