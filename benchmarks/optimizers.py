"""Steps in which Muon reaches the loss of AdamW, on a small GPT-2 and real text.

    python benchmarks/optimizers.py [--steps 300] [--seeds 3] [--plot optimizers.png]

The model is configs/gpt2/tiny.yaml, on Python's standard library. Each rule first trains with several learning rates,
from one seed; the rate with the lowest held-out loss is used for all seeds. All runs have the same schedule. The result
is the number of steps in which Muon reaches the held-out loss that AdamW has at its end, as a share of AdamW's steps:
the median of the seeds.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.options import Options
from common.tiny_gpt2 import build_corpus, held_out_losses

RATES = {"adamw": (1e-3, 2e-3, 4e-3), "muon": (4e-3, 8e-3, 1.6e-2)}


def train(folder: Path, rule: str, rate: float, seed: int, steps: int) -> list[tuple[float, float]]:
    """Return the held-out losses of a run, by step."""
    keys = {"optimizer.name": rule, "optimizer.lr": rate, "train.seed": seed}
    return held_out_losses(folder, f"{rule}-{rate}-{seed}", steps, keys)


def best_rate(folder: Path, rule: str, steps: int) -> float:
    """Return the learning rate with the lowest held-out loss at the end."""
    final = {rate: train(folder, rule, rate, 0, steps)[-1][1] for rate in RATES[rule]}
    for rate, loss in final.items():
        print(f"{rule:<6} lr {rate:<7g} held-out loss {loss:.4f}", flush=True)
    return min(final, key=final.__getitem__)


def first_step(losses: Sequence[tuple[float, float]], level: float) -> float:
    """Return the first step with a loss of at most `level`; infinity if there is none."""
    return next((step for step, loss in losses if loss <= level), float("inf"))


def plot(path: Path, curves: dict[str, list[list[tuple[float, float]]]]) -> None:
    """Plot the held-out losses of all seeds, a color for each rule."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for color, (label, seeds) in zip(("C0", "C1"), curves.items(), strict=True):
        for number, losses in enumerate(seeds):
            axes.plot(*zip(*losses, strict=True), color=color, label=label if number == 0 else None)
    axes.set(xlabel="step", ylabel="held-out loss (nats a token)", title="GPT-2 tiny, Python's standard library")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--steps", default=300, short=4)
    arguments.add("--seeds", default=3, short=1)
    arguments.add("--plot", default="optimizers.png", short="", help="file of the plot; empty: no plot")
    options = arguments.read()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_corpus(folder, short=options.short)
        rates = {rule: best_rate(folder, rule, options.steps) for rule in RATES}
        curves = {
            f"{rule}, lr {rate:g}": [train(folder, rule, rate, seed, options.steps) for seed in range(options.seeds)]
            for rule, rate in rates.items()
        }
    adamw, muon = curves.values()
    shares = []
    for seed, (slow, fast) in enumerate(zip(adamw, muon, strict=True)):
        shares.append(first_step(fast, slow[-1][1]) / slow[-1][0])
        print(f"seed {seed}: adamw {slow[-1][1]:.4f}, muon {fast[-1][1]:.4f}; reached in {shares[-1]:.0%} of the steps")
    if options.plot:
        plot(Path(options.plot), curves)
    print(f"METRIC muon_steps_share {statistics.median(shares):.3f} of_adamw goal <=0.85")


if __name__ == "__main__":
    main()
