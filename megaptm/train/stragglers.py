"""Detection of stragglers: ranks whose own work of a step takes much longer than that of others, which wait for them.

The seconds of a step are the same on all ranks, because each step has collectives. So a rank measures the time outside
of collectives, and the wait for its next data, every `train.log_every` steps. Ranks send each other these two numbers
during the next step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median_low

import torch
import torch.distributed as dist
from torch import Tensor

from megaptm.config import StragglerConfig
from megaptm.node import node_name
from megaptm.parallel.collectives import all_gather_object
from megaptm.parallel.groups import Ranks, rank_device
from megaptm.parallel.waits import StepClock
from megaptm.resilience.events import StragglerEvent
from megaptm.resilience.watchdog import format_ranks

MIN_SECONDS = 0.02
"""Minimum difference from the median of a straggler. Steps of milliseconds vary with other programs of the machine."""


@dataclass(frozen=True)
class RankTimes:
    """Seconds of each rank's own work of a step, with the wait for its data."""

    step: int
    seconds: Sequence[float]
    stragglers: StragglerEvent | None = None
    """Ranks that have now been slow for as many measurements as the config says."""
    warning: str = ""

    @property
    def metrics(self) -> dict[str, float]:
        return {
            "rank_seconds/fastest": min(self.seconds),
            "rank_seconds/median": median_low(self.seconds),
            "rank_seconds/slowest": max(self.seconds),
        }


class Stragglers:
    """Measurement of the own work of all ranks. All ranks call each method at the same point of the program."""

    def __init__(self, config: StragglerConfig | None, ranks: Ranks, *, every: int) -> None:
        """`every`: number of steps from one measurement to the next."""
        self._config, self._every = config, every
        self._is_enabled = config is not None and dist.get_world_size() > 1
        self._clock: StepClock | None = None
        self._data_seconds = 0.0
        self._sent: tuple[int, Tensor, dist.Work | None] | None = None
        self._slow_ranks: SlowRanks | None = None
        if self._is_enabled:
            # Of the tensor ranks only the first one waits for data.
            by_rank = all_gather_object((node_name(), (ranks.pipeline, ranks.tensor == 0)))
            self._slow_ranks = SlowRanks(config, *zip(*by_rank, strict=True)) if config and not ranks.world else None

    @contextmanager
    def reading_data(self) -> Iterator[None]:
        """Return a context in which this rank waits for the data of the next step."""
        start_time = time.monotonic()
        yield
        self._data_seconds = time.monotonic() - start_time

    def measure(self, step: int) -> AbstractContextManager[object]:
        """Return the context of a step, which measures it if it is due."""
        self._clock = StepClock() if self._is_enabled and step % self._every == 0 else None
        return nullcontext() if self._clock is None else self._clock

    def exchange(self, step: int) -> RankTimes | None:
        """Send the measurement of a step to all ranks, and return the one before, on rank 0.

        Called after a collective for which the host waits. So the marks of the step can be read, and the collective of
        the step before is finished: neither waits.
        """
        received = self._receive()
        if self._clock is not None:
            own = [self._clock.read_work_seconds() + self._data_seconds, self._data_seconds]
            own_2 = torch.tensor(own, dtype=torch.float64, device=rank_device())
            all_W2 = own_2.new_empty(2 * dist.get_world_size())
            self._sent = step, all_W2, dist.all_gather_into_tensor(all_W2, own_2, async_op=True)
        return received

    def _receive(self) -> RankTimes | None:
        if self._sent is None:
            return None
        (step, all_W2, work), self._sent = self._sent, None
        if work is not None:
            work.wait()
        if self._slow_ranks is None:
            return None
        seconds, data = all_W2.view(-1, 2).t().tolist()
        if any(map(math.isnan, seconds)):
            return None
        return RankTimes(step, seconds, *self._slow_ranks.add(step, seconds, data))


class SlowRanks:
    """Counts, for each rank, of measurements in a row in which it was slow."""

    def __init__(self, config: StragglerConfig, hosts: Sequence[str], kinds: Sequence[Hashable]) -> None:
        """`hosts`, `kinds`: host and kind of work of each rank. Ranks of one kind are compared: pipeline stages differ
        in their work, and tensor ranks in that they read data."""
        self._config, self._hosts, self._kinds = config, hosts, kinds
        self._counts = [0] * len(kinds)

    def add(self, step: int, seconds: Sequence[float], data: Sequence[float]) -> tuple[StragglerEvent | None, str]:
        """Count a measurement, the seconds of each rank's own work and its wait for data. Return an event and a warning
        if ranks have now been slow often enough."""
        of_kind: dict[Hashable, list[float]] = {}
        for kind, own in zip(self._kinds, seconds, strict=True):
            of_kind.setdefault(kind, []).append(own)
        medians = {kind: median_low(all_own) for kind, all_own in of_kind.items()}  # of two, the faster one
        slow = []
        for rank, (kind, own) in enumerate(zip(self._kinds, seconds, strict=True)):
            is_slow = own > max(self._config.factor * medians[kind], medians[kind] + MIN_SECONDS)
            self._counts[rank] = self._counts[rank] + 1 if is_slow else 0
            if self._counts[rank] == self._config.intervals:
                slow.append(rank)
        if not slow:
            return None, ""
        slowest = max(slow, key=lambda rank: seconds[rank])
        by_host: dict[str, list[int]] = {}
        for rank in slow:
            by_host.setdefault(self._hosts[rank], []).append(rank)
        event = StragglerEvent(
            step=step,
            ranks=slow,
            hosts=[*by_host],
            seconds=round(seconds[slowest], 4),
            data_seconds=round(data[slowest], 4),
            median_seconds=round(medians[self._kinds[slowest]], 4),
        )
        named = " and ".join(f"rank {format_ranks(ranks)} on {host}" for host, ranks in by_host.items())
        return event, (
            f"warning: {named}: slow in {self._config.intervals} measurements in a row. Own work of a step takes "
            f"{event.seconds:.3g} s on rank {slowest}, {event.data_seconds:.3g} s of them waiting for data, and "
            f"{event.median_seconds:.3g} s on half of the ranks of its stage. All ranks wait for it: look at its GPU, "
            "host and disk."
        )
