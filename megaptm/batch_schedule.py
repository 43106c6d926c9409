"""Samples of each step of a run: constant, or with a batch-size ramp at the start; ranges of samples may be skipped."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from megaptm.errors import UserError


@dataclass(frozen=True)
class _BatchSizeLevel:
    """Consecutive steps of a run with the same batch size."""

    step: int
    """First step of this batch size."""
    sample: int
    """First sample of the first step of this batch size."""
    size: int
    """Batch size of these steps."""


@dataclass(frozen=True)
class BatchSchedule:
    """Map from step (0, 1, ...) to its samples: a pure function, so that a run can continue from any step.

    With a ramp the batch size grows linearly in the samples trained on, as in GPT-3 (arXiv:2005.14165, appendix B), or
    at configured steps, as in PaLM (arXiv:2204.02311, section 5).
    """

    final_size: int
    """Batch size after the ramp."""
    start: int = 0
    """Batch size of the first step; set together with `increment` and `samples`."""
    increment: int = 0
    """Amount by which each stage of the ramp increases the batch size."""
    samples: int = 0
    """Number of samples in the ramp; 0: no ramp."""
    sizes_by_step: tuple[tuple[int, int], ...] = ()
    """Pairs (step, batch size from this step on), in order of steps; they replace `start`, `increment` and
    `samples`."""
    skips: tuple[tuple[int, int], ...] = ()
    """Pairs (step, number of batches of its size that are skipped before it), as PaLM did after a loss spike (section
    5.1)."""

    def __post_init__(self) -> None:
        if self.sizes_by_step:
            self._check_sizes_by_step()
        if not self.samples:
            return
        if self.start >= self.final_size:
            raise UserError(f"train.ramp.start ({self.start}) must be less than train.batch ({self.final_size}).")
        if (self.final_size - self.start) % self.increment:
            raise UserError(
                f"train.ramp.increment ({self.increment}) must divide the {self.final_size - self.start} "
                "samples between "
                f"train.ramp.start ({self.start}) and train.batch ({self.final_size})."
            )

    def _check_sizes_by_step(self) -> None:
        steps, sizes = zip(*self.sizes_by_step, strict=True)
        if steps[0] != 0:
            raise UserError(f"train.ramp.steps starts at step {steps[0]}: add the batch size of step 0.")
        if any(first >= second for first, second in pairwise(steps)):
            raise UserError(f"train.ramp.steps: the steps ({', '.join(map(str, steps))}) must be ascending.")
        if sizes[-1] != self.final_size:
            raise UserError(
                f"train.ramp.steps ends with a batch size of {sizes[-1]}, which must be train.batch "
                f"({self.final_size})."
            )

    @property
    def changes(self) -> dict[int, int]:
        """Return step -> batch size, for step 0 and each step at which the size changes."""
        sizes: dict[int, int] = {}
        for level in _levels_of(self):
            if not sizes or level.size != [*sizes.values()][-1]:
                sizes[level.step] = level.size
        return sizes

    def changes_after(self, earlier: BatchSchedule, step: int) -> dict[int, int]:
        """Return the `changes` of a schedule with the sizes of `earlier` before a step and of this one after it."""
        before = {begin: size for begin, size in earlier.changes.items() if begin < step}
        after = {step: self.size(step)} | {begin: size for begin, size in self.changes.items() if begin > step}
        if before and [*before.values()][-1] == after[step]:
            del after[step]
        return before | after

    def size(self, step: int) -> int:
        """Return the batch size of a step of the run."""
        return self._level_at(step).size

    def num_trained(self, step: int) -> int:
        """Return the number of samples trained on before a step."""
        level = self._level_at(step)
        return level.sample + (step - level.step) * level.size

    def first_sample(self, step: int) -> int:
        """Return the index of the first sample of a step: samples trained on before it, and skipped samples."""
        return self.num_trained(step) + sum(batches * self.size(at) for at, batches in self.skips if at <= step)

    def samples_of(self, first_step: int, last_step: int) -> tuple[int, int]:
        """Return the indexes of the first and the last sample of some steps, between which no batch is skipped."""
        return self.first_sample(first_step), self.first_sample(last_step) + self.size(last_step) - 1

    def steps_in(self, samples: int) -> int:
        """Return the number of steps of a run whose samples are all among the first `samples`."""
        level = _levels_of(self)[bisect_right(_levels_of(self), samples, key=lambda level: level.sample) - 1]
        max_steps = level.step + (samples - level.sample) // level.size
        return bisect_right(range(max_steps), samples, key=lambda step: self.first_sample(step) + self.size(step))

    def sizes(self, begin: int, end: int) -> dict[int, int]:
        """Return the number of steps of each batch size among the steps from `begin` up to, but not including,
        `end`."""
        bounds = [*(level.step for level in _levels_of(self)), max(end, _levels_of(self)[-1].step + 1)]
        counted: Counter[int] = Counter()
        for level, (start, stop) in zip(_levels_of(self), pairwise(bounds), strict=True):
            counted[level.size] += max(0, min(stop, end) - max(start, begin))
        return {size: steps for size, steps in counted.items() if steps}

    def _level_at(self, step: int) -> _BatchSizeLevel:
        return _levels_of(self)[bisect_right(_levels_of(self), step, key=lambda level: level.step) - 1]


@lru_cache(maxsize=16)
def _levels_of(batches: BatchSchedule) -> list[_BatchSizeLevel]:
    """Return the levels of the batch size in order of steps; cached, because every step needs them."""
    levels, step, sample = [], 0, 0
    for (begin, size), (end, _) in pairwise(batches.sizes_by_step):
        levels.append(_BatchSizeLevel(begin, sample, size))
        step, sample = end, sample + (end - begin) * size
    while sample < batches.samples:
        times = (batches.final_size - batches.start) // batches.increment
        grown = sample * times // batches.samples
        size = batches.start + grown * batches.increment
        levels.append(_BatchSizeLevel(step, sample, size))
        # The sample at which the size grows next is rounded up, and so is the number of steps until then.
        until = -(-(grown + 1) * batches.samples // times)
        steps = -(-(until - sample) // size)
        step, sample = step + steps, sample + steps * size
    return [*levels, _BatchSizeLevel(step, sample, batches.final_size)]
