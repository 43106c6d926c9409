"""`run/metrics.jsonl`: metrics of a run. Nothing is lost if the tracking server fails.

A line is one of

    {"time": seconds since 1970, "step": 10, "loss": 3.2, ...}     metrics; inf and nan are strings, as JSON lacks them
    {"time": ..., "params": {"layout.data": 2, ...}}
    {"time": ..., "artifact": "report/loss.png"}                   a file in the run folder
    {"time": ..., "status": "RUNNING"}                             MLflow status from now on

`run/track.json` records how much of it MLflow has; `run/track-NAME.json`, how much another logger has.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from megaptm.errors import UserError
from megaptm.storage import (
    JournalFile,
    is_number_or_nan,
    parse_journal,
    parse_json,
    regular_file,
    validate,
    write_atomically,
)

log = logging.getLogger(__name__)

FILE = "metrics.jsonl"
STATE = "track.json"
OTHER_STATE = "track-{}.json"
REMEDY = "remove it"
MAX_TIME = float(1 << 40)
"""Maximum time in the journal of metrics. Databases store 64 bits of milliseconds."""
MAX_STEP = 1 << 53
OTHER_FIELDS = {"params": dict, "artifact": str, "status": str}
"""Fields of the journal of metrics that are no numbers, and their types."""
STATUSES = ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")
"""MLflow's statuses of a run."""
OWN_METRICS = frozenset(
    (
        *("time", "step", "params", "artifact", "status", "loss", "loss_weight", "loss_scale", "learning_rate"),
        *(
            "gradient_norm",
            "weight_norm",
            "update_norm",
            "attention_logit_max",
            "tokens_per_second",
            "model_flops_per_second",
            "mfu",
            "peak_memory_bytes",
        ),
        *(
            "data_wait_seconds",
            "step_seconds",
            "seconds_left",
            "checkpoint_seconds",
            "gpu_idle_share",
            "rank_seconds",
            "validation_seconds",
            "effective_time",
        ),
        *("samples", "tokens", "validation", "baseline", "evaluation"),
    )
)
"""Names, or first parts of names, of metrics that a run itself records."""


class Journal(JournalFile):
    """Writer of a run's journal of metrics."""

    def __init__(self, run: Path) -> None:
        self.path = run / FILE
        super().__init__(self.path)

    def add(self, record: Mapping[str, Any]) -> None:
        self.append(record)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run in order: dictionaries with `time`, `step` and the numbers of that step.

    A step that was repeated after a restart occurs again; the later record is valid.
    """
    path = Path(run) / FILE
    if not path.exists():
        return []
    records = (parse_record(line) for line in regular_file(path).read_bytes().splitlines())
    return [
        {key: value for key, value in record.items() if key not in OTHER_FIELDS}
        for record in records
        if record is not None and "step" in record
    ]


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Parse one line of the journal of metrics, without fields of the wrong type, which would block the upload of later
    lines; None for a line truncated by a crash."""
    record = next(parse_journal(line), None)
    if record is None or record["time"] > MAX_TIME or (b"\\u" in line and not _can_be_encoded(record)):
        return None
    values = {
        key: float(value) if isinstance(value, str) and value in ("inf", "-inf", "nan") else value
        for key, value in record.items()
    }
    return {key: value for key, value in values.items() if _is_valid(key, value)}


def _is_valid(key: str, value: Any) -> bool:
    """Whether a field of the journal of metrics has the type that its readers and the loggers expect."""
    if key == "step":
        return type(value) is int and abs(value) < MAX_STEP
    if key in OTHER_FIELDS:
        return isinstance(value, OTHER_FIELDS[key]) and (key != "status" or value in STATUSES)
    return is_number_or_nan(value)


def _can_be_encoded(record: Mapping[str, Any]) -> bool:
    """Whether the names and texts of a record have no halves of surrogate pairs, which no logger can store."""
    try:
        json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(config=ConfigDict(extra="forbid"))
class UploadState:
    """State of the upload to MLflow or another logger, from which a restart continues."""

    uri: str | None
    experiment: str
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tag that identifies the MLflow run if the process dies after creating it and before writing this file. For
    another logger, the id of its run."""
    run_id: str | None = None
    experiment_id: str | None = None
    uploaded_bytes: Annotated[int, Field(ge=0)] = 0
    """Bytes of the journal of metrics that the logger has."""
    folder: str | None = None
    """Absolute path of the run folder; None before the first write."""
    inode: int | None = None
    """Inode of the run folder."""
    host: str | None = None
    """Machine that wrote the upload state."""
    parent: str | None = None
    """MLflow run of the run folder that this one was copied from."""
    logger: str = "mlflow"

    @classmethod
    def load(cls, run: Path, logger: str = "mlflow") -> UploadState | None:
        """Load the upload state of the last restart, if there was one; raise `UserError` if it is damaged."""
        path = _state_path(run, logger)
        try:
            content = regular_file(path).read_bytes()
        except FileNotFoundError:
            return None
        return validate(cls, parse_json(content, path, remedy=REMEDY), path, remedy=REMEDY)

    @classmethod
    def read(cls, run: Path, *, uri: str | None, experiment: str, logger: str = "mlflow") -> UploadState:
        """Return the upload state of the last restart, or a new one.

        The state is new if the URI changed, or if the folder is a copy of another run's. The logger then creates a new
        run, and gets the complete journal.
        """
        parent = None
        try:
            state = cls.load(run, logger)
        except UserError:
            log.warning("%s is damaged: the run is sent to %s again, as a new run", _state_path(run, logger), logger)
        else:
            if state is not None and (state.uri, state.experiment, state.logger) == (uri, experiment, logger):
                if not state.was_copied_to(run):
                    return state
                parent = state.run_id
                log.warning(
                    "%s is a copy of %s: it gets its own run in %s (parent: %s)", run, state.folder, logger, parent
                )
        state = cls(uri=uri, experiment=experiment, parent=parent, logger=logger)
        state.write(run)
        return state

    def was_copied_to(self, run: Path) -> bool:
        """Whether `run` is a copy of the run folder of this upload state, and thus a separate run.

        A folder that was moved, or is mounted at another path, is not a copy.
        """
        if self.folder is None or self.folder == str(run.resolve()):
            return False
        original = Path(self.folder)
        try:
            original_state = UploadState.load(original, self.logger)
        except (OSError, UserError):
            return not os.path.samefile(original, run) if original.exists() else True
        if original_state is not None and original_state.job == self.job:
            return not original.samefile(run)
        # The original is gone, or on another machine, where the same inode means the same folder.
        return self.host != socket.gethostname() and self.inode != run.stat().st_ino

    def write_successor(self, folder: Path) -> None:
        """Write the upload state of a new run whose parent is this one, to a folder that is renamed later."""
        state = UploadState(uri=self.uri, experiment=self.experiment, parent=self.run_id, logger=self.logger)
        write_atomically(_state_path(folder, self.logger), json.dumps(asdict(state), indent=1).encode())

    def write(self, run: Path) -> None:
        self.folder, self.inode, self.host = str(run.resolve()), run.stat().st_ino, socket.gethostname()
        write_atomically(_state_path(run, self.logger), json.dumps(asdict(self), indent=1).encode())


def _state_path(run: Path, logger: str) -> Path:
    return run / (STATE if logger == "mlflow" else OTHER_STATE.format(logger))
