"""Assembly of a run in one of its processes: what is opened, in which order, and what is written down."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megaptm import __version__
from megaptm.checkpoint.store import Checkpoint, Store
from megaptm.config import Config, load, resolve_model
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES
from megaptm.plan.count import count
from megaptm.resilience.events import Events, read_events
from megaptm.resilience.lock import RunLock
from megaptm.resilience.signals import StopRequest
from megaptm.spec import ModelSpec
from megaptm.train.environment import Environment, check_processes, worker_environment

CONFIG = "config.yaml"


def run_worker(folder: str) -> int:
    """Be one process of the run in `folder` until it ends; returns the exit code."""
    run = Path(folder)
    config = load(run / CONFIG)
    place = worker_environment()
    if place is None:
        raise UserError("RANK and WORLD_SIZE are not set: start a run with `megaptm train`, torchrun or srun.")
    check_processes(place, config.layout)
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        # Before the world is joined, so that a second job on the same folder fails alone and at once.
        lock = stack.enter_context(RunLock(run)) if place.rank == 0 else None
        return _Run(run, config, place, lock, stop).go()


@dataclass
class _Run:
    folder: Path
    config: Config
    place: Environment
    lock: RunLock | None
    """On rank 0."""
    stop: StopRequest

    def go(self) -> int:
        # Imported here: torch and megatron-core take seconds, and a mistake should not wait for them.
        from megaptm.parallel import state
        from megaptm.parallel.engine import Engine
        from megaptm.parallel.groups import close_groups, join
        from megaptm.parallel.world import from_rank_0, wait_for_all
        from megaptm.train.feed import Feed
        from megaptm.train.loop import Training, train
        from megaptm.train.reporting import Seconds, StepReport

        config, first = self.config, self.place.rank == 0
        spec, objective = resolve_model(config), OBJECTIVES[config.objective]
        events = Events(self.folder) if first else None
        join(rank=self.place.rank, world=self.place.world, local_rank=self.place.local_rank)
        token = from_rank_0(self.lock.token if self.lock else None)
        store = Store(
            self.folder,
            keep=config.checkpoint.keep,
            fence=self.lock.still_mine if self.lock else None,
            token=str(token),
            report=events.write if events else None,
        )
        newest = store.newest() if first else None
        start = from_rank_0(newest.step if newest else 0)
        engine = Engine(
            spec,
            config.layout,
            config.optimizer,
            losses=objective.losses,
            seed=config.train.seed,
            precision=config.train.precision,
        )
        feed = Feed(config, spec, engine.ranks)
        identity = _identity(spec, feed.tokenizer.fingerprint)
        if start:
            checkpoint = store.load(start)
            _refuse_another_model(checkpoint, identity)
            begun = time.monotonic()
            state.restore(engine, checkpoint.reader, step=start)
            if events:
                seconds = round(time.monotonic() - begun, 3)
                events.write("resume", step=start, checkpoint=checkpoint.folder.name, seconds=seconds, **self._shape())
        elif events:
            events.write("start", parameters=count(spec), **self._shape())
        report = StepReport(self.folder, config, spec, feed.train.shapes, start) if first else None
        seconds_spent = report.seconds if report else Seconds()
        if report and first:
            report.tracker.log_params(_flat(config.model_dump()) | {"parameters": count(spec)})
            feed.tokenizer.save(self.folder / "tokenizer")

        def save(step: int) -> None:
            begun = time.monotonic()
            if first:
                store.prepare(step)
            wait_for_all()
            store.write(step, self.place.rank, state.pieces(engine))
            wait_for_all()
            if first:
                progress = {
                    "samples": step * config.train.batch,
                    "cursors": feed.train.cursors(step * config.train.batch),
                }
                state_of_run = {**identity, **progress, "config": config.model_dump(), "version": __version__}
                committed = store.commit(step, state_of_run, ranks=self.place.world)
                seconds = time.monotonic() - begun
                assert events is not None
                assert report is not None
                events.write("checkpoint", step=step, bytes=committed.size, seconds=round(seconds, 3))
                report.saved(step, seconds)
            wait_for_all()

        code = 1
        status = "FAILED"
        try:
            code = train(
                Training(
                    config=config,
                    engine=engine,
                    batches=_announce_first(feed.steps(start), events, self.folder, start),
                    held_out=feed.held_out,
                    save=save,
                    stop=self.stop,
                    seconds=seconds_spent,
                    report=report,
                ),
                start=start,
            )
            status = "FINISHED" if code == 0 else "SCHEDULED"
        finally:
            feed.close()
            if events and report:
                if self.stop.name:
                    events.write("stop-signal", signal=self.stop.name)
                events.write("exit", code=code, **{k: round(v, 3) for k, v in asdict(seconds_spent).items()})
                report.close(status)
        close_groups()
        return code

    def _shape(self) -> dict[str, Any]:
        return {"layout": self.config.layout.model_dump(), "processes": self.place.world}


def _announce_first(steps: Any, events: Events | None, run: Path, start: int) -> Any:
    """The same steps; when the second is asked for, the first is done, and that is written down."""
    for number, batches in enumerate(steps):
        if number == 1 and events:
            launched = [event["time"] for event in read_events(run) if event["kind"] == "launch"]
            events.write(
                "first-step", step=start + 1, seconds=round(time.time() - launched[-1], 3) if launched else None
            )
        yield batches


def _identity(spec: ModelSpec, tokenizer: str) -> dict[str, Any]:
    """What must be the same for a checkpoint to be continued."""
    size = {name: value for name, value in asdict(spec.size).items() if name != "recipe"}
    return {
        "model": {"family": spec.name, **size, "vocabulary": spec.vocabulary, "context": spec.context},
        "tokenizer": tokenizer,
    }


def _refuse_another_model(checkpoint: Checkpoint, identity: dict[str, Any]) -> None:
    saved = checkpoint.state
    for name, value in identity["model"].items():
        if saved["model"].get(name) != value:
            raise UserError(
                f"{checkpoint.folder} is of another model: its {name} is {saved['model'].get(name)}, the config's is "
                f"{value}; choose another run=FOLDER or the config it was made with."
            )
    if saved["tokenizer"] != identity["tokenizer"]:
        raise UserError(
            f"{checkpoint.folder} was trained with another tokenizer than that of the corpora in data.mix: use corpora "
            f"built with {checkpoint.folder.parent.parent / 'tokenizer'}."
        )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
