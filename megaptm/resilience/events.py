"""Journal of a run, `run/events.jsonl`: one line per event, from any process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, dataclass_transform

from megaptm.checkpoint.committed import find_committed
from megaptm.storage import JournalFile, is_finite_number, now, parse_journal, regular_file

logger = logging.getLogger(__name__)

FILE = "events.jsonl"


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Event:
    """Event in a run's journal: `time` (seconds since 1970), `kind`, and the fields of one of the classes below.

    Events are instances of these classes, so that the type checker rejects undeclared kinds and fields. Each class is
    made a frozen dataclass.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, *, kind: str) -> None:
        kinds = {other.kind for other in Event.__subclasses__() if other is not cls}
        assert kind not in kinds, f"two kinds of event are called {kind}"
        cls.kind = kind
        dataclass(frozen=True, kw_only=True)(cls)


class LaunchEvent(Event, kind="launch"):
    """A command of the run started."""

    command: Sequence[str]
    version: str
    host: str
    pid: int


class ImportEvent(Event, kind="import"):
    """The run was created from another library's model, as step 0."""

    source: str
    parameters: int
    new_heads: Sequence[str] = ()
    """Heads that the imported model lacked, so they have initial values."""


class StartEvent(Event, kind="start"):
    """Training starts at step 0."""

    parameters: int
    layout: Mapping[str, Any]
    processes: int


class ResumeEvent(Event, kind="resume"):
    """Training continues from a checkpoint, which took `seconds` to load."""

    step: int
    checkpoint: str
    seconds: float
    layout: Mapping[str, Any]
    processes: int


class FirstStepEvent(Event, kind="first-step"):
    """The first step after a start or resume is done, `seconds` after the command started, if known, and `step_seconds`
    after the wait for its data, or a late validation, began."""

    step: int
    seconds: float | None
    step_seconds: float = 0.0


class EpochEvent(Event, kind="epoch"):
    """A corpus starts another epoch. Its second epoch has number 2."""

    step: int
    corpus: str
    epoch: int


class ObjectiveEvent(Event, kind="objective"):
    """The config has other shares of tasks, or weights of losses, than before, for steps after `step`."""

    step: int
    before: str | Mapping[str, Any]
    after: str | Mapping[str, Any]


class ScheduleEvent(Event, kind="schedule"):
    """The config changes the learning rate of steps after `step`. Records keys and rates before and after."""

    step: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    rate_before: float
    rate_after: float


class ChangeEvent(Event, kind="change"):
    """The config changes the run for steps after `step`. Records the values of the changed keys."""

    step: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]


class DataMovedEvent(Event, kind="data-moved"):
    """A corpus, or a file of a task, with the same content is read from another path."""

    step: int
    before: str
    after: str


class WeightsEvent(Event, kind="weights"):
    """First step with changed shares of tasks or weights of losses. Has only the changed ones."""

    step: int
    shares: Mapping[str, float]
    weights: Mapping[str, float]


class CheckpointEvent(Event, kind="checkpoint"):
    """A checkpoint is committed, `seconds` after the end of its step, whether or not training waited."""

    step: int
    bytes: int
    seconds: float


class HubExportEvent(Event, kind="hub-export"):
    """A Hugging Face copy of a checkpoint was written in `seconds`, and pushed if the config says so. Records why, if
    it failed."""

    step: int
    seconds: float
    problem: str | None = None


class UploadEvent(Event, kind="upload"):
    """A checkpoint was copied to `checkpoint.upload_to` in `seconds`. Records why, if it failed."""

    step: int
    seconds: float
    problem: str | None = None


class NotSavedEvent(Event, kind="not-saved"):
    """Writing the checkpoint of a step failed. It is discarded, and training continues."""

    step: int
    problem: str


class LateValidationEvent(Event, kind="late-validation"):
    """A job measured the validation losses of a checkpoint that was saved without them. `recipes`: hashes of what the
    losses depend on besides the weights."""

    step: int
    losses: Mapping[str, float]
    recipes: Mapping[str, str]


class SkippedStepEvent(Event, kind="skipped-step"):
    """A step in fp16 had infinite gradients at this loss scale. It changed no weight, and the scale was halved."""

    step: int
    loss_scale: float


class SpikeEvent(Event, kind="spike"):
    """The loss or the gradient norm of a step was far above those of the steps before."""

    step: int
    description: str
    skipped: bool
    """Whether the step changed no weight."""
    samples: Sequence[int] = ()
    """Indexes of the first and the last sample of the step, in the order of the run."""


class StragglerEvent(Event, kind="straggler"):
    """Ranks were slow in several measurements in a row. Records the seconds of the slowest one's own work of a step,
    its wait for data, and the median of its pipeline stage."""

    step: int
    ranks: Sequence[int]
    hosts: Sequence[str]
    seconds: float
    data_seconds: float
    median_seconds: float


class GpuFaultEvent(Event, kind="gpu-fault"):
    """NVML reported a fault of the GPU of a rank."""

    rank: int
    gpu: int
    host: str
    problem: str


class DamagedCheckpointEvent(Event, kind="damaged-checkpoint"):
    """A checkpoint does not match its hashes and is skipped. It was moved to `path`."""

    step: int
    problem: str
    path: str


class AbandonedCheckpointEvent(Event, kind="abandoned-checkpoint"):
    """A checkpoint was trained on text that `train.skip_batches` now skips. It was moved to `path`, and the run
    continues from an earlier one."""

    step: int
    path: str


class BackEvent(Event, kind="back"):
    """The run returned to the checkpoint of a step; later steps, up to `from_step`, are abandoned."""

    step: int
    from_step: int
    skip: int = 0
    """Number of batches that are skipped before the next step."""
    spike: str | None = None
    """Spike after which the run returned automatically."""
    samples: Sequence[int] = ()
    """Indexes of the first and the last sample that are skipped because of the spike."""


class BranchEvent(Event, kind="branch"):
    """The run was created as a branch of another, from the checkpoint of a step there."""

    step: int
    run: str
    weights_only: bool


class ProfileEvent(Event, kind="profile"):
    """Steps `first` to `last` were profiled, into files of the run folder. Records the share of that time in which the
    GPU was idle, if there is one, and why ranks could not write their files."""

    first: int
    last: int
    files: Sequence[str]
    gpu_idle_share: float | None
    problems: Sequence[str]


class StopSignalEvent(Event, kind="stop-signal"):
    """The run received a signal to stop."""

    signal: str


class StopRequestEvent(Event, kind="stop-request"):
    """A callback, or `train.stop`, ended the run after `step`, as complete."""

    step: int
    reason: str


class WorkerLostEvent(Event, kind="worker-lost"):
    """A training process exited unexpectedly, with an exit code or minus the number of a signal."""

    rank: int
    code: int
    problem: str
    node: str | None = None
    """Node on which the process was killed or its device failed, if its launcher knows it."""


class HangEvent(Event, kind="hang"):
    """The run made no progress for `seconds` because of one rank, and was ended. Records the Python stack of that
    rank."""

    rank: int
    phase: str
    step: int
    seconds: float
    problem: str
    stack: str
    node: str | None = None
    """Node of that rank, if it is known, and no rank of another node may be the cause."""


class InterruptEvent(Event, kind="interrupt"):
    """The user pressed Ctrl-C twice, so the run exited immediately without saving."""

    signal: str = "SIGINT"


class NodeLostEvent(Event, kind="node-lost"):
    """A node with ranks of the run was lost."""

    node: str
    ranks: Sequence[int]


class NodeExcludedEvent(Event, kind="node-excluded"):
    """Later starts of this job do not use a node, where ranks crashed or hung repeatedly."""

    node: str


class RestartEvent(Event, kind="restart"):
    """The launcher starts the run again, for the `start`-th time, with another layout if it names one."""

    start: int
    layout: Mapping[str, Any] | None = None
    processes: int | None = None


class EvaluationEvent(Event, kind="evaluation"):
    """The model was evaluated on held-out text."""

    step: int
    samples: int
    loss: float


class ExitEvent(Event, kind="exit"):
    """Training ends. Records the seconds spent on each part."""

    code: int
    productive: float
    data: float
    validation: float
    checkpoint: float
    callbacks: float
    shutdown: float = 0.0


NUMBERS = {
    event.kind: [
        field.name
        for field in fields(event)  # type: ignore[arg-type]  # a dataclass, as all subclasses
        if field.type in ("int", "float") and field.name != "loss"
    ]
    for event in Event.__subclasses__()
}
"""Fields of events that readers add or compare, so they must be finite, by kind of event. Losses are excluded: they may
be infinite."""
START_KINDS = (LaunchEvent.kind, RestartEvent.kind)
"""Event kinds that start a job. The time from there to the first step is its start-up."""


class Events:
    """Writer of a run's journal of events, to which several processes may append.

    `fence` is called before each event. It raises if another job has taken over the run.
    """

    def __init__(self, run: Path, *, fence: Callable[[], None] | None = None) -> None:
        self._fence = fence
        self._path, self._warned = Path(run) / FILE, False
        self._file = JournalFile(self._path)

    def write(self, event: Event) -> None:
        """Append an event to the run's journal. If it cannot be written now, it is written before the next one or by
        `close`."""
        if self._fence is not None:
            self._fence()
        try:
            self._file.append({"kind": event.kind, **vars(event)})
        except OSError as error:
            if not self._warned:
                logger.warning("%s cannot be written (%s): events are written later", self._path, error)
            self._warned = True

    def close(self) -> None:
        """Close the journal of events; raise `OSError` if an event still cannot be written."""
        self._file.close()

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def record_events(run: Path, *events: Event) -> None:
    """Append events about a failure to a run's journal. They are lost if its disk fails, which must not change the exit
    code or prevent a restart."""
    with suppress(OSError), Events(run) as journal:
        for event in events:
            journal.write(event)


def read_events(run: Path) -> list[dict[str, Any]]:
    """Return all events of a run in order. Lines truncated by a crash are skipped; without a journal there are none."""
    path = Path(run) / FILE
    if not path.exists():
        return []
    return [event for event in parse_journal(regular_file(path).read_bytes()) if _is_valid(event)]


def _is_valid(event: Mapping[str, Any]) -> bool:
    """Whether a line of the journal has a known event kind and valid numbers."""
    kind = event.get("kind")
    numbers = NUMBERS.get(kind, ()) if isinstance(kind, str) else None
    return numbers is not None and all(is_finite_number(event[name]) for name in numbers if name in event)


def last_saved_step(run: Path) -> int:
    """Return the newest step of any checkpoint of a run; 0 before the first. Abandoned steps do not count.

    Counts committed checkpoints in the folder, too, because a job may be killed before it records a commit.
    """
    newest = 0
    for event in (event for event in read_events(run) if "step" in event):
        if event["kind"] == CheckpointEvent.kind:
            newest = max(newest, event["step"])
        elif event["kind"] == BackEvent.kind:
            newest = min(newest, event["step"])
    return max([newest, *find_committed(run)])


def seconds_since_launch(run: Path) -> float | None:
    """Return the seconds since the command of the current job started; None if the journal does not contain it."""
    launches = [event["time"] for event in read_events(run) if event["kind"] in START_KINDS]
    return round(max(0.0, now() - launches[-1]), 3) if launches else None


def restarts_since_saved(run: Path) -> int:
    """Return the number of restarts of a run after hangs and lost processes, since its last checkpoint, or since the
    command that started it."""
    restarts, failed = 0, False
    for kind in (event["kind"] for event in read_events(run)):
        if kind in (LaunchEvent.kind, CheckpointEvent.kind):
            restarts, failed = 0, False
        elif kind in (HangEvent.kind, WorkerLostEvent.kind):
            failed = True
        elif kind == RestartEvent.kind:
            restarts, failed = restarts + failed, False
    return restarts


def has_rolled_back(run: Path) -> bool:
    """Whether the last start of a run ended because it automatically returned to a checkpoint."""
    return is_newest_event(run, BackEvent.kind, START_KINDS)


def is_newest_event(run: Path, kind: str, kinds: Collection[str]) -> bool:
    """Whether the newest event of these kinds in the journal is of kind `kind`."""
    known = [event["kind"] for event in read_events(run) if event["kind"] in (*kinds, kind)]
    return known[-1:] == [kind]


def hung_twice_without_saving(run: Path) -> bool:
    """Whether no checkpoint was saved between the last two hangs of a run, so that another restart would be useless."""
    kinds = [event["kind"] for event in read_events(run) if event["kind"] in (HangEvent.kind, CheckpointEvent.kind)]
    return kinds[-2:] == [HangEvent.kind, HangEvent.kind]
