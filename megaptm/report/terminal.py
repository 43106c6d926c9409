"""Lines on the terminal besides those of steps: title, startup, and the commands to run next."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import psutil

from megaptm.config import Config, Layout, resolve_spec
from megaptm.config.rate_jump import overrides_to_extend
from megaptm.config.uses import list_uses
from megaptm.errors import printable
from megaptm.families import contributions
from megaptm.plan.count import count_parameters
from megaptm.shell import command_line, typed_path
from megaptm.spec import LayerlessSpec
from megaptm.tokenizers import Tokenizer

STARTED_BY = "MEGAPTM_STARTED_BY"
"""Environment variable in which a launcher tells rank 0 the command that starts the run, as typed after `megaptm`,
without the run's folder; absent: `train`. Empty: rank 0 prints no commands to run next."""
AXES = ("data", "tensor", "pipeline", "virtual")


def run_title(config: Config) -> str:
    """Return the title of a run, two lines: the model, its layout, and the run's folder."""
    processes = config.layout.processes
    return printable(
        f"{config.model.family}/{config.model.size}, {count_parameters(resolve_spec(config)):,} parameters, "
        f"{config.train.precision}; {processes} process{'es' if processes > 1 else ''}: "
        f"layout {layout_title(config.layout.model_dump())}\nrun folder {typed_path(config.run)}"
    )


def layout_title(layout: Mapping[str, Any]) -> str:
    """Return the layout as text: the axes larger than 1, and the switches that are on, `data=2 tensor=4
    sequence_parallel`."""
    axes = [f"{axis}={layout[axis]}" for axis in AXES if layout[axis] > 1] or ["data=1"]
    if cut := layout.get("layers_per_stage"):  # runs of older versions do not have it
        axes.append(f"layers_per_stage={cut if isinstance(cut, str) else '[' + ','.join(map(str, cut)) + ']'}")
    return " ".join(
        [*axes, *(name for name in ("sequence_parallel", "distributed_optimizer", "full_sharding") if layout.get(name))]
    )


def device_title() -> str:
    """Return the device as text: the name of this process's GPU, or the CPU with its number of threads."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' if threads > 1 else ''} a process"


def describe_start(config: Config, *, imported: bool) -> str:
    """Describe the initial weights of a run at step 0. `imported`: the run folder has a checkpoint of step 0, written
    by `megaptm import`."""
    if imported:
        return "starts at step 0 with the imported weights in the run folder"
    if config.train.init_from is not None:
        return f"starts at step 0 with the weights of {config.train.init_from}"
    return "starts at step 0"


def describe_resume(step: int, before: Mapping[str, Any], config: Config) -> str:
    """Describe the checkpoint that a run continues from; `before` is the layout that wrote it."""
    if step >= config.train.steps:
        overrides = " ".join(overrides_to_extend(config, 2 * config.train.steps))
        return f"all {config.train.steps:,} steps are done; {overrides} continues the run"
    old, new = layout_title({**Layout().model_dump(), **before}), layout_title(config.layout.model_dump())
    line = f"continues from step {step:,}, layout {old if old == new else f'{old} -> {new}'}"
    stop = config.train.stop_at
    is_past_stop = stop is not None and step >= stop  # for example if the command with stop_at is repeated
    if is_past_stop:
        return f"{line}; train.stop_at ({stop:,}) is past, the run ends at step {config.train.steps:,}"
    return line if stop is None else f"{line}; this job ends at step {stop:,} (train.stop_at)"


class TimedLog:
    """A log of startup actions, each line with the seconds since the process started, and control characters
    escaped."""

    def __init__(self, *, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._enabled, self._stream = enabled, stream
        age = max(0.0, time.time() - psutil.Process().create_time())
        self._start_time = time.monotonic() - age  # the system clock may be set back later

    def __call__(self, message: str) -> None:
        if self._enabled:
            line = f"{time.monotonic() - self._start_time:6.1f} s  {printable(message)}"
            print(line, file=self._stream, flush=True)


def format_duration(seconds: float) -> str:
    """Format a duration: `0:07`, `1:02:03`, `3d 04:05:06`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def next_commands(config: Config, tokenizer: Tokenizer, *, done: bool, start: Sequence[str] = ("train",)) -> list[str]:
    """Return up to three commands to show after a run has ended or was stopped; `start` is the one that restarts a
    stopped run."""
    run = typed_path(config.run)
    spec = resolve_spec(config)
    exports = {
        command.name for commands in contributions("commands", "COMMANDS") for command in commands.get("export", ())
    }
    own_format = spec.family.export_command if isinstance(spec, LayerlessSpec) else spec.name
    format = own_format if own_format in exports else "hf"
    model_command: list[str] = ["export", format, run, os.path.join("exported", Path(run).name)]
    if prompt := example_prompt(config, tokenizer):
        model_command = ["generate", run, "--prompt", prompt]
    elif not isinstance(spec, LayerlessSpec) and any(record.is_appended for record in spec.family.inputs):
        # Hugging Face has no such family.
        model_command = []
    commands = [["report", run], ["evaluate", run], *([model_command] if model_command else [])]
    return [command_line(command) for command in (commands if done else [[*start, run], *commands[:2]])]


def example_prompt(config: Config, tokenizer: Tokenizer) -> str | None:
    """Return an example prompt for a trained model, from its objective; None if the model only returns vectors."""
    task, special = config.built_objective, tokenizer.special
    spec = resolve_spec(config)
    use = None if isinstance(spec, LayerlessSpec) else next(iter(list_uses(spec, task.prompts)), None)
    if use is None or not task.prompts:
        return None
    kind = {"generate": "text", "guess": "masks", "fill": task.prompts[0]}[use]
    if kind == "text":
        return "The"
    token = special.mask_or_sentinel if kind == "masks" else next(iter(special.sentinels), None)
    return None if token is None else f"The {tokenizer.name(token)} sat on the mat."
