"""Metrics of each training step, written by rank 0: to the terminal (as a bar or lines), the journal and MLflow."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from megaptm.config import Config
from megaptm.config.yamls import flatten_keys
from megaptm.errors import printable
from megaptm.mixture import short_names
from megaptm.objectives import BaseObjective, Composed, loss_weights_at
from megaptm.objectives.composed import values_by_step
from megaptm.plan.count import count_parameters, step_flops
from megaptm.report.terminal import format_duration
from megaptm.resilience.events import (
    EpochEvent,
    Events,
    FirstStepEvent,
    ProfileEvent,
    SkippedStepEvent,
    SpikeEvent,
    StopRequestEvent,
    WeightsEvent,
    read_events,
    seconds_since_launch,
)
from megaptm.run.changes import name_corpora, recorded_changes
from megaptm.run.folder import CONFIG
from megaptm.run.time_spent import EffectiveTime
from megaptm.spec import LayerlessSpec, ModelSpec
from megaptm.track import Tracker, view_instructions
from megaptm.track.loggers import LOGGERS
from megaptm.train.batch_source import Samples
from megaptm.train.callbacks import Callback, RunState
from megaptm.train.device_use import peak_memory_bytes
from megaptm.train.time_left import TimeLeft
from megaptm.train.token_count import TokenCount

if TYPE_CHECKING:
    from megaptm.parallel.step_result import StepResult
    from megaptm.train.profiler import StepTrace
    from megaptm.train.stragglers import RankTimes


@dataclass
class SecondsSpent:
    """Seconds that a training process has spent so far, by purpose."""

    productive: float = 0.0
    data: float = 0.0
    validation: float = 0.0
    checkpoint: float = 0.0
    callbacks: float = 0.0

    def spent_on(self, name: str) -> Stopwatch:
        """Add the time of a block to the seconds of a purpose: `with seconds.spent_on("data"): ...`"""
        return Stopwatch(self, name)


@dataclass
class Stopwatch:
    seconds: SecondsSpent
    name: str
    started: float = field(default=0.0, init=False)

    def __enter__(self) -> None:
        self.started = time.monotonic()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is not None and self.name == "productive":
            return  # failed, possibly after half an hour of waiting for a lost rank
        spent = time.monotonic() - self.started
        setattr(self.seconds, self.name, getattr(self.seconds, self.name) + spent)


class StepReport(Callback):
    """Writer of the metrics of each training step on rank 0."""

    def __init__(
        self,
        run: Path,
        config: Config,
        spec: ModelSpec | LayerlessSpec,
        samples: Samples,
        events: Events,
        *,
        token_count: TokenCount,
        start: int,
        fence: Callable[[], None] = lambda: None,
        peak_flops: float | None = None,
    ) -> None:
        """Create the writer of metrics. `fence` is called before metrics are recorded, and raises if another job has
        taken over the run. `peak_flops`: of all devices, if known."""
        self.peak_flops = peak_flops
        self._fence = fence
        self.run, self.events = run, events
        self.seconds = SecondsSpent()
        self.tracker = Tracker(run, **config.track.model_dump())
        self.tracker.log_status("RUNNING")
        self._has_started = False
        self._validated = 0.0
        """Seconds of the validations that are recorded."""
        self._effective = EffectiveTime.read(run)
        self._screen = _ProgressBar(config.train.steps, start) if sys.stdout.isatty() else _LogLines(config.train.steps)
        self.begin_phase(config, spec, samples, token_count=token_count, start=start)

    def begin_phase(
        self,
        config: Config,
        spec: ModelSpec | LayerlessSpec,
        samples: Samples,
        *,
        token_count: TokenCount,
        start: int,
    ) -> None:
        """Record the config of a phase of the run, whose steps follow."""
        run = self.run
        self.config, self.samples, self.token_count = config, samples, token_count
        changes = {f"change.step-{step}": text for step, text in recorded_changes(read_events(run)).items()}
        keys = name_corpora(flatten_keys(config.model_dump()), samples.corpora)
        self.tracker.log_params(keys | {"parameters": count_parameters(spec)} | changes)
        self.tracker.log_artifact(run / CONFIG)
        self.flops_per_sample: int | None = None
        if isinstance(spec, ModelSpec):  # for word vectors, the operations of a word depend on its sampled window
            lengths = samples.batch_spec.lengths(spec.family.prefixes)
            num_predicted, appended = samples.batch_spec.num_predicted, samples.batch_spec.num_appended
            self.flops_per_sample = step_flops(
                spec, rows=1, lengths=lengths, num_predicted=num_predicted, appended=appended
            )
        self._epochs = samples.epochs_started(config.batch_schedule.first_sample(start))
        self.objective = config.built_objective
        self._by_step = values_by_step(self.objective)
        # User-defined objectives may change weights at each step: then only the metrics show them.
        self._weights_change = type(self.objective).weights is not BaseObjective.weights and (
            not isinstance(self.objective, Composed)
            or any(len(schedule.steps) > 1 for schedule in self.objective.weights_by_step.values())
            or len(self.objective.weights_by_step) < len(self.objective.losses)
        )
        self._since_step, self._since = start, SecondsSpent(**asdict(self.seconds))
        self._time_left: TimeLeft | None = None
        """Set after the first step of the job, or of the phase."""
        self._before_estimate = self._since
        """Seconds spent before the remaining time is estimated."""

    def on_step_end(self, run: RunState, result: StepResult) -> None:
        """Record the metrics of an optimizer step."""
        step, rate = run.step, run.learning_rate
        self._fence()
        if not self._has_started:
            self._has_started = True
            seconds = seconds_since_launch(self.run)
            step_seconds = round(sum(asdict(self.seconds).values()), 3)
            self.events.write(FirstStepEvent(step=step, seconds=seconds, step_seconds=step_seconds))
            self._screen.show_first_step(step, seconds)
        if self._time_left is None:
            self._time_left = TimeLeft(self.config, step)
            self._before_estimate = SecondsSpent(**asdict(self.seconds))
        self._report_epochs(step)
        self._report_weights(step)
        if result.spike is not None:
            samples = self.config.batch_schedule.samples_of(step - 1, step - 1)
            self.events.write(
                SpikeEvent(step=step, description=result.spike, skipped=result.is_skipped, samples=samples)
            )
            self._screen.show_note(step, f"{'skipped: ' if result.is_skipped else ''}spike, {result.spike}")
        elif result.is_skipped:
            assert result.loss_scale is not None
            self.events.write(SkippedStepEvent(step=step, loss_scale=result.loss_scale))
            self._screen.show_note(step, f"skipped: infinite gradients at loss scale {result.loss_scale:g}")
        if step % self.config.train.log_every and step not in (1, self.config.train.steps):
            if result.metrics:
                self.tracker.log_metrics(step, result.metrics)
            self._screen.advance(step)
            return
        num_trained = self.config.batch_schedule.num_trained(step)
        steps, num_samples = (
            step - self._since_step,
            num_trained - self.config.batch_schedule.num_trained(self._since_step),
        )
        productive = self.seconds.productive - self._since.productive
        waited = self.seconds.data - self._since.data
        seconds = max(productive + waited, 1e-9)
        weights = loss_weights_at(self.objective, step - 1)
        left = self._seconds_left(step)
        # A loss without labels is left out; 0 would be a perfect loss.
        labeled = [name for name, count in result.counts.items() if count]
        losses = {f"loss/{name}": result.losses[name] for name in labeled} if len(result.losses) > 1 else {}
        metrics = {
            **({} if result.is_skipped else {"loss": result.loss, **losses}),
            **({f"loss_weight/{name}": value for name, value in weights.items()} if self._weights_change else {}),
            "learning_rate": rate,
            **({} if result.gradient_norm is None or result.is_skipped else {"gradient_norm": result.gradient_norm}),
            **({} if result.loss_scale is None else {"loss_scale": result.loss_scale}),
            "tokens_per_second": num_samples * self.token_count.per_sample / seconds,
            **self._model_flops(num_samples / seconds),
            "peak_memory_bytes": float(peak_memory_bytes()),
            "data_wait_seconds": waited / steps,
            "step_seconds": seconds / steps,
            "samples": float(num_trained),
            **self._count_tokens(step),
            **result.metrics,
            **({} if left is None else {"seconds_left": left}),
            "effective_time": self._effective.share(self.seconds.productive),
        }
        self.tracker.log_metrics(step, metrics)
        if result.is_skipped:
            self._screen.advance(step)
        else:
            self._screen.show_step_metrics(step, metrics)
        self._since_step, self._since = step, SecondsSpent(**asdict(self.seconds))

    def _model_flops(self, samples_per_second: float) -> dict[str, float]:
        """Return FLOP/s by the formula of the model, and their share of the devices' peak, if both are known."""
        if self.flops_per_sample is None:
            return {}
        speed = samples_per_second * self.flops_per_sample
        return {
            "model_flops_per_second": speed,
            **({} if self.peak_flops is None else {"mfu": speed / self.peak_flops}),
        }

    def _seconds_left(self, step: int) -> float | None:
        assert self._time_left is not None
        validation = self.seconds.validation - self._before_estimate.validation
        checkpoint = self.seconds.checkpoint - self._before_estimate.checkpoint
        return self._time_left.estimate(step, validation=validation, checkpoint=checkpoint)

    def _count_tokens(self, step: int) -> dict[str, float]:
        """Return the number of tokens trained on so far, and of those read from each corpus if there are several."""
        cursors = self.samples.cursors(self.config.batch_schedule.first_sample(step))
        names = short_names(list(cursors))
        by_corpus = {
            f"tokens/{names[path]}": float(number * self.token_count.per_sample) for path, number in cursors.items()
        }
        return {"tokens": float(self.token_count.before(step)), **(by_corpus if len(cursors) > 1 else {})}

    def _report_epochs(self, step: int) -> None:
        """Report corpora that start a new epoch."""
        epochs = self.samples.epochs_started(self.config.batch_schedule.first_sample(step))
        for name, epoch in epochs.items():
            if epoch > max(1, self._epochs[name]):
                self.events.write(EpochEvent(step=step, corpus=name, epoch=epoch))
                self._screen.show_epoch(step, name, epoch)
        self._epochs = epochs

    def _report_weights(self, step: int) -> None:
        """Report sampling shares and loss weights that differ from those of the step before."""
        now, before = ({key: value.at(at) for key, value in self._by_step.items()} for at in (step - 1, step - 2))
        changed = {key: value for key, value in now.items() if step > 1 and value != before[key]}
        if changed:
            shares, weights = (
                {name: value for (key_kind, name), value in changed.items() if key_kind == kind}
                for kind in ("share", "weight")
            )
            self.events.write(WeightsEvent(step=step, shares=shares, weights=weights))
            self._screen.show_weights(
                step, ", ".join(f"{kind} of {name} {value:g}" for (kind, name), value in changed.items())
            )

    def on_validation(self, run: RunState, losses: Mapping[str, float]) -> None:
        self._fence()
        metrics = {"validation/loss": losses["loss"], "validation_seconds": self.seconds.validation - self._validated}
        self._validated = self.seconds.validation
        own = {name for name in losses if "/" not in name}  # without those of validation sets
        has_parts = len(self.objective.losses) > 1 or not own <= {"loss", *self.objective.losses}
        metrics |= {
            f"validation/{name}": value
            for name, value in losses.items()
            if name != "loss" and (has_parts or name.endswith("/loss"))
        }
        self.tracker.log_metrics(run.step, metrics)
        self._screen.show_validation(run.step, metrics)
        if self._time_left is not None:
            self._time_left.num_validations += 1

    def add_checkpoint_wait(self, step: int, seconds: float) -> None:
        """Record the seconds that training waited for a checkpoint, or for its copy to host memory."""
        self.tracker.log_metrics(step, {"checkpoint_seconds": seconds})
        if self._time_left is not None:
            self._time_left.num_saves += 1

    def on_checkpoint(self, run: RunState, step: int, seconds: float) -> None:
        self._screen.show_saved(step, seconds)

    def add_trace(self, step: int, trace: StepTrace) -> None:
        """Report the files of a profiler trace."""
        share = trace.gpu_idle_share
        self.events.write(
            ProfileEvent(
                first=trace.first, last=trace.last, files=trace.files, gpu_idle_share=share, problems=trace.problems
            )
        )
        if share is not None:
            self.tracker.log_metrics(step, {"gpu_idle_share": share})
        self._screen.show_trace(step, _trace_text(trace))

    def add_note(self, step: int, text: str) -> None:
        self._screen.show_note(step, text)

    def add_rank_times(self, times: RankTimes) -> None:
        """Record the seconds of the ranks' own work of a step, and report ranks that are slow."""
        self.tracker.log_metrics(times.step, times.metrics)
        if times.stragglers is not None:
            self.events.write(times.stragglers)
            self._screen.show_note(times.step, times.warning)

    def report_stop(self, step: int, rank: int, name: str) -> None:
        """Report a stop by a signal that only another rank received."""
        self._screen.show_stopped(step, f"rank {rank} received {name}")

    def complete(self, run: RunState) -> None:
        """Report why a complete run ends before its last step, if it does."""
        if run.stop_reason is not None:
            self.events.write(StopRequestEvent(step=run.step, reason=run.stop_reason))
            self._screen.show_stopped(run.step, run.stop_reason)

    def on_stop(self, run: RunState, code: int) -> None:
        if self._has_started:
            self.tracker.log_metrics(run.step, {"effective_time": self._effective.share(self.seconds.productive)})
        self._screen.close()

    def close(self, status: str) -> None:
        self.tracker.log_status(status)
        if self.config.track.enabled and self.config.track.loggers:
            titles = ", ".join(LOGGERS[name].title for name in self.config.track.loggers)
            print(f"sending the last metrics to {titles}", flush=True)
        self.tracker.close()
        if self.config.track.enabled and (look := view_instructions(self.run)):
            print(printable(f"curves: {', then '.join(look)}"), flush=True)


def _trace_text(trace: StepTrace) -> str:
    parts = [f"trace of steps {trace.first} to {trace.last}: {', '.join(trace.files) or 'not written'}"]
    if trace.gpu_idle_share is not None:
        parts.append(f"the GPU had no work for {trace.gpu_idle_share:.1%} of the time")
    return "; ".join([*parts, *trace.problems])


def _device_text(metrics: Mapping[str, float]) -> str:
    """Return MFU and peak memory of the GPU as text, if its peak FLOP/s are known."""
    if "mfu" not in metrics:
        return ""
    return f"  MFU {metrics['mfu']:.1%}  {metrics['peak_memory_bytes'] / 2**30:.1f} GiB"


def _left_text(metrics: Mapping[str, float]) -> str:
    """Return the remaining time as text; empty while it is unknown."""
    return f"{format_duration(metrics['seconds_left'])} left" if "seconds_left" in metrics else ""


def _loss_list(metrics: Mapping[str, float], prefix: str) -> str:
    """Return the values of several losses as text, because a weighted sum hides one that does not fall."""
    losses = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
    text = ", ".join(f"{name.removesuffix('/loss')} {value:.4f}" for name, value in losses.items() if name != "loss")
    return f" ({text})" if text else ""


class _LogLines:
    """Output of metrics for logs: one line per record, with control characters of names escaped."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def advance(self, step: int) -> None: ...

    def show_first_step(self, step: int, seconds: float | None) -> None:
        if seconds is not None:
            self.show_note(step, f"done {seconds:.1f} s after the command")

    def show_step_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        norm = metrics.get("gradient_norm")
        self.show_note(
            step,
            f"loss {metrics['loss']:.4f}{_loss_list(metrics, 'loss/')}  "
            f"lr {metrics['learning_rate']:.2e}  {'' if norm is None else f'gradient {norm:.3f}  '}"
            f"{metrics['tokens_per_second']:,.0f} tokens/s{_device_text(metrics)}  {_left_text(metrics)}".rstrip(),
        )

    def show_note(self, step: int, text: str) -> None:
        print(f"step {step}/{self.steps}  {printable(text)}", flush=True)

    def show_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.show_note(step, f"validation loss {metrics['validation/loss']:.4f}{_loss_list(metrics, 'validation/')}")

    def show_epoch(self, step: int, corpus: str, epoch: int) -> None:
        self.show_note(step, f"epoch {epoch} of {corpus} starts")

    def show_weights(self, step: int, changes: str) -> None:
        self.show_note(step, f"from now on: {changes}")

    def show_saved(self, step: int, seconds: float) -> None:
        self.show_note(step, f"saved in {seconds:.1f} s")

    def show_trace(self, step: int, text: str) -> None:
        self.show_note(step, text)

    def show_stopped(self, step: int, reason: str) -> None:
        self.show_note(step, f"stopped: {reason}")

    def close(self) -> None: ...


class _ProgressBar:
    """Output of metrics for terminals: one progress line, with permanent lines above it."""

    def __init__(self, steps: int, start: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        from megaptm.console import Console

        self._progress = Progress(
            TextColumn("[bold]training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss [bold cyan]{task.fields[loss]}[/]  {task.fields[speed]}"),
            # The estimate of rich needs two steps in 30 s, and leaves out validations and checkpoints.
            TextColumn("[progress.remaining]{task.fields[left]}"),
            console=Console(),
        )
        self._task = self._progress.add_task("train", total=steps, completed=start, loss="...", speed="", left="")
        self._progress.start()

    def advance(self, step: int) -> None:
        self._progress.update(self._task, completed=step)

    def show_first_step(self, step: int, seconds: float | None) -> None:
        if seconds is not None:
            self._progress.console.print(f"step {step}: done {seconds:.1f} s after the command", highlight=False)

    def show_step_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        speed = f"{metrics['tokens_per_second']:,.0f} tokens/s{_device_text(metrics)}"
        loss, left = f"{metrics['loss']:.3f}", _left_text(metrics)
        self._progress.update(self._task, completed=step, loss=loss, speed=speed, left=left)

    def show_note(self, step: int, text: str) -> None:
        self._progress.console.print(f"step {step}: {text}", highlight=False)

    def show_validation(self, step: int, metrics: Mapping[str, float]) -> None:
        from rich.text import Text

        loss = (f"{metrics['validation/loss']:.4f}", "bold")
        self._progress.console.print(
            Text.assemble(f"step {step}: validation loss ", loss, _loss_list(metrics, "validation/"))
        )

    def show_epoch(self, step: int, corpus: str, epoch: int) -> None:
        self._progress.console.print(f"step {step}: epoch {epoch} of {corpus} starts")

    def show_weights(self, step: int, changes: str) -> None:
        self._progress.console.print(f"step {step}: from now on: {changes}", highlight=False)

    def show_saved(self, step: int, seconds: float) -> None:
        self._progress.console.print(f"step {step}: saved in {seconds:.1f} s")

    def show_trace(self, step: int, text: str) -> None:
        self._progress.console.print(f"step {step}: {printable(text)}", highlight=False)

    def show_stopped(self, step: int, reason: str) -> None:
        self._progress.console.print(f"step {step}: stopped: {reason}")

    def close(self) -> None:
        self._progress.update(self._task, left="")
        self._progress.stop()
