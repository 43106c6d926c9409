"""Matrix products and attention of a layer on this CPU, with and without `megaptm.train.cpu_tuning`.

    python benchmarks/products.py [--rounds 9] [--threads 1]

Measured are a linear layer on 1,024 rows with its two gradients, and attention with 12 heads of width 64, forward and
backward, in fp32 and bf16. If nothing is tuned on this processor, the ratio is 1. Rounds alternate, and ratios are of
medians. Both keep freed memory (`keep_freed_memory`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from common.options import Options
from common.rounds import median_seconds

from megaptm.train import cpu_tuning

HEADS, HEAD = 12, 64
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def make_products(dtype: torch.dtype, rows: int, width: int) -> dict[str, Callable[[], object]]:
    """Return the first linear layer of a feed-forward, with the gradients of its input and weight."""
    x, weight = (torch.randn(n, width).to(dtype).requires_grad_() for n in (rows, 4 * width))
    d_out = torch.randn(rows, 4 * width).to(dtype)

    return with_and_without_tuning(lambda: torch.autograd.grad(F.linear(x, weight), (x, weight), d_out))


def make_attentions(dtype: torch.dtype, rows: int, length: int, *, causal: bool) -> dict[str, Callable[[], object]]:
    q, k, v = (torch.randn(length, rows, HEADS, HEAD).to(dtype).requires_grad_() for _ in range(3))
    d_out, scale = torch.randn(length, rows, HEADS, HEAD).to(dtype), HEAD**-0.5

    def attend() -> object:
        heads = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        out = F.scaled_dot_product_attention(*heads, is_causal=causal, scale=scale).permute(2, 0, 1, 3)
        return torch.autograd.grad(out, (q, k, v), d_out)

    return with_and_without_tuning(attend)


def with_and_without_tuning(compute: Callable[[], object]) -> dict[str, Callable[[], object]]:
    def tuned() -> None:
        restore = cpu_tuning.tune_for_cpu()  # takes less than a millisecond
        compute()
        restore()

    return {"megaptm": tuned, "torch": compute}


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--rounds", default=9, short=1)
    arguments.add("--width", default=768, short=64)
    arguments.add_argument("--threads", type=int, default=1)
    options = arguments.read()
    torch.set_num_threads(options.threads)
    cpu_tuning.keep_freed_memory()
    rows, metrics = 1024, []
    print(f"{'':<28}{'megaptm':>12}{'torch':>12}{'ratio':>8}")
    for name, dtype in FORMATS.items():
        seconds = median_seconds(make_products(dtype, rows, options.width), options.rounds)
        operations = 3 * 2 * rows * options.width * 4 * options.width
        ratio = seconds["torch"] / seconds["megaptm"]
        cells = "".join(f"{operations / value / 1e9:>12.0f}" for value in seconds.values())
        print(f"{f'linear {name}, GFLOP/s':<28}{cells}{ratio:>8.2f}")
        metrics.append(f"METRIC map_{name}_over_torch {ratio:.3f} ratio goal >=0.95")
    for texts, length in ((8, 128), (4, 197), (2, 512), (1, 1024)):
        for name, dtype in FORMATS.items():
            for mask_name, causal in (("full", False), ("causal", True)):
                if options.short and length > 197:
                    continue
                seconds = median_seconds(make_attentions(dtype, texts, length, causal=causal), options.rounds)
                ratio = seconds["torch"] / seconds["megaptm"]
                cells = "".join(f"{value * 1e3:>12.1f}" for value in seconds.values())
                print(f"{f'{mask_name} {texts} x {length} {name}, ms':<28}{cells}{ratio:>8.2f}")
                metric = f"attention_{mask_name}_{length}_{name}_over_torch"
                metrics.append(f"METRIC {metric} {ratio:.3f} ratio goal >=0.95")
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
