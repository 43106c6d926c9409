"""Atomic creation of MLflow's SQLite file. MLflow can neither complete an unfinished one nor create one concurrently.

If a job is killed while it creates the tables, later ones fail with "table already exists", as does the slower of two
jobs. Concurrent runs wait for each other: MLflow sets SQLite's busy timeout to 20 s, and later failures are retried.
WAL mode is not used, because it needs shared memory between machines, which network file systems do not provide.
"""

from __future__ import annotations

import fcntl
import glob
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from mlflow.store.db.base_sql_model import Base
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.engine import make_url

from megaptm.errors import UserError
from megaptm.storage import safe_open
from megaptm.storage.atomic_file import SUFFIX, AtomicFile
from megaptm.track.uri import tracking_database_path


def ensure_database(uri: str) -> None:
    """Create the MLflow database of `sqlite:///PATH` unless the file exists. Other URIs are left to their servers."""
    path = tracking_database_path(uri)
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(safe_open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            _refuse_other_program(path)
            return
        _remove_partial_files(path)
        with AtomicFile(path) as partial:
            store = SqlAlchemyStore(str(make_url(uri).set(database=str(partial))), "./mlruns")
            store.engine.dispose()


def _refuse_other_program(path: Path) -> None:
    """Raise `UserError` if the MLflow database has a table that MLflow does not create, because it belongs to another
    program."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=20)) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
    known = (*Base.metadata.tables, "alembic_version")
    for name in names:
        if name not in known and not name.startswith(("sqlite_", "_alembic_tmp_")):
            raise UserError(
                f"{path} is not an MLflow database (it has a table {name}): correct track.uri, or set "
                "track.enabled=false."
            )


def _remove_partial_files(path: Path) -> None:
    """Remove unfinished MLflow databases of killed processes, and their SQLite journals. A living process would hold
    the lock."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*{SUFFIX}*"):
        partial.unlink(missing_ok=True)
