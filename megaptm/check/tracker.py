"""Check of the tracking server: whether it replies, or its database is writable. MLflow's own client would wait for
minutes."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from megaptm.check.finding import CheckInput, Finding
from megaptm.credentials import brief_message
from megaptm.errors import UserError
from megaptm.storage.retry import run_with_deadline
from megaptm.track import default_tracking_uri
from megaptm.track.loggers import LOGGERS, refuse_missing_packages
from megaptm.track.uri import is_tracking_server, refuse_foreign_server, refuse_other_scheme, tracking_database_path

ANSWER_SECONDS = 5.0
TOPIC = "tracker"
OR_DISABLE = "or set track.enabled=false (metrics.jsonl in the run folder has all metrics)."


def check_tracker(case: CheckInput) -> Iterator[Finding]:
    """Check the tracking server: send one request to `track.uri`."""
    track = case.config.track
    if not track.enabled:
        yield Finding(TOPIC, "ok", "metrics stay in the run folder (track.enabled is false).")
        return
    refuse_missing_packages(track.loggers)
    if "mlflow" not in track.loggers:
        titles = ", ".join(LOGGERS[name].title for name in track.loggers) or "nowhere"
        yield Finding(TOPIC, "ok", f"metrics are sent to {titles} (track.loggers).")
        return
    if find_spec("mlflow") is None:
        raise UserError(f"MLflow is not installed: pip install mlflow, {OR_DISABLE}")
    uri = track.uri or default_tracking_uri(Path(case.config.run))
    refuse_other_scheme(uri)
    if is_tracking_server(uri):
        refuse_foreign_server(uri)
        case.tell(f"asking {uri}")
        yield _check_server(uri, track.experiment)
    elif path := tracking_database_path(uri):
        yield _check_database(uri, path)
    else:
        yield Finding(TOPIC, "unknown", f"track.uri ({uri}) is not checked: only http, https and sqlite are.")


def _check_server(uri: str, experiment: str) -> Finding:
    """Send the first request of a run, with the credentials that MLflow would send."""
    import requests

    address = f"{uri.rstrip('/')}/api/2.0/mlflow/experiments/get-by-name"
    environ, token = os.environ, os.environ.get("MLFLOW_TRACKING_TOKEN")
    user = environ.get("MLFLOW_TRACKING_USERNAME")
    options: dict[str, Any] = {
        "params": {"experiment_name": experiment},
        "timeout": ANSWER_SECONDS,
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
        "auth": (user, environ.get("MLFLOW_TRACKING_PASSWORD", "")) if user else None,
        "verify": environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() not in ("true", "1"),
    }
    try:
        # In a thread, because the library's own timeout restarts with every byte.
        answer = run_with_deadline(2 * ANSWER_SECONDS, lambda: requests.get(address, **options))
    except (requests.Timeout, TimeoutError):
        raise UserError(_unreachable_message(uri, f"no answer in {ANSWER_SECONDS:.0f} s")) from None
    except (requests.RequestException, OSError) as error:
        raise UserError(_unreachable_message(uri, _error_reason(error))) from None
    if answer.status_code in (401, 403):
        raise UserError(
            f"track.uri ({uri}) denies access ({answer.status_code}): set MLFLOW_TRACKING_USERNAME and "
            f"MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, {OR_DISABLE}"
        )
    known = answer.status_code == 200
    if not known and not (answer.status_code == 404 and "RESOURCE_DOES_NOT_EXIST" in answer.text):
        raise UserError(f"track.uri ({uri}) answers with {answer.status_code}, unlike MLflow: correct it, {OR_DISABLE}")
    which = f"has the experiment {experiment}" if known else f"will create the experiment {experiment}"
    return Finding(TOPIC, "ok", f"MLflow at {uri} answers and {which}.", {"experiment_exists": known})


def _unreachable_message(uri: str, why: str) -> str:
    return f"track.uri ({uri}) does not answer ({why}): start the server, correct the URL, {OR_DISABLE}"


def _error_reason(error: BaseException) -> str:
    """Return the innermost cause of a failed request to the tracking server: the system's message, without pools and
    retries around it."""
    inner: Any = error
    while isinstance(inner, BaseException):
        error = inner
        inner = getattr(error, "reason", None) or error.__cause__ or error.__context__ or _nested_error(error)
    return getattr(error, "strerror", None) or brief_message(error)


def _nested_error(error: BaseException) -> object:
    return next((argument for argument in error.args if isinstance(argument, BaseException)), None)


def _check_database(uri: str, path: Path) -> Finding:
    try:
        if path.exists():
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=ANSWER_SECONDS)) as database:
                database.execute("BEGIN IMMEDIATE")
                database.rollback()
        else:
            with tempfile.TemporaryFile(dir=next(above for above in path.parents if above.is_dir())):
                pass
    except (OSError, sqlite3.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(f"track.uri ({uri}) cannot be written ({why}): correct the path, {OR_DISABLE}") from None
    return Finding(TOPIC, "ok", f"{path} can be written.")
