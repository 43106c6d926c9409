"""What attention over long rows costs: operations and memory as rows grow, and time beside dense fused attention.

    python benchmarks/long_inputs.py [--lengths 1024 2048 4096 8192 16384] [--timed 8192] [--heads 4] [--rounds 3]

One layer's attention, forward and backward, one row, heads 64 wide. Operations are those of products that torch
counts; memory is the most that is allocated at a time, queries, keys and values left out. A slope is that of the
logarithms, from the shortest row to the longest: 2 is quadratic, 1 linear. `scores` is attention that keeps all
scores, in one head: of 16,384 places they take 3 GiB; `fused` is torch's own, whose memory is linear too, but whose
operations are not. Reformer's four hashes are chosen for rows of 65,536 places and more: a place is compared with
2,048 others however short its row. Transformer-XL reads a text of so many places segment after segment; its maps are
counted, too, and what each segment keeps for its backward pass is kept to the end of the text, where a run lets go of
it after each.

Then a training step's peak of memory in whole models that differ in their number of layers alone: Reformer's, whose
layers are computed back, and the same layers as a sum, of which autograd keeps all. What was there before, weights and
room for their gradients, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from common.memory import peak_bytes
from common.options import Options
from common.rounds import median_seconds
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megaptm import cpu_tuning
from megaptm.bricks.attention import HashedAttentionBrick, RelativeAttentionBrick
from megaptm.bricks.pattern import ChunkPairs, Pattern, SlidingWindow, SparseBlocks
from megaptm.families import CATALOGUE
from megaptm.layers.lsh import HashedAttend
from megaptm.layers.mask import Mask
from megaptm.layers.relative import RelativeAttention, distance_sines
from megaptm.layers.sparse import attend_by_tiles
from megaptm.models import build_model, fill
from megaptm.spec import ModelSpec, Size, change

KEY, SEGMENT = 64, 512
SCORED_HEADS = 1
"""Of attention that keeps all scores."""
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of queries, keys and values [S, 1, H, K]."""


def by_tiles(pattern: Pattern) -> Attention:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = Mask((len(q), len(q)), q.device, causal=pattern in CAUSAL, pattern=pattern)
        return attend_by_tiles(q, k, v, mask, None, scale=KEY**-0.5, dropout=0.0)

    return attend


def by_hashes(heads: int) -> Attention:
    """As the third layer of Reformer on enwik8; keys are queries."""
    block, size = CATALOGUE["reformer"].last_block.at(2), Size(layers=1, width=heads * KEY, heads=heads, ffn=1)
    attend = HashedAttend(HashedAttentionBrick(block, size, size.width), dropout=0.0)
    return lambda q, k, v: attend.forward(q, v, None, attend.buckets(q))


def by_segments(heads: int) -> Attention:
    """As Transformer-XL reads a text: each segment sees itself and the one before. Keys and values are its own."""
    block, size = CATALOGUE["transformer-xl"].last_block, Size(layers=1, width=heads * KEY, heads=heads, ffn=1)
    layer = RelativeAttention(RelativeAttentionBrick(block, size, size.width), dropout=0.0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    bias = torch.zeros(KEY, heads)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found, past = [], q.new_zeros(0, 1, size.width)
        for segment in q.flatten(2).split(SEGMENT):
            seen = torch.ones(len(segment), len(past) + len(segment), dtype=torch.bool).tril(len(past))
            sines = distance_sines(len(segment), len(past), width=size.width, both_sides=False)
            found.append(layer(segment, seen[None, None], sines, None, past, bias, bias))
            past = segment.detach()
        return torch.cat(found)

    return attend


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(one.permute(1, 2, 0, 3) for one in (q, k, v)))


def with_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return dense(q, k, v)


BANDED, LOCAL = SlidingWindow(255, 0), ChunkPairs(128)
CAUSAL = (BANDED, LOCAL)


def contenders(heads: int) -> dict[str, Attention]:
    """As the families have them."""
    return {
        "longformer": by_tiles(SlidingWindow(256, 256)),
        "longformer_dilated": by_tiles(SlidingWindow(256, 256, dilation=2)),
        "bigbird": by_tiles(SparseBlocks(64, 3, heads=range(heads))),
        "gpt3_banded": by_tiles(BANDED),
        "reformer_local": by_tiles(LOCAL),
        "reformer_hashed": by_hashes(heads),
        "transformer_xl": by_segments(heads),
    }


def given(length: int, heads: int) -> list[Tensor]:
    joint = torch.randn(length, 1, heads, 3, KEY, generator=torch.Generator().manual_seed(0))
    return [one.detach().requires_grad_() for one in joint.unbind(3)]


def step(attend: Attention, x: list[Tensor]) -> Callable[[], object]:
    back = torch.ones(()).expand(attend(*x).shape)
    return lambda: torch.autograd.grad(attend(*x), x, back, allow_unused=True)


def operations(attend: Attention, length: int, heads: int) -> int:
    x = given(length, heads)
    with FlopCounterMode(display=False) as counter:
        mixed = attend(*x)
        torch.autograd.grad(mixed, x, torch.ones_like(mixed), allow_unused=True)
    counted: int = counter.get_total_flops()
    return counted


def attention_bytes(attend: Attention, length: int, heads: int) -> int:
    x = given(length, heads)

    def there_and_back() -> object:
        mixed = attend(*x)
        return mixed, torch.autograd.grad(mixed, x, torch.ones_like(mixed), allow_unused=True)

    return peak_bytes(there_and_back)


def step_bytes(residual: str, layers: int, length: int) -> int:
    """Of a row of so many bytes, in a model of Reformer's layers on enwik8, 256 wide."""
    table = CATALOGUE["reformer"]
    block = change(table.last_block, residual=residual, position="learned")
    family = change(table, stacks={"decoder": block})
    size = Size(layers=layers, width=256, heads=4, ffn=1024)
    model = build_model(ModelSpec(family=family, size=size, vocabulary=258, context=length, dropout=0.0))
    fill(model, seed=1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    text = torch.randint(258, (1, length + 1), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        loss, count = model({"tokens": text[:, :-1], "labels": text[:, 1:]}).losses["lm"]
        (loss / count).backward()

    return peak_bytes(step)


def slope(values: dict[int, int]) -> float:
    (first, low), (last, high) = min(values.items()), max(values.items())
    return math.log(high / low) / math.log(last / first)


def main() -> None:
    parser = Options(__doc__)
    parser.add("--lengths", default=[1024, 2048, 4096, 8192, 16384], short=[1024, 2048], nargs="+", type=int)
    parser.add("--timed", default=8192, short=1024)
    parser.add("--heads", default=4, short=1)
    parser.add("--layers", default=[4, 8, 12, 16], short=[1, 2], nargs="+", type=int)
    parser.add("--deep", default=4096, short=512)
    parser.add("--rounds", default=3, short=1)
    parser.add("--threads", default=1, short=1)
    options = parser.read()
    torch.set_num_threads(options.threads)
    cpu_tuning.install()
    sparse = contenders(options.heads)
    print(f"{'':20} {'places':>8} {'GFLOP':>8} {'MiB':>8}")
    slopes: dict[str, tuple[float, float]] = {}
    for name, attend in {**sparse, "scores": with_scores}.items():
        heads = SCORED_HEADS if attend is with_scores else options.heads
        counted = {n: operations(attend, n, heads) for n in options.lengths}
        taken = {n: attention_bytes(attend, n, heads) for n in options.lengths}
        for n in options.lengths:
            print(f"{name:20} {n:8,} {counted[n] / 1e9:8.2f} {taken[n] / 2**20:8.1f}")
        slopes[name] = slope(counted), slope(taken)
    for name, (of_operations, of_memory) in slopes.items():
        print(f"{name:20} slopes: operations {of_operations:.2f}, memory {of_memory:.2f}")

    x = given(options.timed, options.heads)
    seconds = median_seconds(
        {name: step(attend, x) for name, attend in {**sparse, "fused": dense}.items()}, options.rounds
    )
    for name, taken_seconds in seconds.items():
        print(f"{name:20} {options.timed:8,} places {taken_seconds * 1e3:8.1f} ms")
    growth = {}
    for residual in ("reversible", "sum"):
        taken = {layers: step_bytes(residual, layers, options.deep) for layers in options.layers}
        for layers, most in taken.items():
            print(f"{residual:20} {options.deep:8,} places {layers:4} layers {most / 2**20:8.1f} MiB")
        (shallow, low), (deep, high) = min(taken.items()), max(taken.items())
        growth[residual] = (high - low) / (deep - shallow) / low
    print(f"a layer more of the sum takes {growth['sum']:.3f} of what {min(options.layers)} layers take")
    print(f"METRIC reversible_memory_of_a_layer {growth['reversible']:.4f} ratio goal <=0.05")
    for name in sparse:
        of_operations, of_memory = slopes[name]
        print(f"METRIC {name}_operations_slope {of_operations:.3f} ratio goal <=1.2")
        print(f"METRIC {name}_memory_slope {of_memory:.3f} ratio goal <=1.15")
        if name not in ("reformer_hashed", "transformer_xl"):
            print(f"METRIC {name}_over_fused {seconds['fused'] / seconds[name]:.2f} ratio goal >=3")


if __name__ == "__main__":
    main()
