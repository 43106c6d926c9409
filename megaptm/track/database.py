"""MLflow's SQLite file, which appears whole: MLflow can neither finish one that was begun nor begin one twice at once.

Of a job killed while it makes the tables, later ones would hear "table already exists"; so would the slower of two.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy.engine import make_url

from megaptm.storage import Appearing


def see_that_it_exists(uri: str) -> None:
    """Make the database that `sqlite:///PATH` names, unless it is there; other addresses are a server's business."""
    url = make_url(uri) if uri.startswith("sqlite") else None
    if url is None or not url.database or url.database == ":memory:" or Path(url.database).exists():
        return
    path = Path(url.database).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # another process was first
            return
        _remove_halves(path)
        with Appearing(path) as part:
            store = SqlAlchemyStore(str(url.set(database=str(part))), "./mlruns")
            store.engine.dispose()


def _remove_halves(path: Path) -> None:
    """What killed processes were making, and SQLite's journals of it: whoever lives would have the lock."""
    for half in path.parent.glob(f".{path.name}.*.part*"):
        half.unlink(missing_ok=True)
