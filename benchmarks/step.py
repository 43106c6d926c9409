"""Training step of GPT-2 (6 layers, width 768, sequence 512) beside Hugging Face's, same machine, same minute.

    python benchmarks/step.py [--rounds 5] [--threads 2]

Both train on the same ids with fused AdamW, gradient clipping and no dropout; ours is the whole engine (megatron-core's
data-parallel wrapper and optimizer included) in one process. Rounds alternate, and the ratio is of medians, because
machines are noisy. bf16: ours keeps fp32 masters; the peer is measured both ways, fp32 weights under autocast and all
bf16, and the faster one counts. The limit is what a plain matrix product of the same machine reaches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

ROWS, LENGTH, VOCABULARY = 2, 512, 50257
LAYERS, WIDTH, HEADS = 6, 768, 12


def ours(precision: str) -> Callable[[], float]:
    from megaptm.config import Layout, Optimizer
    from megaptm.families import CATALOGUE
    from megaptm.parallel.engine import Engine
    from megaptm.spec import ModelSpec, Size

    size = Size(layers=LAYERS, width=WIDTH, heads=HEADS, ffn=4 * WIDTH)
    spec = ModelSpec(family=CATALOGUE["gpt2"], size=size, vocabulary=VOCABULARY, context=1024, dropout=0.0)
    optimizer = Optimizer(lr=1e-4, clip=1.0, weight_decay=0.1)
    engine = Engine(spec, Layout(microbatch=ROWS), optimizer, losses={"lm": 1.0}, seed=0, precision=precision)
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(LENGTH).expand(ROWS, -1).contiguous()
    batch = {"tokens": tokens[:, :-1].contiguous(), "positions": positions, "labels": tokens[:, 1:].contiguous()}
    steps = iter(range(10**9))
    return lambda: engine.step([batch], step=next(steps), lr=1e-4).loss


def hugging_face(precision: str) -> Callable[[], float]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=LAYERS, n_embd=WIDTH, n_head=HEADS, vocab_size=VOCABULARY, n_positions=1024)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()
    if precision == "all bf16":
        model.to(torch.bfloat16)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    tokens = torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16 autocast"):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        return loss.item()

    return step


def matmul_flops(dtype: torch.dtype) -> float:
    """FLOP/s of a plain product of the shape of the feed-forward."""
    a, b = torch.randn(ROWS * LENGTH, WIDTH).to(dtype), torch.randn(WIDTH, 4 * WIDTH).to(dtype)
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - begun)
    return 2 * a.shape[0] * WIDTH * 4 * WIDTH / statistics.median(times)


def median_seconds(contenders: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for step in contenders.values():
        step()  # warm up
    for _ in range(rounds):
        for name, step in contenders.items():
            begun = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=2)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)

    from megaptm.parallel.groups import join
    from megaptm.plan.count import step_flops
    from megaptm.spec import ModelSpec, Size

    join(rank=0, world=1, local_rank=0, init_method="tcp://127.0.0.1:29533")
    from megaptm.families import CATALOGUE

    size = Size(layers=LAYERS, width=WIDTH, heads=HEADS, ffn=4 * WIDTH)
    spec = ModelSpec(family=CATALOGUE["gpt2"], size=size, vocabulary=VOCABULARY, context=1024, dropout=0.0)
    flops = step_flops(spec, rows=ROWS, sequence=LENGTH)
    metrics = []
    print(f"{'':<28}{'s/step':>9}{'tokens/s':>11}{'GFLOP/s':>10}{'of matmul':>11}")
    for precision, peers in {"fp32": ["fp32"], "bf16": ["bf16 autocast", "all bf16"]}.items():
        contenders = {f"megaptm {precision}": ours(precision)}
        contenders |= {f"transformers {peer}": hugging_face(peer) for peer in peers}
        seconds = median_seconds(contenders, options.rounds)
        limit = matmul_flops(torch.bfloat16 if precision == "bf16" else torch.float32)
        for name, value in seconds.items():
            speed = flops / value
            print(
                f"{name:<28}{value:>9.3f}{ROWS * LENGTH / value:>11,.0f}{speed / 1e9:>10.0f}{speed / limit:>10.0%}",
                flush=True,
            )
        own, *others = seconds.values()
        metrics.append(f"METRIC step_{precision}_over_transformers {min(others) / own:.3f} ratio goal >=1.2")
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
