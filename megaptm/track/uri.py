"""MLflow's tracking URI, the command to view runs there, and the page of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from megaptm.errors import UserError
from megaptm.shell import command_line
from megaptm.track.journal import UploadState

DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
DEFAULT_UI_URL = "http://127.0.0.1:5000"
"""Default URL of `mlflow ui`."""
MLFLOW_URI = "MLFLOW_TRACKING_URI"
TYPED_URI = "MEGAPTM_TYPED_TRACK_URI"
"""Environment variable with the `track.uri` of a command line, for child processes."""
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks", "databricks-uc")
"""URI schemes of MLflow's servers and databases, without a driver such as in `postgresql+psycopg2`."""
LOGIN_VARIABLES = (
    *("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_AUTH"),
    *("MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
)
"""Environment variables with credentials that MLflow sends to any server."""
CREDENTIALS = Path("~/.mlflow/credentials")
"""File with credentials that MLflow sends to any server."""
DATABASE_LOGINS = {"postgresql": "PGPASSWORD", "mysql": "MYSQL_PWD"}
"""Environment variable with the password that the client of a database sends to any server, by URI scheme."""


def default_tracking_uri(run: Path) -> str:
    """Return the MLflow URI of the database beside a run folder. Runs in the same folder share it, so that they can be
    compared."""
    folder = run.absolute().parent
    if "?" in str(folder):
        raise UserError(
            f"{folder} contains a question mark, which would end the URI of MLflow's database: choose another "
            "run=FOLDER, set track.uri, or set track.enabled=false."
        )
    if "%" not in str(folder):
        return f"sqlite:///{folder / DATABASE}"
    from sqlalchemy.engine import URL  # sqlalchemy versions differ in whether a URL encodes a percent sign as %25

    return URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()


def tracking_database_path(uri: str) -> Path | None:
    """Return the file of an MLflow URI `sqlite:///PATH`, as MLflow reads it; None for other URIs."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if not uri.startswith("sqlite"):
        return None
    try:
        url = make_url(uri)
    except ArgumentError:
        raise UserError(f"track.uri ({uri}) is not the URI of a database: write sqlite:///PATH.") from None
    if url.query:  # with `uri=true` SQLite would read another path from the name
        raise UserError(f"track.uri ({uri}) has SQLite options after `?`: write only sqlite:///PATH.")
    return Path(url.database).absolute() if url.database and url.database != ":memory:" else None


def trust_typed_uri(arguments: Sequence[str], uri: str | None) -> None:
    """Trust a `track.uri` that the user typed as one of `arguments`, in this process and its children."""
    if uri and any(argument.startswith("track.uri=") for argument in arguments):
        os.environ[TYPED_URI] = uri


def refuse_foreign_server(uri: str) -> None:
    """Raise `UserError` if MLflow would send the user's credentials to a server that only an untrusted config names."""
    trusted = [_origin_of(os.environ.get(name, "")) for name in (MLFLOW_URI, TYPED_URI)]
    if _origin_of(uri) not in trusted and (logins := _find_logins(uri)):
        raise UserError(
            f"track.uri ({uri}) is set only in the config file, and MLflow would send the login in {logins[0]} to it: "
            f"set {MLFLOW_URI}={uri} in the environment if you trust that server, or set track.enabled=false."
        )


def _find_logins(uri: str) -> list[str]:
    """Return the variables and files with credentials of the user that MLflow would send to this URI."""
    if not is_tracking_server(uri):
        variable = DATABASE_LOGINS.get(_scheme_of(uri), "")
        return [variable] if os.environ.get(variable) else []
    files = [str(CREDENTIALS)] if os.path.exists(os.path.expanduser(CREDENTIALS)) else []
    return [name for name in LOGIN_VARIABLES if os.environ.get(name)] + files


def refuse_other_scheme(uri: str) -> None:
    """Raise `UserError` unless MLflow would use a server or a database; for anything else it may create files."""
    scheme = _scheme_of(uri)
    if ":" not in uri and scheme not in ("databricks", "databricks-uc"):
        scheme = "file"
    allows_files = os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() == "true"
    if scheme in SCHEMES or (scheme == "file" and allows_files):
        return
    problem = "is a folder, which MLflow no longer writes to" if scheme == "file" else "is not a server or database"
    raise UserError(
        f"track.uri ({uri}) {problem}: use sqlite:///PATH or https://SERVER, or set track.enabled=false "
        "(metrics.jsonl in the run folder has all metrics)."
    )


def is_tracking_server(uri: str) -> bool:
    """Whether MLflow would send requests to this URI. Like MLflow, it accepts `HTTP://` and leading spaces."""
    return _origin_of(uri)[0] in ("http", "https")


def _scheme_of(uri: str) -> str:
    """Return the scheme of a URI, without the driver of a database."""
    return uri.strip().partition(":")[0].partition("+")[0].lower()


def _origin_of(uri: str) -> tuple[str, str | None, int | None, str]:
    try:
        parts = urlsplit(uri.strip())
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return uri.strip().partition(":")[0].lower(), None, None, uri
    return parts.scheme, parts.hostname, port, parts.path.rstrip("/")


def view_instructions(run: Path) -> list[str]:
    """Return the command to view the run's curves, unless there is a server, and their URL; empty without an MLflow
    run."""
    try:
        state = UploadState.load(run)
        page = curves_page(state.experiment_id, state.run_id) if state else ""
        if state is None or not page or state.was_copied_to(run):
            return []
        uri = state.uri or default_tracking_uri(run)
    except (OSError, UserError):
        return []
    if is_tracking_server(uri):
        return [f"{uri.rstrip('/')}/{page}"]
    return [command_line(["ui", "--backend-store-uri", uri], program="mlflow"), f"{DEFAULT_UI_URL}/{page}"]


def curves_page(experiment_id: str | None, run_id: str | None) -> str:
    """Return the URL of the page with a run's curves. MLflow's default page shows a table of last values."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/model-metrics" if experiment_id and run_id else ""
