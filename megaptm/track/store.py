"""MLflow run of a run folder, reopened by every restart. Only the upload thread imports this module."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megaptm.credentials import brief_message
from megaptm.errors import UserError
from megaptm.track.journal import FILE, UploadState, parse_record
from megaptm.track.uri import ARTIFACTS, curves_page, default_tracking_uri, refuse_foreign_server, refuse_other_scheme

# MLflow reads these when it is imported or called. With its defaults, one call to a dead server blocks for four
# minutes.
for name, value in {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "DO_NOT_TRACK": "true",
}.items():
    os.environ.setdefault(name, value)

from mlflow import MlflowClient  # noqa: E402
from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID  # noqa: E402

from megaptm.track.database import ensure_database  # noqa: E402

logger = logging.getLogger(__name__)
logging.getLogger("alembic").setLevel(logging.ERROR)  # suppresses a line per table of a new database

JOB_TAG = "megaptm.job"
# Description on a run's page. The tag lets the experiment open on its runs instead of on chat traces.
NOTE_TAG = "mlflow.note.content"
NOTE = "[Curves]({curves}) of the run in `{run}`"
KIND_TAG = ("mlflow.experimentKind", "custom_model_development")
INFINITE_TAG = "infinite."
INVALID_CHARACTERS = re.compile(r"[^\w.\-/ :]")
"""Characters that MLflow does not allow in the keys of metrics and parameters."""
MAX_KEY_LENGTH = 240
"""Maximum length of an MLflow key. MLflow allows 250 characters; tags need some of them for a prefix."""
REJECTION_CODES = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")
METRICS_PER_CALL = 1000
PARAMS_PER_CALL = 100
MAX_PARAM_LENGTH = 6000


class MlflowRun:
    """MLflow run of a run folder."""

    def __init__(self, run: Path, state: UploadState) -> None:
        self._run = run
        uri = state.uri or default_tracking_uri(run)
        refuse_other_scheme(uri)
        refuse_foreign_server(uri)
        ensure_database(uri)
        self._client = MlflowClient(tracking_uri=uri)
        self._id = self._open_run(state)
        self._shortened: set[str] = set()
        self._infinite: set[str] = set()

    def send(self, records: Sequence[dict[str, Any]]) -> None:
        """Send metrics to the MLflow run. Repeating an upload has no effect: MLflow identifies a point by key, time,
        step and value.

        A record that MLflow rejects is skipped with a warning, so that it does not block later ones.
        """
        try:
            self._send_records(records)
        except MlflowException as error:
            if error.error_code not in REJECTION_CODES or not self._is_active(self._id):
                raise
            if len(records) == 1:
                logger.warning("MLflow rejected a record of %s: %s", self._run / FILE, brief_message(error))
                return
            for record in records:
                self.send([record])

    def close(self) -> None: ...

    def _send_records(self, records: Sequence[dict[str, Any]]) -> None:
        self._warn_of_shortened(records)
        metrics = [metric for record in records if "step" in record for metric in _to_metrics(record)]
        for start in range(0, len(metrics), METRICS_PER_CALL):
            self._client.log_batch(self._id, metrics=metrics[start : start + METRICS_PER_CALL])
        self._tag_infinite(records)
        for record in records:
            if "params" in record:
                self._send_params(
                    {_mlflow_key(key): str(value)[:MAX_PARAM_LENGTH] for key, value in record["params"].items()}
                )
            if "artifact" in record:
                self._send_file(self._run / record["artifact"])
            if "status" in record:
                self._send_status(record["status"], _to_milliseconds(record))

    def _warn_of_shortened(self, records: Sequence[dict[str, Any]]) -> None:
        """Warn once about each metric whose name is shortened for MLflow."""
        names = [name for record in records for name in (*record, *record.get("params", ()))]
        for name in dict.fromkeys(name for name in names if len(name) > MAX_KEY_LENGTH):
            if name not in self._shortened:
                self._shortened.add(name)
                logger.warning("MLflow allows shorter names: it has %s... as %s", name[:40], _mlflow_key(name))

    def _tag_infinite(self, records: Sequence[dict[str, Any]]) -> None:
        """Set the tag `infinite.NAME` to the value and step at which a metric is first infinite, because MLflow stores
        NaN there."""
        for record in records:
            for key, value in record.items() if "step" in record else ():
                if isinstance(value, float) and math.isinf(value) and key not in self._infinite:
                    tag = INFINITE_TAG + _mlflow_key(key)
                    if tag not in self._client.get_run(self._id).data.tags:
                        self._client.set_tag(self._id, tag, f"{value} at step {record['step']}")
                    self._infinite.add(key)

    def _open_run(self, state: UploadState) -> str:
        """Return the id of the MLflow run: the stored one, else one found by its tag (created but not stored), else a
        new one."""
        if state.run_id is not None and (experiment := self._is_active(state.run_id)):
            state.experiment_id = experiment
            return state.run_id
        experiment = self._find_or_create_experiment(state)
        matches = self._client.search_runs([experiment], filter_string=f"tags.`{JOB_TAG}` = '{state.job}'")
        run = matches[0] if matches else self._create_run(experiment, state)
        if state.run_id is not None:
            logger.warning("MLflow run %s was deleted: all of %s goes to a new one", state.run_id, self._run / FILE)
            state.uploaded_bytes = 0
        state.run_id, state.experiment_id = run.info.run_id, experiment
        self._client.set_tag(
            state.run_id, NOTE_TAG, NOTE.format(curves=curves_page(experiment, state.run_id), run=self._run)
        )
        state.write(self._run)
        return state.run_id

    def _create_run(self, experiment: str, state: UploadState) -> Run:
        """Create the MLflow run. Its start time is that of its journal, since the first upload may be much later."""
        with (self._run / FILE).open("rb") as journal:
            first = parse_record(journal.readline()) or {}
        start_time = _to_milliseconds(first) if "time" in first else None
        tags = {JOB_TAG: state.job}
        if state.parent is not None and self._is_active(state.parent):
            tags[MLFLOW_PARENT_RUN_ID] = state.parent
        return self._client.create_run(experiment, start_time=start_time, tags=tags, run_name=self._run.name)

    def _is_active(self, run_id: str) -> str | None:
        """Return the experiment of an MLflow run; None if MLflow does not have the run or it was deleted."""
        try:
            info = self._client.get_run(run_id).info
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return str(info.experiment_id) if info.lifecycle_stage == LifecycleStage.ACTIVE else None

    def _find_or_create_experiment(self, state: UploadState) -> str:
        """Return the MLflow experiment with the configured name, creating it if necessary. If it was deleted, use a
        numbered name.

        Restoring it would also restore its runs.
        """
        # A server decides where files are stored; for the default database they are beside it.
        artifacts = None if state.uri is not None else (self._run.parent / ARTIFACTS).as_uri()
        for name in (state.experiment, *(f"{state.experiment}-{number}" for number in range(2, 1000))):
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                try:
                    created = self._client.create_experiment(name, artifact_location=artifacts, tags=dict([KIND_TAG]))
                except MlflowException:  # another run created it at the same time
                    experiment = self._client.get_experiment_by_name(name)
                    if experiment is None:
                        raise
                else:
                    return str(created)
            if experiment.lifecycle_stage == LifecycleStage.ACTIVE:
                return str(experiment.experiment_id)
            logger.warning("MLflow experiment %s was deleted: the next numbered name is used", name)
        raise UserError(f"MLflow experiments {state.experiment} to {name} were all deleted: set track.experiment.")

    def _send_status(self, status: str, moment: int) -> None:
        """Set the status of the MLflow run. The end time is that of training, and not of the upload or a later
        evaluation."""
        if status == "RUNNING":
            self._client.update_run(self._id, status=status)
        else:
            self._client.set_terminated(self._id, status=status, end_time=moment)

    def _send_params(self, params: dict[str, str]) -> None:
        """Send parameters of the run to MLflow. MLflow parameters are immutable, so a changed value (the layout after a
        restart) becomes a tag."""
        data = self._client.get_run(self._id).data
        sent = data.params
        new = [Param(key, value) for key, value in params.items() if key not in sent]
        latest = {key: data.tags.get(f"latest.{key}", sent.get(key, value)) for key, value in params.items()}
        changed = [RunTag(f"latest.{key}", value) for key, value in params.items() if latest[key] != value]
        for start in range(0, len(new), PARAMS_PER_CALL):
            self._client.log_batch(self._id, params=new[start : start + PARAMS_PER_CALL])
        for start in range(0, len(changed), PARAMS_PER_CALL):
            self._client.log_batch(self._id, tags=changed[start : start + PARAMS_PER_CALL])

    def _send_file(self, path: Path) -> None:
        # An untrusted journal may name any file of the user, or a link to one.
        # Files removed in the meantime are skipped.
        if os.path.isfile(path) and path.resolve().is_relative_to(self._run.resolve()):
            self._client.log_artifact(self._id, str(path))


def _to_metrics(record: dict[str, Any]) -> list[Metric]:
    moment = _to_milliseconds(record)
    return [
        # MLflow would store infinity as 1.8e308, which makes a curve unreadable; NaN leaves a gap. Journal and a tag
        # keep it.
        Metric(_mlflow_key(key), float(value) if math.isfinite(value) else math.nan, moment, record["step"])
        for key, value in record.items()
        if key not in ("time", "step") and isinstance(value, (int, float))
    ]


def _to_milliseconds(record: dict[str, Any]) -> int:
    """Return a time as milliseconds since 1970, as MLflow expects."""
    return round(1000 * record["time"])


def _mlflow_key(key: str) -> str:
    """Return a key that MLflow allows; loss names of a user's objective may be longer, or contain other characters.

    MLflow also rejects names that are no normal paths, such as `a//b` and `../a`.
    """
    name = INVALID_CHARACTERS.sub("_", key)
    if name.startswith((".", "/")) or posixpath.normpath(name) != name:
        name = "_" + name.replace("/", "_")
    if len(name) <= MAX_KEY_LENGTH:
        return name
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return f"{name[: MAX_KEY_LENGTH - len(digest) - 1].rstrip('/')}-{digest}"
