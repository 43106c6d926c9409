"""Training step of GPT-2 (6 layers, width 768, sequence 512), compared with Hugging Face.

    python benchmarks/step.py [--rounds 5] [--threads 2]

Both train on the same ids with fused AdamW and gradient clipping, without dropout. megaptm runs its complete engine,
with megatron-core's data-parallel wrapper and optimizer, in one process. Rounds alternate, and the ratio is of medians.
In bf16, megaptm has fp32 master weights. The peer is measured with fp32 weights under autocast and completely in bf16,
and the faster one counts. It has a process of its own, as in `families.py`. The limit is the speed of a matrix product
on this machine, by the faster of torch's libraries.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from common.alone import join_alone
from common.options import Options
from common.peer import training_step
from common.peer_process import PeerProcess
from common.rounds import median_seconds

from megaptm.families import CATALOGUE
from megaptm.plan.count import step_flops
from megaptm.spec import ModelSpec, Size

BATCH, VOCABULARY, CONTEXT = 2, 50257, 1024


@dataclass(frozen=True)
class Shape:
    """Shape of the model and length of a sequence."""

    layers: int = 6
    width: int = 768
    heads: int = 12
    length: int = 512

    @property
    def spec(self) -> ModelSpec:
        size = Size(layers=self.layers, width=self.width, heads=self.heads, ffn=4 * self.width)
        return ModelSpec(family=CATALOGUE["gpt2"], size=size, vocabulary=VOCABULARY, context=CONTEXT, dropout=0.0)


SHORT = Shape(layers=1, width=48, length=32)


def megaptm_step(precision: str, shape: Shape) -> Callable[[], float]:
    from megaptm.config import Layout, OptimizerConfig
    from megaptm.parallel.build import build_engine

    optimizer = OptimizerConfig(lr=1e-4, clip=1.0, weight_decay=0.1)
    engine = build_engine(
        shape.spec, Layout(microbatch=BATCH), optimizer, losses={"lm": 1.0}, seed=0, precision=precision
    )
    engine.init_weights()
    tokens = torch.randint(0, VOCABULARY, (BATCH, shape.length + 1), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(shape.length).expand(BATCH, -1).contiguous()
    batch = {"tokens": tokens[:, :-1].contiguous(), "positions": positions, "labels": tokens[:, 1:].contiguous()}
    steps = iter(range(10**9))
    return lambda: engine.train_step([batch], step=next(steps), lr=1e-4).loss


def peer_step(precision: str, shape: Shape) -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=shape.layers, n_embd=shape.width, n_head=shape.heads)
    config.vocab_size, config.n_positions = VOCABULARY, CONTEXT
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")
    tokens = torch.randint(0, VOCABULARY, (BATCH, shape.length), generator=torch.Generator().manual_seed(0))
    return training_step(model, precision, input_ids=tokens, labels=tokens, use_cache=False)


def measure_matmul(dtype: torch.dtype, shape: Shape) -> float:
    """Return the FLOP/s of a matrix product with the shape of the feed-forward."""
    width, rows = shape.width, BATCH * shape.length
    a, b = torch.randn(rows, width).to(dtype), torch.randn(width, 4 * width).to(dtype)
    times = []
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * rows * width * 4 * width / statistics.median(times)


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--rounds", default=5, short=1)
    arguments.add_argument("--threads", type=int, default=2)
    options = arguments.read()
    torch.set_num_threads(options.threads)

    shape = SHORT if options.short else Shape()
    join_alone()
    peer = PeerProcess(threads=options.threads)
    flops = step_flops(shape.spec, rows=BATCH, lengths=dict.fromkeys(shape.spec.family.stacks, shape.length))
    metrics = []
    print(f"{'':<28}{'s/step':>9}{'tokens/s':>11}{'GFLOP/s':>10}{'of matmul':>11}")
    for precision, peers in {"fp32": ["fp32"], "bf16": ["bf16 autocast", "all bf16"]}.items():
        contenders = {f"megaptm {precision}": megaptm_step(precision, shape)}
        contenders |= {f"transformers {mode}": peer.build(peer_step, mode, shape) for mode in peers}
        seconds = median_seconds(contenders, options.rounds)
        limit = measure_matmul(torch.bfloat16 if precision == "bf16" else torch.float32, shape)
        for name, value in seconds.items():
            speed, tokens = flops / value, BATCH * shape.length / value
            print(
                f"{name:<28}{value:>9.3f}{tokens:>11,.0f}{speed / 1e9:>10.0f}{speed / limit:>10.0%}",
                flush=True,
            )
        own, *peer_seconds = seconds.values()
        ratio = min(peer_seconds) / own
        metrics.append(f"METRIC step_{precision}_over_transformers {ratio:.3f} ratio goal >=1.2")
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
