"""The run's journal, `run/events.jsonl`: one line for everything that happens to a run, whoever writes it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from megaptm.checkpoint.committed import committed
from megaptm.storage import JournalFile, is_number, journal_lines, now, plain_file

logger = logging.getLogger(__name__)

FILE = "events.jsonl"


@dataclass(frozen=True, kw_only=True)
class Event:
    """A line of the journal: `time` (seconds since 1970), `kind` and the fields of one of the classes below.

    Whoever writes makes an instance, so that a kind or a field that nobody declared does not pass the type checker.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str) -> None:
        taken = {other.kind for other in Event.__subclasses__() if other is not cls}
        assert kind not in taken, f"two kinds of event are called {kind}"
        cls.kind = kind


@dataclass(frozen=True, kw_only=True)
class LaunchEvent(Event, kind="launch"):
    """The command started."""

    command: Sequence[str]
    version: str
    host: str
    pid: int


@dataclass(frozen=True, kw_only=True)
class ImportEvent(Event, kind="import"):
    """The run was made from a model of another library, its step 0."""

    source: str
    parameters: int
    fresh: Sequence[str] = ()
    """Heads that the model came without."""


@dataclass(frozen=True, kw_only=True)
class StartEvent(Event, kind="start"):
    """Training begins at step 0."""

    parameters: int
    layout: Mapping[str, Any]
    processes: int


@dataclass(frozen=True, kw_only=True)
class ResumeEvent(Event, kind="resume"):
    """Training continues from a checkpoint, which took `seconds` to load."""

    step: int
    checkpoint: str
    seconds: float
    layout: Mapping[str, Any]
    processes: int


@dataclass(frozen=True, kw_only=True)
class FirstStepEvent(Event, kind="first-step"):
    """The first step since the start or resume is done, `seconds` after the command started, where that is known."""

    step: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class EpochEvent(Event, kind="epoch"):
    """A corpus begins to be read again: its second epoch is number 2."""

    step: int
    corpus: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class ObjectiveEvent(Event, kind="objective"):
    """The config asks for other shares of tasks or weights of losses than before, for steps after `step`."""

    step: int
    before: str | Mapping[str, Any]
    after: str | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScheduleEvent(Event, kind="schedule"):
    """The config gives the steps after `step` another learning rate than the config before: keys and rates of both."""

    step: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    rate_before: float
    rate_after: float


@dataclass(frozen=True, kw_only=True)
class MovedEvent(Event, kind="moved"):
    """A corpus, or a file of a task, of the same content is read from another path."""

    step: int
    before: str
    after: str


@dataclass(frozen=True, kw_only=True)
class WeighingEvent(Event, kind="weighing"):
    """A step is the first with other shares of tasks, or weights of losses; those that are other ones."""

    step: int
    shares: Mapping[str, float]
    weights: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CheckpointEvent(Event, kind="checkpoint"):
    """A checkpoint is committed, `seconds` after the end of its step, whether training waited or not."""

    step: int
    bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class NotSavedEvent(Event, kind="not-saved"):
    """The storage failed while the checkpoint of a step was written, which is given up; training goes on."""

    step: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class DamagedCheckpointEvent(Event, kind="damaged-checkpoint"):
    """A checkpoint does not match its hashes and is passed over; it lies in `kept`."""

    step: int
    problem: str
    kept: str


@dataclass(frozen=True, kw_only=True)
class AbandonedCheckpointEvent(Event, kind="abandoned-checkpoint"):
    """A checkpoint had read text that `train.skip` now passes over; it lies in `kept`, and the run goes back."""

    step: int
    kept: str


@dataclass(frozen=True, kw_only=True)
class StopSignalEvent(Event, kind="stop-signal"):
    """The run was asked to stop."""

    signal: str


@dataclass(frozen=True, kw_only=True)
class WorkerLostEvent(Event, kind="worker-lost"):
    """A worker process ended before its time: with an exit code, or minus the number of a signal."""

    rank: int
    code: int
    problem: str


@dataclass(frozen=True, kw_only=True)
class HangEvent(Event, kind="hang"):
    """The run stood still for `seconds` because of one rank, and was ended; its last words are a Python stack."""

    rank: int
    phase: str
    step: int
    seconds: float
    problem: str
    stack: str


@dataclass(frozen=True, kw_only=True)
class InterruptEvent(Event, kind="interrupt"):
    """Somebody pressed Ctrl-C twice: the run was left at once, without saving, as they wished."""

    signal: str = "SIGINT"


@dataclass(frozen=True, kw_only=True)
class NodeLostEvent(Event, kind="node-lost"):
    """A machine was lost while it had ranks of the run."""

    node: str
    ranks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class RestartEvent(Event, kind="restart"):
    """The launcher starts the run once more, for the `start`-th time."""

    start: int
    layout: Mapping[str, Any]
    processes: int


@dataclass(frozen=True, kw_only=True)
class EvaluationEvent(Event, kind="evaluation"):
    """The model was measured on held-out text."""

    step: int
    rows: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class ExitEvent(Event, kind="exit"):
    """Training ends; the seconds that each part of it took."""

    code: int
    productive: float
    data: float
    validation: float
    checkpoint: float


NUMBERS = {
    event.kind: [field.name for field in fields(event) if field.type in ("int", "float") and field.name != "loss"]
    for event in Event.__subclasses__()
}
"""Kind -> fields that who reads the journal adds up or compares. Not a loss: that is shown, and may be infinite."""
BEGINNINGS = (LaunchEvent.kind, RestartEvent.kind)
"""Kinds with which a job begins: the time from there to the first step is its start-up."""


class Events:
    """Appends to the journal, with others.

    `fence` is called before each event, and raises where the run has become another job's.
    """

    def __init__(self, run: Path, *, fence: Callable[[], None] | None = None) -> None:
        self._fence = fence
        self._path, self._warned = Path(run) / FILE, False
        self._file = JournalFile(self._path)

    def write(self, event: Event) -> None:
        """Add one event. One that cannot be written now is kept, and written before the next or by `close`."""
        if self._fence is not None:
            self._fence()
        try:
            self._file.append({"kind": event.kind, **vars(event)})
        except OSError as error:
            if not self._warned:
                logger.warning("%s cannot be written (%s): events are kept in memory until it can", self._path, error)
            self._warned = True

    def close(self) -> None:
        """An `OSError` if an event still cannot be written."""
        self._file.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_events(run: Path) -> list[dict[str, Any]]:
    """All events of a run in the order written; lines torn by a crash are left out, no journal means no events."""
    path = Path(run) / FILE
    if not path.exists():
        return []
    return [event for event in journal_lines(plain_file(path).read_bytes()) if _is_sound(event)]


def _is_sound(event: Mapping[str, Any]) -> bool:
    """Whether a line names its kind, and what that kind says are numbers are numbers."""
    kind = event.get("kind")
    numbers = NUMBERS.get(kind, ()) if isinstance(kind, str) else None
    return numbers is not None and all(is_number(event[name]) for name in numbers if name in event)


def last_saved(run: Path) -> int:
    """The newest step of any checkpoint; 0 before the first.

    A job may be killed between committing one and writing that down: what lies there counts as well.
    """
    written = (event["step"] for event in read_events(run) if event["kind"] == CheckpointEvent.kind and "step" in event)
    return max([*written, *committed(run)], default=0)


def seconds_since_launch(run: Path) -> float | None:
    """Seconds since the command of the current job began; None if the journal does not say."""
    launches = [event["time"] for event in read_events(run) if event["kind"] in BEGINNINGS]
    return round(max(0.0, now() - launches[-1]), 3) if launches else None


def hung_again(run: Path) -> bool:
    """Whether nothing was saved between the last two hangs: who starts such a run again does so in vain."""
    kinds = [event["kind"] for event in read_events(run) if event["kind"] in (HangEvent.kind, CheckpointEvent.kind)]
    return kinds[-2:] == [HangEvent.kind, HangEvent.kind]
