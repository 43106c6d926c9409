"""Which samples each step of a run takes: always as many, or more and more while it begins; some may be passed over."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from megaptm.errors import UserError


@dataclass(frozen=True)
class _Level:
    """Steps of one size."""

    step: int
    """The first of them."""
    sample: int
    """The first sample of that."""
    size: int


@dataclass(frozen=True)
class BatchSchedule:
    """Step (0, 1, ...) -> its samples: a pure function, so that a run goes on wherever it stopped.

    With a ramp the batch grows linearly in the samples seen, as GPT-3's did (arXiv:2005.14165, appendix B), or at given
    steps, as PaLM's (arXiv:2204.02311, section 5).
    """

    whole: int
    """Samples of a step, once the ramp is over."""
    start: int = 0
    """Samples of the first step; it and the next two are given together."""
    increment: int = 0
    """By so many it grows at a time."""
    samples: int = 0
    """Samples after which it is whole; 0: it always is."""
    at: tuple[tuple[int, int], ...] = ()
    """(step, samples of it and of those that follow), in their order; in the place of the other three."""
    skips: tuple[tuple[int, int], ...] = ()
    """(step, batches of its size that nobody reads before it), as PaLM's after a loss spike (section 5.1)."""

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
        """Samples of a step."""
        return self._level(step).size

    def trained(self, step: int) -> int:
        """Samples of all steps before it."""
        level = self._level(step)
        return level.sample + (step - level.step) * level.size

    def first(self, step: int) -> int:
        """The number of its first sample: samples of all steps before it, and those that were passed over."""
        return self.trained(step) + sum(batches * self.size(at) for at, batches in self.skips if at <= step)

    def steps_in(self, samples: int) -> int:
        """Steps that so many samples are enough for."""
        level = _levels(self)[bisect_right(_levels(self), samples, key=lambda one: one.sample) - 1]
        most = level.step + (samples - level.sample) // level.size
        return bisect_right(range(most), samples, key=lambda step: self.first(step) + self.size(step))

    def sizes(self, begin: int, end: int) -> dict[int, int]:
        """Size of a step -> how many of the steps `begin` to `end` have it."""
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
    """In the order of their steps; a run asks at each."""
    levels, step, sample = [], 0, 0
    for (begin, size), (end, _) in pairwise(batches.at):
        levels.append(_Level(begin, sample, size))
        step, sample = end, sample + (end - begin) * size
    while sample < batches.samples:
        times = (batches.whole - batches.start) // batches.increment
        grown = sample * times // batches.samples
        size = batches.start + grown * batches.increment
        levels.append(_Level(step, sample, size))
        # The sample at which it has grown once more is rounded up, and so are the steps until then.
        until = -(-(grown + 1) * batches.samples // times)
        steps = -(-(until - sample) // size)
        step, sample = step + steps, sample + steps * size
    return [*levels, _Level(step, sample, batches.whole)]
