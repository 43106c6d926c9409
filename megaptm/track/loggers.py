"""Loggers: services and files to which the upload thread sends a run's journal of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from megaptm.errors import UserError
from megaptm.track.journal import UploadState


class LoggerRun(Protocol):
    """Run in a logger. It is opened, used and closed by the upload thread."""

    def send(self, records: Sequence[dict[str, Any]]) -> None:
        """Send records of the journal. A record may come again if the process was killed while sending it."""

    def close(self) -> None:
        """Close the logger's run after the last record of a job."""


@dataclass(frozen=True)
class Logger:
    """Kind of logger (`track.loggers`)."""

    title: str
    store: str
    """Import path of the `LoggerRun`, which is called with the run folder and the upload state."""
    package: str | None = None
    """Optional package that the logger needs; also the extra of megaptm that installs it. None if it needs none."""

    def open(self, run: Path, state: UploadState) -> LoggerRun:
        module, _, name = self.store.partition(":")
        store: LoggerRun = getattr(import_module(module), name)(run, state)
        return store


LOGGERS = {
    "mlflow": Logger("MLflow", "megaptm.track.store:MlflowRun"),
    "tensorboard": Logger("TensorBoard", "megaptm.track.tensorboard_files:TensorBoardFiles", "tensorboard"),
    "wandb": Logger("Weights & Biases", "megaptm.track.wandb_run:WandbRun", "wandb"),
    "csv": Logger("metrics.csv", "megaptm.track.csv_file:CsvFile"),
}


def refuse_missing_packages(loggers: Sequence[str]) -> None:
    """Raise `UserError` if the package of a logger is not installed."""
    for name in loggers:
        package = LOGGERS[name].package
        if package is not None and find_spec(package) is None:
            raise UserError(
                f"track.loggers ({name}) needs the package {package}: `pip install 'megaptm[{package}]'`, or remove "
                f"{name} from track.loggers."
            )
