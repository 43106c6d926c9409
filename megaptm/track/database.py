"""Atomic creation of MLflow's SQLite file. MLflow can neither complete an unfinished one nor create one concurrently.

If a job is killed while it creates the tables, later ones fail with "table already exists", as does the slower of two
jobs. Concurrent runs wait for each other: MLflow sets SQLite's busy timeout to 20 s, and later failures are retried.
WAL mode is not used, because it needs shared memory between machines, which network file systems do not provide.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import logging
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from mlflow.exceptions import MlflowException
from mlflow.store.db.base_sql_model import Base
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from megaptm.errors import UserError
from megaptm.storage import safe_open
from megaptm.storage.atomic_file import SUFFIX, AtomicFile
from megaptm.track.uri import database_path

logger = logging.getLogger(__name__)


# A file modified more recently may be in creation by a program without our lock: `mlflow ui`.
QUIET_SECONDS = 10.0


def ensure_database(uri: str) -> None:
    """Create the database of `sqlite:///PATH` unless it exists. Other URIs are left to their servers.

    An unfinished one is moved aside. It contains no run, and the journal of each run is the source of truth.
    """
    path = database_path(uri)
    if path is None:
        return
    url = make_url(uri)
    if path.exists() and _has_runs(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    lock_path = path.with_name(f".{path.name}.lock")
    with os.fdopen(safe_open(lock_path, os.O_WRONLY | os.O_CREAT), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # another process was first, or it is unfinished
            os.utime(lock_path)  # the file server's clock may differ from ours
            idle_seconds = abs(os.fstat(lock.fileno()).st_mtime - path.stat().st_mtime)
            if _has_runs(path):
                return
            _refuse_other_program(path)
            if _can_open(url):
                return
            if idle_seconds < QUIET_SECONDS:
                raise BlockingIOError(f"another process is creating {path}")
            _move_aside(path)
        _remove_partial_files(path)
        with AtomicFile(path) as partial:
            store = SqlAlchemyStore(str(url.set(database=str(partial))), "./mlruns")
            store.engine.dispose()


def _has_runs(path: Path) -> bool:
    """Whether the database contains a run. Then it was complete once, and is not to be replaced."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=20)) as database:
            return database.execute("select 1 from runs limit 1").fetchone() is not None
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return False
        raise


def _refuse_other_program(path: Path) -> None:
    """Raise `UserError` if the file has a table that MLflow does not create, because it belongs to another program."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=20)) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
    known = (*Base.metadata.tables, "alembic_version")
    for name in names:
        if name not in known and not name.startswith(("sqlite_", "_alembic_tmp_")):
            raise UserError(
                f"{path} is not an MLflow database (it has a table {name}): correct track.uri, or set "
                "track.enabled=false."
            )


def _can_open(url: URL, timeout: float = 20) -> bool:
    """Whether MLflow can open it, which also migrates tables of an earlier version."""
    # A different URL, because MLflow caches connections by URL, and those to a file that is moved must not be reused.
    url_with_timeout = url.update_query_dict({"timeout": str(timeout)})
    try:
        SqlAlchemyStore(str(url_with_timeout), "./mlruns").engine.dispose()
    except (MlflowException, SQLAlchemyError) as error:
        if "database is locked" in str(error):  # another program (`mlflow ui`) writes to it, and may be creating it
            raise BlockingIOError(f"another process is creating {url.database}") from None
        return False
    return True


def _move_aside(path: Path) -> None:
    aside = path.with_name(f"{path.name}.incomplete-{time.strftime('%Y%m%d-%H%M%S')}")
    logger.warning("%s is incomplete and contains no run: it was moved to %s", path, aside.name)
    for suffix in ("-journal", "-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))


def _remove_partial_files(path: Path) -> None:
    """Remove unfinished files of killed processes, and their SQLite journals. A living process would hold the lock."""
    for partial in path.parent.glob(f".{glob.escape(path.name)}.*{SUFFIX}*"):
        partial.unlink(missing_ok=True)
