"""Callbacks: code of the user that follows a run, records metrics, and may ask it to save or to stop."""

from __future__ import annotations

import copy
import json
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megaptm.config import Config
from megaptm.errors import UserError, nearest_name_advice
from megaptm.plugins import PluginError, load_plugin, plugin_error
from megaptm.track.journal import OWN_METRICS

if TYPE_CHECKING:
    from megaptm.parallel.step_result import StepResult
    from megaptm.train.metrics import StepReport

STATE = "callbacks"
"""Key of the callbacks' state in a checkpoint's state."""


@dataclass
class RunState:
    """State of a run that callbacks read, and their requests."""

    folder: Path
    config: Config
    step: int = 0
    """Number of finished steps."""
    learning_rate: float = 0.0
    """Learning rate of the last step; 0 before the first one of a job."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of this step that callbacks have recorded so far."""
    wants_save: bool = False
    stop_reason: str | None = None

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record numbers of this step, in the journal and all trackers. Slashes in a name make groups in trackers."""
        for name, value in metrics.items():
            if not isinstance(name, str) or not name or name.partition("/")[0] in OWN_METRICS:
                raise ValueError(f"the metric {name!r} is one of the run itself: choose another name, as my/{name}")
            self.metrics[name] = float(value)

    def request_save(self) -> None:
        """Save a checkpoint after this step."""
        self.wants_save = True

    def request_stop(self, reason: str) -> None:
        """Save and end the run after this step, as complete (exit code 0), so that no launcher starts it again."""
        self.stop_reason = self.stop_reason or str(reason)


class Callback:
    """Base class of callbacks; its methods do nothing.

    Rank 0 builds a callback once per job and calls its methods between steps, on the main thread. An exception ends the
    run after saving its last step, with exit code 2. In `on_stop`, or after the last save, it is only printed.
    """

    def on_run_start(self, run: RunState) -> None:
        """Handle the start of a job, before its first step; `run.step` is 0 or the step that the run continues from."""

    def on_step_end(self, run: RunState, result: StepResult) -> None:
        """Handle an optimizer step: `result` has its losses, gradient norm and numbers of labels."""

    def on_validation(self, run: RunState, losses: Mapping[str, float]) -> None:
        """Handle a validation: the mean of each loss, `loss`, their weighted sum, and `SET/loss` of validation sets."""

    def on_checkpoint(self, run: RunState, step: int, seconds: float) -> None:
        """Handle the commit of the checkpoint of `step`, after `seconds`. Training may already be at `run.step`."""

    def on_stop(self, run: RunState, code: int) -> None:
        """Handle the end of a job: exit code 0 if the run is complete, 75 if it will be continued, another after an
        error."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that checkpoints keep, as values of JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the checkpoint that the run continues from; called before `on_run_start`."""


METHODS = [name for name in vars(Callback) if name.startswith("on_")]


class Callbacks:
    """Callbacks of a run on rank 0: the report of its metrics first, then those of the user. Other ranks have none."""

    def __init__(self, run: Path, config: Config, users: Mapping[str, Callback]) -> None:
        self.state = RunState(run, config)
        self.report: StepReport | None = None
        self.error: PluginError | None = None
        """First error of a user's callback, which ends the run. Cleared when the training loop raises it."""
        self.committed: deque[tuple[int, float]] = deque()
        """Step and seconds of new checkpoints, added by the thread that saves."""
        self._users = users

    def run_start(self, step: int, state: Mapping[str, Any]) -> None:
        """Start or continue at `step` with the callbacks' state from a checkpoint."""
        self.state.step = step
        for name, callback in self._users.items():
            if name in state:
                self._call_user(name, callback, "load_state_dict", state[name])
        self._call_callbacks("on_run_start")

    def step_end(self, step: int, rate: float, result: StepResult) -> None:
        self.state.step, self.state.learning_rate = step, rate
        self.report_checkpoints()
        self._call_callbacks("on_step_end", result)

    def validation(self, losses: Mapping[str, float]) -> None:
        self._call_callbacks("on_validation", losses)

    def report_checkpoints(self) -> None:
        """Report the checkpoints committed since the last call."""
        while self.committed:
            self._call_callbacks("on_checkpoint", *self.committed.popleft())

    def take_requests(self) -> tuple[bool, bool]:
        """Return whether callbacks request the end of the run as complete, and whether they request a checkpoint. The
        request for a checkpoint is cleared."""
        wants_save, self.state.wants_save = self.state.wants_save, False
        return self.state.stop_reason is not None, wants_save

    def take_error(self) -> PluginError | None:
        """Return the error of a callback, if there is one, to raise it; `stop` prints only an error that was not
        taken."""
        error, self.error = self.error, None
        return error

    def stop(self, code: int) -> None:
        """Report the end of the job. Errors of callbacks are only printed, because the run is saved."""
        self.report_checkpoints()
        self._call_callbacks("on_stop", code)
        if self.error is not None:
            print(f"{self.error.traceback}warning: {self.error}", file=sys.stderr, flush=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the user's callbacks for a checkpoint."""
        states: dict[str, Any] = {}
        for name, callback in self._users.items():
            try:
                states[name] = json.loads(json.dumps(callback.state_dict()))
            except Exception as error:
                self._record_failure(name, "state_dict", error)
        return states

    def _call_callbacks(self, method: str, *values: object) -> None:
        if self.report is not None:
            getattr(self.report, method)(self.state, *values)
        for name, callback in self._users.items():
            self._call_user(name, callback, method, self.state, *values)
        if self.report is not None and self.state.metrics:
            self.report.tracker.log_metrics(self.state.step, self.state.metrics)
            self.state.metrics = {}

    def _call_user(self, name: str, callback: Callback, method: str, *values: object) -> None:
        try:
            getattr(callback, method)(*values)
        except (Exception, SystemExit) as error:
            self._record_failure(name, method, error)

    def _record_failure(self, name: str, method: str, error: BaseException) -> None:
        self.error = self.error or plugin_error(f"callback {name}: {method}", error)


def load_callbacks(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Callback]:
    """Import and build the callbacks of a config: name -> callback. Mistakes raise `UserError`."""
    return {name: _build_callback(name, options) for name, options in entries.items()}


def _build_callback(name: str, options: Mapping[str, Any]) -> Callback:
    kind = load_plugin(name, "callbacks", "class")
    if not isinstance(kind, type) or not issubclass(kind, Callback):
        raise UserError(f"callbacks ({name}) must be a subclass of megaptm.Callback: derive it.")
    for method in (method for method in dir(kind) if method.startswith("on_") and method not in METHODS):
        raise UserError(f"callbacks ({name}): {method} is never called; {nearest_name_advice(method, METHODS)}")
    try:
        return kind(**copy.deepcopy(dict(options)))
    except (Exception, SystemExit) as error:
        raise plugin_error(f"callbacks ({name})", error) from None
