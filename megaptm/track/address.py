"""Where the numbers of a run are kept and looked at: MLflow's address, its command, the run's page."""

from __future__ import annotations

import json
from pathlib import Path

from megaptm.errors import UserError
from megaptm.shell import command_line
from megaptm.track.state import STATE

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
    return f"sqlite:///{folder / DATABASE}"


def how_to_look(run: Path) -> list[str]:
    """A command, where there is no server, and the address of the run's curves; nothing where MLflow has no run yet."""
    try:
        found = json.loads((run / STATE).read_bytes())
        uri, page = found["uri"] or default_uri(run), curves(found["experiment_id"], found["run_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not page:
        return []
    if uri.startswith(("http://", "https://")):
        return [f"{uri.rstrip('/')}/{page}"]
    return [command_line(["ui", "--backend-store-uri", uri], program="mlflow"), f"{SERVED_AT}/{page}"]


def curves(experiment_id: str | None, run_id: str | None) -> str:
    """The page of MLflow that shows a run's metrics as curves; it opens on a table of last values otherwise."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/model-metrics" if experiment_id and run_id else ""
