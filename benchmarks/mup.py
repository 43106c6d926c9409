"""Best learning rate by width, with and without muP, for a small GPT-2 on real text.

    python benchmarks/mup.py [--steps 150] [--plot mup.png]

The model is configs/gpt2/tiny.yaml with widths of 64 to 256, on Python's standard library. Every width trains with the
same learning rates. With muP (`model.mup_base_width=64`) the best rate of width 64 should be the best of all widths.
The result is the held-out loss of the widest model with the narrowest one's best rate, minus its lowest.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

from common.options import Options
from common.tiny_gpt2 import build_corpus, held_out_losses

WIDTHS = (64, 128, 256)
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)
HEAD_WIDTH = 32
Losses = dict[int, dict[float, float]]
"""Width -> learning rate -> held-out loss at the end."""


def final_loss(folder: Path, width: int, rate: float, steps: int, *, mup: bool) -> float:
    """Return the held-out loss at the end of a run; infinity if it diverged. At the base width muP changes nothing."""
    scaled = mup and width != WIDTHS[0]
    keys = {
        "model.width": width,
        "model.heads": width // HEAD_WIDTH,
        "model.ffn": 4 * width,
        "optimizer.lr": rate,
        **({"model.mup_base_width": WIDTHS[0]} if scaled else {}),
    }
    loss = held_out_losses(folder, f"{width}-{rate}-{scaled}", steps, keys)[-1][1]
    return loss if math.isfinite(loss) else math.inf


def plot(path: Path, losses: dict[str, Losses]) -> None:
    """Plot the loss by learning rate, a curve for each width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.5), layout="constrained")
    for axes, (title, by_width) in zip(figure.subplots(1, 2, sharey=True), losses.items(), strict=True):
        for width, by_rate in by_width.items():
            axes.plot(list(by_rate), list(by_rate.values()), marker="o", label=f"width {width}")
        axes.set(xscale="log", xlabel="learning rate", title=title)
        axes.set_ylabel("held-out loss (nats a token)")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--steps", default=150, short=4)
    arguments.add("--rates", default=len(RATES), short=1, help="number of learning rates, of the middle")
    arguments.add("--plot", default="mup.png", short="", help="file of the plot; empty: no plot")
    options = arguments.read()
    skipped = (len(RATES) - options.rates) // 2
    rates = RATES[skipped : skipped + options.rates]
    losses: dict[str, Losses] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_corpus(folder, short=options.short)
        for title, mup in (("without muP", False), ("muP", True)):
            losses[title] = {}
            for width in WIDTHS:
                by_rate = {rate: final_loss(folder, width, rate, options.steps, mup=mup) for rate in rates}
                losses[title][width] = by_rate
                print(
                    f"{title:<12} width {width:<4} "
                    + "  ".join(f"{rate:g}: {loss:.4f}" for rate, loss in by_rate.items()),
                    flush=True,
                )
    if options.plot:
        plot(Path(options.plot), losses)
    for title, by_width in losses.items():
        narrow, wide = by_width[WIDTHS[0]], by_width[WIDTHS[-1]]
        best = min(narrow, key=narrow.__getitem__)
        cost = wide[best] - min(wide.values())
        print(f"{title}: the best rate of width {WIDTHS[0]}, {best:g}, costs width {WIDTHS[-1]} {cost:.4f} nats")
    print(f"METRIC mup_transfer_loss {cost:.4f} nats goal <=0.02")


if __name__ == "__main__":
    main()
