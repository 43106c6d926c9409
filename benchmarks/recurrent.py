"""Tokens per second of layers that go through a text word after word, and of one that sees it at once, by length.

    python benchmarks/recurrent.py [--tokens 4096] [--lengths 16 64 256 1024] [--rounds 3]

ELMo's LSTMs, one from either end, and an encoder's layer of BERT's with as many parameters, forward and backward, each
step of as many tokens: many short rows, or few long ones; one thread, by processor time. What an LSTM says of a word
waits for what it said of the one before, so longer rows are more steps of less work; a layer of BERT's has one step
whatever the length, of which attention's share grows.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from common.options import Options
from common.rounds import median_seconds
from torch import Tensor, nn

from megaptm import cpu_tuning
from megaptm.families import CATALOGUE
from megaptm.families.elmo import LAYER
from megaptm.layers.layer import Stack
from megaptm.layers.mask import Mask
from megaptm.layers.recurrent import RecurrentStack
from megaptm.spec import Size

WIDTH = 128
ENCODER = Size(layers=1, width=WIDTH, heads=4, ffn=4 * WIDTH)
# A layer of BERT's has 12 x 128 x 128 weights; two LSTMs of C cells, each of which gives 128 numbers, 2 x 9 x 128 x C.
LSTM = Size(layers=1, width=WIDTH, heads=1, ffn=85, memory=1)


def filled(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.05)
    return module


def layers() -> dict[str, nn.ModuleList]:
    encoder = Stack(CATALOGUE["bert"].first_block, ENCODER, range(1), dropout=0.0)
    both = [RecurrentStack(LAYER, LSTM, range(1), dropout=0.0) for _ in range(2)]
    return {"lstm": filled(nn.ModuleList(both)), "encoder": filled(nn.ModuleList([encoder]))}


def step(stacks: nn.ModuleList, x_SBD: Tensor) -> Callable[[], None]:
    mask = Mask((len(x_SBD), len(x_SBD)), x_SBD.device)

    def once() -> None:
        for stack, read in zip(stacks, (x_SBD, x_SBD.flip(0)), strict=False):
            stack(read, mask).sum().backward()

    return once


def main() -> None:
    parser = Options(__doc__)
    parser.add("--tokens", default=4096, short=256)
    parser.add("--lengths", default=[16, 64, 256, 1024], short=[8, 64], nargs="+", type=int)
    parser.add("--rounds", default=3, short=1)
    options = parser.read()
    torch.set_num_threads(1)
    cpu_tuning.install()
    found = layers()
    counted = {name: sum(p.numel() for p in stacks.parameters()) for name, stacks in found.items()}
    print(f"{'':10}{'parameters':>12}" + "".join(f"{f'rows of {n}':>16}" for n in options.lengths))
    speeds: dict[str, list[float]] = {name: [] for name in found}
    for length in options.lengths:
        x_SBD = torch.randn(length, options.tokens // length, WIDTH, generator=torch.Generator().manual_seed(0))
        steps = {name: step(stacks, x_SBD) for name, stacks in found.items()}
        for name, seconds in median_seconds(steps, options.rounds, time.process_time).items():
            speeds[name].append(options.tokens / seconds)
    for name, of_lengths in speeds.items():
        print(f"{name:10}{counted[name]:>12,}" + "".join(f"{speed:>9,.0f} token/s" for speed in of_lengths))
    print(f"METRIC encoder_over_lstm_of_long_rows {speeds['encoder'][-1] / speeds['lstm'][-1]:.2f} ratio goal >=2")


if __name__ == "__main__":
    main()
