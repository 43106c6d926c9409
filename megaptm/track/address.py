"""Where the numbers of a run are kept and looked at: MLflow's address, its command, the run's page."""

from __future__ import annotations

from pathlib import Path

from megaptm.errors import UserError
from megaptm.shell import command_line
from megaptm.track.journal import UploadState

DATABASE = "mlflow.db"
ARTIFACTS = "mlartifacts"
SERVED_AT = "http://127.0.0.1:5000"
"""Where `mlflow ui` answers unless told otherwise."""


def default_uri(run: Path) -> str:
    """The database beside a run folder, which all runs beside it share, so that they can be compared."""
    folder = run.absolute().parent
    if "?" in str(folder):
        raise UserError(
            f"{folder} has a question mark, at which the address of MLflow's database would end: choose another "
            "run=FOLDER, give track.uri, or set track.enabled=false."
        )
    if "%" not in str(folder):
        return f"sqlite:///{folder / DATABASE}"
    from sqlalchemy.engine import URL  # its versions differ in whether an address has %25 for a percent sign

    return URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()


def database_path(uri: str) -> Path | None:
    """The file that `sqlite:///PATH` names, as MLflow reads it; None where the address is of no file."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if not uri.startswith("sqlite"):
        return None
    try:
        database = make_url(uri).database
    except ArgumentError:
        raise UserError(f"track.uri ({uri}) is no address of a database: write sqlite:///PATH.") from None
    return Path(database).absolute() if database and database != ":memory:" else None


def how_to_look(run: Path) -> list[str]:
    """A command, where there is no server, and the address of the run's curves; nothing where MLflow has no run yet."""
    try:
        state = UploadState.found(run)
        page = curves(state.experiment_id, state.run_id) if state else ""
        if state is None or not page:
            return []
        uri = state.uri or default_uri(run)
    except (OSError, UserError):
        return []
    if uri.startswith(("http://", "https://")):
        return [f"{uri.rstrip('/')}/{page}"]
    return [command_line(["ui", "--backend-store-uri", uri], program="mlflow"), f"{SERVED_AT}/{page}"]


def curves(experiment_id: str | None, run_id: str | None) -> str:
    """The page of MLflow that shows a run's metrics as curves; it opens on a table of last values otherwise."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/model-metrics" if experiment_id and run_id else ""
