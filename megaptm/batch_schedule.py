"""Samples of each step of a run: constant, or with a batch-size ramp at the start; ranges of samples may be skipped."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from megaptm.errors import UserError


@dataclass(frozen=True)
class _Level:
    """Consecutive steps with the same batch size."""

    step: int
    """First step."""
    sample: int
    """First sample of that step."""
    size: int


@dataclass(frozen=True)
class BatchSchedule:
    """Map from step (0, 1, ...) to its samples: a pure function, so that a run can continue from any step.

    With a ramp the batch size grows linearly in the samples trained on, as in GPT-3 (arXiv:2005.14165, appendix B), or
    at configured steps, as in PaLM (arXiv:2204.02311, section 5).
    """

    whole: int
    """Batch size after the ramp."""
    start: int = 0
    """Batch size of the first step; set together with `increment` and `samples`."""
    increment: int = 0
    """Amount by which the batch size grows each time."""
    samples: int = 0
    """Number of samples in the ramp; 0: no ramp."""
    at: tuple[tuple[int, int], ...] = ()
    """(step, batch size from this step on), in order of steps; replaces `start`, `increment` and `samples`."""
    skips: tuple[tuple[int, int], ...] = ()
    """(step, number of batches of its size that are skipped before it), as PaLM did after a loss spike (section
    5.1)."""

    def __post_init__(self) -> None:
        if self.at:
            self._check_given_steps()
        if not self.samples:
            return
        if self.start >= self.whole:
            raise UserError(f"train.ramp.start ({self.start}) must be less than train.batch ({self.whole}).")
        if (self.whole - self.start) % self.increment:
            raise UserError(
                f"train.ramp.increment ({self.increment}) must divide the {self.whole - self.start} rows between "
                f"train.ramp.start ({self.start}) and train.batch ({self.whole})."
            )

    def _check_given_steps(self) -> None:
        steps, sizes = zip(*self.at, strict=True)
        if steps[0] != 0:
            raise UserError(f"train.ramp.steps begins with step {steps[0]}: say how many rows step 0 has.")
        for name, numbers in (("steps", steps), ("rows", sizes)):
            if any(one >= other for one, other in pairwise(numbers)):
                told = ", ".join(map(str, numbers))
                raise UserError(
                    f"train.ramp.steps has {name} that do not grow ({told}): each must be more than before."
                )
        if sizes[-1] != self.whole:
            raise UserError(f"train.ramp.steps ends on {sizes[-1]} rows, which must be train.batch ({self.whole}).")

    def size(self, step: int) -> int:
        """Return the batch size of a step."""
        return self._level(step).size

    def trained(self, step: int) -> int:
        """Return the number of samples trained on before a step."""
        level = self._level(step)
        return level.sample + (step - level.step) * level.size

    def first(self, step: int) -> int:
        """Return the index of the first sample of a step: samples trained on before it, and skipped samples."""
        return self.trained(step) + sum(batches * self.size(at) for at, batches in self.skips if at <= step)

    def steps_in(self, samples: int) -> int:
        """Return the number of steps that a number of samples suffices for."""
        level = _levels(self)[bisect_right(_levels(self), samples, key=lambda one: one.sample) - 1]
        most = level.step + (samples - level.sample) // level.size
        return bisect_right(range(most), samples, key=lambda step: self.first(step) + self.size(step))

    def sizes(self, begin: int, end: int) -> dict[int, int]:
        """Return batch size -> number of steps with it among the steps from `begin` up to, but not including, `end`."""
        bounds = [*(level.step for level in _levels(self)), max(end, _levels(self)[-1].step + 1)]
        counted = {
            level.size: min(stop, end) - max(start, begin)
            for level, (start, stop) in zip(_levels(self), pairwise(bounds), strict=True)
        }
        return {size: number for size, number in counted.items() if number > 0}

    def _level(self, step: int) -> _Level:
        return _levels(self)[bisect_right(_levels(self), step, key=lambda one: one.step) - 1]


@lru_cache(maxsize=16)
def _levels(batches: BatchSchedule) -> list[_Level]:
    """Return the levels in order of steps; cached, because every step needs them."""
    levels, step, sample = [], 0, 0
    for (begin, size), (end, _) in pairwise(batches.at):
        levels.append(_Level(begin, sample, size))
        step, sample = end, sample + (end - begin) * size
    while sample < batches.samples:
        times = (batches.whole - batches.start) // batches.increment
        grown = sample * times // batches.samples
        size = batches.start + grown * batches.increment
        levels.append(_Level(step, sample, size))
        # The sample at which the size grows next is rounded up, and so is the number of steps until then.
        until = -(-(grown + 1) * batches.samples // times)
        steps = -(-(until - sample) // size)
        step, sample = step + steps, sample + steps * size
    return [*levels, _Level(step, sample, batches.whole)]
