"""Profiler of a few training steps (`train.profile`), which writes traces to the run folder."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch.profiler import profile, record_function

from megaptm.config.schema import ProfileConfig
from megaptm.parallel.collectives import all_gather_object
from megaptm.run.folder import TRACES
from megaptm.train.trace import STEP_NAME, gpu_idle_share

MAX_ALLOCATIONS = 1_000_000
"""Maximum number of allocations and frees in a memory snapshot, the newest ones; each has a stack."""


@dataclass(frozen=True)
class RankTrace:
    """Profiler files of one rank."""

    files: Sequence[str] = ()
    """Paths of the profiler files relative to the run folder."""
    gpu_idle_share: float | None = None
    problem: str | None = None
    """Reason why a rank could not write its profiler files."""


@dataclass(frozen=True)
class StepTrace:
    """Profiler traces of the steps `first` to `last`, of all ranks that wrote one."""

    first: int
    last: int
    ranks: Sequence[RankTrace]

    @property
    def files(self) -> list[str]:
        return [file for rank in self.ranks for file in rank.files]

    @property
    def gpu_idle_share(self) -> float | None:
        """Return the idle share of the GPUs in the trace, the mean over ranks; None without a GPU."""
        shares = [rank.gpu_idle_share for rank in self.ranks if rank.gpu_idle_share is not None]
        return fmean(shares) if shares else None

    @property
    def problems(self) -> list[str]:
        return [rank.problem for rank in self.ranks if rank.problem is not None]


class StepProfiler:
    """Profiler of training steps on one rank. All ranks call the same methods at the same steps; steps are counted from
    1."""

    def __init__(self, run: Path, config: ProfileConfig | None, *, rank: int) -> None:
        self.run, self.config, self.rank = run, config, rank
        self._first: int | None = None
        """First profiled step of this job, after it has started."""
        self._profile: profile | None = None
        self._is_recording = False

    @contextmanager
    def profile_step(self, step: int) -> Iterator[None]:
        """Return the context of a training step, which is profiled if the config says so."""
        if self.config is None or not self.config.steps[0] <= step <= self.config.steps[1]:
            yield
            return
        if self._first is None:
            self._first = step
            self._start_profiler()
        with record_function(f"{STEP_NAME} {step}"):
            yield
        if step == self.config.steps[1]:
            self._stop_profiler()  # before a validation

    def ends(self, step: int, *, stopping: bool) -> bool:
        """Whether the profiler trace ends after this step: it is the last one to profile, or the run stops now."""
        return self.config is not None and self._first is not None and (stopping or step == self.config.steps[1])

    def finish(self, step: int) -> StepTrace:
        """Write the profiler files, after the last profiled step."""
        assert self._first is not None
        first, self._first = self._first, None
        self._stop_profiler()
        own = None if self._profile is None else self._write_files(self._profile, first, step)
        self._profile = None
        return StepTrace(first, step, [trace for trace in all_gather_object(own) if trace is not None])

    def _start_profiler(self) -> None:
        assert self.config is not None
        if self.rank not in self.config.ranks:
            return
        if torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(max_entries=MAX_ALLOCATIONS, stacks="python")
        self._profile = profile()
        self._profile.start()
        self._is_recording = True

    def _stop_profiler(self) -> None:
        """Stop the profiler, after the GPU has finished the last step."""
        if self._profile is None or not self._is_recording:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profile.stop()
        self._is_recording = False

    def _write_files(self, profiled: profile, first: int, last: int) -> RankTrace:
        """Write the profiler trace, and on a GPU the memory snapshot. If the disk fails, there is no trace, and
        training continues."""
        folder, name = self.run / TRACES, f"steps-{first}-{last}-rank-{self.rank}"
        unfinished = folder / f".{name}.unfinished"
        try:
            folder.mkdir(exist_ok=True)
            unfinished.unlink(missing_ok=True)  # torch would write through a link
            profiled.export_chrome_trace(str(unfinished))
            content = unfinished.read_bytes()
            unfinished.write_bytes(gzip.compress(content, compresslevel=4))
            os.replace(unfinished, folder / f"{name}.json.gz")
            files = [f"{TRACES}/{name}.json.gz"]
            if torch.cuda.is_available():
                torch.cuda.memory._dump_snapshot(str(unfinished))
                os.replace(unfinished, folder / f"{name}-memory.pickle")
                files.append(f"{TRACES}/{name}-memory.pickle")
            return RankTrace(files, _idle_share(content))
        except (OSError, RuntimeError) as error:  # torch reports a file that it cannot open as a RuntimeError
            return RankTrace(problem=f"rank {self.rank}: {error}")
        finally:
            if torch.cuda.is_available():
                torch.cuda.memory._record_memory_history(enabled=None)
            with suppress(OSError):
                unfinished.unlink()


def _idle_share(content: bytes) -> float | None:
    """Return the idle share of the GPU in a trace; None also if torch wrote invalid JSON."""
    try:
        return gpu_idle_share(json.loads(content))
    except ValueError:
        return None
