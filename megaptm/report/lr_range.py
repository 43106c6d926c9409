"""Result of a learning rate range test: the loss by learning rate, and a suggested rate (arXiv:1506.01186)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from megaptm.errors import UserError
from megaptm.report.curves import Points, metric_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOSS, RATE = "lr_range/loss", "lr_range/rate"
"""Metrics that `RangeTest` records at each step."""
SMOOTHING = 0.9
"""Decay rate of the running mean of the losses."""
DIVERGED = 4.0
"""Factor of the lowest loss above which a higher rate is not considered."""
MARGIN = 10.0
"""Factor by which the suggested rate is below that of the lowest loss."""
MIN_STEPS = 20
NUM_ROWS = 12


def smooth(losses: Iterable[float]) -> list[float]:
    """Return the running means of losses until they diverge."""
    smoothed: list[float] = []
    mean = 0.0
    for loss in losses:
        mean = SMOOTHING * mean + (1.0 - SMOOTHING) * loss
        value = mean / (1.0 - SMOOTHING ** (len(smoothed) + 1))
        if not math.isfinite(value) or (smoothed and value > DIVERGED * min(smoothed)):
            break
        smoothed.append(value)
    return smoothed


@dataclass(frozen=True)
class RateRange:
    """Smoothed loss by learning rate, in the order of the steps, until the loss diverged."""

    rates: Sequence[float]
    losses: Sequence[float]
    """Losses of the steps with these rates."""
    smoothed: Sequence[float]

    @classmethod
    def from_records(cls, records: Sequence[Mapping[str, Any]]) -> RateRange:
        """Return the range of the metrics of a run. Raise `UserError` if they have too few steps."""
        rates, losses = (metric_curve(records, name) for name in (RATE, LOSS))
        smoothed = smooth(loss for _, loss in losses)
        number = len(smoothed)
        if number < MIN_STEPS:
            raise UserError(
                f"the loss diverges after {number} steps, and the range test needs {MIN_STEPS}: give more --steps, or "
                "a lower --min-lr."
            )
        return cls([rate for _, rate in rates[:number]], [loss for _, loss in losses[:number]], smoothed)

    @property
    def lowest_loss_rate(self) -> float:
        """Learning rate with the lowest smoothed loss."""
        return self.rates[self.smoothed.index(min(self.smoothed))]

    @property
    def steepest_fall_rate(self) -> float:
        """Learning rate at which the smoothed loss falls fastest over the logarithm of the rate."""
        slopes = [
            (self.smoothed[index + 1] - self.smoothed[index - 1])
            / math.log(self.rates[index + 1] / self.rates[index - 1])
            for index in range(1, len(self.rates) - 1)
        ]
        return self.rates[1 + slopes.index(min(slopes))]

    @property
    def suggested(self) -> float:
        """Peak rate for a run: a tenth of that with the lowest loss, where the loss still falls steadily."""
        return self.lowest_loss_rate / MARGIN

    def points(self) -> dict[str, Points]:
        """Return the curves over the decimal logarithm of the rate."""
        x = [math.log10(rate) for rate in self.rates]
        return {"loss": [*zip(x, self.losses, strict=True)], "smoothed": [*zip(x, self.smoothed, strict=True)]}

    def table(self) -> Table:
        """Return a table of some rates and their losses, and of the chosen rates."""
        table = Table("learning rate", "loss", "", box=None, pad_edge=False)
        for index, note in self._rows():
            table.add_row(f"{self.rates[index]:.3g}", f"{self.smoothed[index]:.4f}", note)
        return table

    def _rows(self) -> Iterator[tuple[int, str]]:
        notes = {
            self.rates.index(self.steepest_fall_rate): "steepest fall",
            self.rates.index(self.lowest_loss_rate): "lowest loss",
        }
        last = len(self.rates) - 1
        for index in sorted({*notes, *(round(row * last / (NUM_ROWS - 1)) for row in range(NUM_ROWS))}):
            yield index, notes.get(index, "")

    def plot(self) -> Figure:
        """Return a picture of the losses by rate."""
        from matplotlib.figure import Figure  # a figure of its own: no display, no global state

        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.rates, self.losses, color="lightgray", linewidth=1, label="loss")
        axes.plot(self.rates, self.smoothed, label="smoothed")
        for name, rate in (
            ("steepest fall", self.steepest_fall_rate),
            ("lowest loss", self.lowest_loss_rate),
            ("suggested", self.suggested),
        ):
            axes.axvline(rate, linewidth=1, linestyle=":", color="black")
            axes.text(rate, 0.02, f" {name} {rate:.2g}", rotation=90, transform=axes.get_xaxis_transform(), fontsize=8)
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.grid(alpha=0.3)
        axes.legend()
        return figure
