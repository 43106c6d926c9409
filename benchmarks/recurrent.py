"""Tokens per second of ELMo's LSTMs and of a Transformer layer, by sequence length.

    python benchmarks/recurrent.py [--tokens 4096] [--lengths 16 64 256 1024] [--rounds 3]

Measured are forward and backward passes of two LSTMs, one per direction, and of a BERT layer with as many parameters,
on one thread, in CPU time. All batches have the same number of tokens: many short sequences or few long ones. An LSTM
processes positions one after the other, so long sequences mean more and smaller products. A BERT layer processes all
positions at once, but the share of attention grows with the length.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from common.options import Options
from common.rounds import median_seconds
from torch import Tensor, nn

from megaptm.families import CATALOGUE
from megaptm.families.elmo import LAYER
from megaptm.families.elmo.stack import ProjectedLSTMStack
from megaptm.layers.mask import Mask
from megaptm.layers.stack import Stack, StackInputs
from megaptm.spec import Size
from megaptm.train import cpu_tuning

WIDTH = 128
ENCODER = Size(layers=1, width=WIDTH, heads=4, ffn=4 * WIDTH)
# A BERT layer has 12 x 128 x 128 weights. Two LSTMs of C cells with 128 outputs each have 2 x 9 x 128 x C.
LSTM = Size(layers=1, width=WIDTH, heads=1, ffn=85, memory=1)


def fill_random(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.05)
    return module


def build_layers() -> dict[str, nn.ModuleList]:
    encoder = Stack(CATALOGUE["bert"].first_block, ENCODER, range(1), dropout=0.0)
    directions = [ProjectedLSTMStack(LAYER, LSTM, range(1), dropout=0.0) for _ in range(2)]
    return {"lstm": fill_random(nn.ModuleList(directions)), "encoder": fill_random(nn.ModuleList([encoder]))}


def make_step(stacks: nn.ModuleList, x_SBD: Tensor) -> Callable[[], None]:
    mask = Mask((len(x_SBD), len(x_SBD)), x_SBD.device)

    def step() -> None:
        for stack, inputs in zip(stacks, (x_SBD, x_SBD.flip(0)), strict=False):
            stack(inputs, StackInputs(mask)).sum().backward()

    return step


def main() -> None:
    parser = Options(__doc__)
    parser.add("--tokens", default=4096, short=256)
    parser.add("--lengths", default=[16, 64, 256, 1024], short=[8, 64], nargs="+", type=int)
    parser.add("--rounds", default=3, short=1)
    options = parser.read()
    torch.set_num_threads(1)
    cpu_tuning.tune_for_cpu()
    layers = build_layers()
    num_parameters = {name: sum(p.numel() for p in stacks.parameters()) for name, stacks in layers.items()}
    print(f"{'':10}{'parameters':>12}" + "".join(f"{f'length {n}':>16}" for n in options.lengths))
    speeds: dict[str, list[float]] = {name: [] for name in layers}
    for length in options.lengths:
        x_SBD = torch.randn(length, options.tokens // length, WIDTH, generator=torch.Generator().manual_seed(0))
        steps = {name: make_step(stacks, x_SBD) for name, stacks in layers.items()}
        for name, seconds in median_seconds(steps, options.rounds, time.process_time).items():
            speeds[name].append(options.tokens / seconds)
    for name, values in speeds.items():
        print(f"{name:10}{num_parameters[name]:>12,}" + "".join(f"{speed:>8,.0f} tokens/s" for speed in values))
    print(f"METRIC encoder_over_lstm_of_long_rows {speeds['encoder'][-1] / speeds['lstm'][-1]:.2f} ratio goal >=2")


if __name__ == "__main__":
    main()
