"""Cost of attention over long sequences: operations and memory by length, and time compared with dense fused attention.

    python benchmarks/long_inputs.py [--lengths 1024 2048 4096 8192 16384] [--timed 8192] [--heads 4] [--rounds 3]

Measured are forward and backward passes of the attention of one layer, for one sequence and heads of width 64.

- Operations are those of the matrix products that torch counts.
- Memory is the peak of allocated memory, without queries, keys and values.
- A slope is the slope in logarithms from the shortest to the longest sequence: 2 is quadratic, 1 is linear.
- `scores` is attention that stores all scores, with one head (3 GiB for 16,384 positions).
- `fused` is torch's fused attention: its memory is linear, but its operations are quadratic.
- Reformer's four hashes are meant for 65,536 positions or more. Each query is compared with 2,048 keys in sequences of
  any length.
- Transformer-XL reads the sequence in segments. Its projections are counted as well. All activations are stored until
  the end of the sequence, whereas a run frees them after each segment.

The last part is the peak memory of a training step of models with different numbers of layers: Reformer's reversible
layers, and the same layers with ordinary residual connections. Weights and gradients are not included.
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

from megaptm.families import CATALOGUE
from megaptm.families.bigbird.pattern import SparseBlocks
from megaptm.families.reformer.attention import HashedAttend
from megaptm.families.reformer.costs import HashedAttentionCosts
from megaptm.families.reformer.pattern import ChunkPairs
from megaptm.families.reformer.spec import ReversibleResidual
from megaptm.families.transformer_xl.attention import RelativeAttention, distance_sines
from megaptm.families.transformer_xl.costs import RelativeAttentionCosts
from megaptm.layers.mask import Mask
from megaptm.layers.pattern import Pattern, SlidingWindow
from megaptm.layers.sparse import attend_by_tiles
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, ResidualSpec, Size, change
from megaptm.train import cpu_tuning

KEY, SEGMENT = 64, 512
SCORED_HEADS = 1
"""Number of heads of attention that stores all scores."""
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Function of queries, keys and values [S, 1, H, K]."""


def attend_tiles(pattern: Pattern) -> Attention:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = Mask((len(q), len(q)), q.device, causal=pattern in CAUSAL, pattern=pattern)
        return attend_by_tiles(q, k, v, mask, None, scale=KEY**-0.5, dropout=0.0)

    return attend


def attend_hashes(heads: int) -> Attention:
    """Return the LSH attention of the third layer of Reformer on enwik8. Queries are also the keys."""
    block, size = CATALOGUE["reformer"].last_block.at(2), Size(layers=1, width=heads * KEY, heads=heads, ffn=1)
    attend = HashedAttend(HashedAttentionCosts(block, size, size.width), dropout=0.0)
    return lambda q, k, v: attend.forward(q, v, None, attend.hash_buckets(q))


def attend_segments(heads: int) -> Attention:
    """Return the attention of Transformer-XL: each segment attends to itself and the previous one. Only queries are
    used, as hidden states."""
    block, size = CATALOGUE["transformer-xl"].last_block, Size(layers=1, width=heads * KEY, heads=heads, ffn=1)
    layer = RelativeAttention(RelativeAttentionCosts(block, size, size.width), dropout=0.0)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    bias = torch.zeros(KEY, heads)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outputs, past = [], q.new_zeros(0, 1, size.width)
        for segment in q.flatten(2).split(SEGMENT):
            mask = torch.ones(len(segment), len(past) + len(segment), dtype=torch.bool).tril(len(past))
            sines = distance_sines(len(segment), len(past), width=size.width, both_sides=False)
            outputs.append(layer(segment, mask[None, None], sines, None, past, bias, bias))
            past = segment.detach()
        return torch.cat(outputs)

    return attend


def attend_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(*(tensor.permute(1, 2, 0, 3) for tensor in (q, k, v)))


def attend_with_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return attend_fused(q, k, v)


BANDED, LOCAL = SlidingWindow(255, 0), ChunkPairs(128)
CAUSAL = (BANDED, LOCAL)


def sparse_attentions(heads: int) -> dict[str, Attention]:
    """Return name of a family -> its attention."""
    return {
        "longformer": attend_tiles(SlidingWindow(256, 256)),
        "longformer_dilated": attend_tiles(SlidingWindow(256, 256, dilation=2)),
        "bigbird": attend_tiles(SparseBlocks(64, 3, heads=range(heads))),
        "gpt3_banded": attend_tiles(BANDED),
        "reformer_local": attend_tiles(LOCAL),
        "reformer_hashed": attend_hashes(heads),
        "transformer_xl": attend_segments(heads),
    }


def make_inputs(length: int, heads: int) -> list[Tensor]:
    qkv = torch.randn(length, 1, heads, 3, KEY, generator=torch.Generator().manual_seed(0))
    return [tensor.detach().requires_grad_() for tensor in qkv.unbind(3)]


def make_step(attend: Attention, x: list[Tensor]) -> Callable[[], object]:
    d_out = torch.ones(()).expand(attend(*x).shape)
    return lambda: torch.autograd.grad(attend(*x), x, d_out, allow_unused=True)


def count_operations(attend: Attention, length: int, heads: int) -> int:
    x = make_inputs(length, heads)
    with FlopCounterMode(display=False) as counter:
        output = attend(*x)
        torch.autograd.grad(output, x, torch.ones_like(output), allow_unused=True)
    flops: int = counter.get_total_flops()
    return flops


def measure_attention(attend: Attention, length: int, heads: int) -> int:
    x = make_inputs(length, heads)

    def run() -> object:
        output = attend(*x)
        return output, torch.autograd.grad(output, x, torch.ones_like(output), allow_unused=True)

    return peak_bytes(run)


def measure_model(residual: ResidualSpec, layers: int, length: int) -> int:
    """Return the peak memory of a step of a model with Reformer's layers for enwik8 and width 256, for one sequence."""
    table = CATALOGUE["reformer"]
    block = change(table.last_block, residual=residual, position="learned")
    family = change(table, stacks={"decoder": block})
    size = Size(layers=layers, width=256, heads=4, ffn=1024)
    model = Model(ModelSpec(family=family, size=size, vocabulary=258, context=length, dropout=0.0))
    init_weights(model, seed=1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    text = torch.randint(258, (1, length + 1), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        loss, count = model({"tokens": text[:, :-1], "labels": text[:, 1:]}).losses["lm"]
        (loss / count).backward()

    return peak_bytes(step)


def log_slope(values: dict[int, int]) -> float:
    (first, low), (last, high) = min(values.items()), max(values.items())
    return math.log(high / low) / math.log(last / first)


def main() -> None:
    parser = Options(__doc__)
    parser.add("--lengths", default=[1024, 2048, 4096, 8192, 16384], short=[1024, 2048], nargs="+", type=int)
    parser.add("--timed", default=8192, short=1024, help="length of the timed sequence")
    parser.add("--heads", default=4, short=1)
    parser.add("--layers", default=[4, 8, 12, 16], short=[1, 2], nargs="+", type=int)
    parser.add("--deep", default=4096, short=512, help="length of the sequence in the memory of models")
    parser.add("--rounds", default=3, short=1)
    parser.add("--threads", default=1, short=1)
    options = parser.read()
    torch.set_num_threads(options.threads)
    cpu_tuning.tune_for_cpu()
    sparse = sparse_attentions(options.heads)
    print(f"{'':20} {'positions':>9} {'GFLOP':>8} {'MiB':>8}")
    slopes: dict[str, tuple[float, float]] = {}
    for name, attend in {**sparse, "scores": attend_with_scores}.items():
        heads = SCORED_HEADS if attend is attend_with_scores else options.heads
        flops = {n: count_operations(attend, n, heads) for n in options.lengths}
        memory = {n: measure_attention(attend, n, heads) for n in options.lengths}
        for n in options.lengths:
            print(f"{name:20} {n:9,} {flops[n] / 1e9:8.2f} {memory[n] / 2**20:8.1f}")
        slopes[name] = log_slope(flops), log_slope(memory)
    for name, (flops_slope, memory_slope) in slopes.items():
        print(f"{name:20} slopes: operations {flops_slope:.2f}, memory {memory_slope:.2f}")

    x = make_inputs(options.timed, options.heads)
    seconds = median_seconds(
        {name: make_step(attend, x) for name, attend in {**sparse, "fused": attend_fused}.items()}, options.rounds
    )
    for name, value in seconds.items():
        print(f"{name:20} {options.timed:8,} positions {value * 1e3:8.1f} ms")
    growth = {}
    for residual in (ReversibleResidual(), ResidualSpec()):
        memory = {layers: measure_model(residual, layers, options.deep) for layers in options.layers}
        for layers, peak in memory.items():
            print(f"{residual.kind:20} {options.deep:8,} positions {layers:4} layers {peak / 2**20:8.1f} MiB")
        (shallow, low), (deep, high) = min(memory.items()), max(memory.items())
        growth[residual.kind] = (high - low) / (deep - shallow) / low
    print(f"each ordinary layer adds {growth['sum']:.3f} of the memory of {min(options.layers)} layers")
    print(f"METRIC reversible_memory_of_a_layer {growth['reversible']:.4f} ratio goal <=0.05")
    for name in sparse:
        flops_slope, memory_slope = slopes[name]
        print(f"METRIC {name}_operations_slope {flops_slope:.3f} ratio goal <=1.2")
        print(f"METRIC {name}_memory_slope {memory_slope:.3f} ratio goal <=1.15")
        if name not in ("reformer_hashed", "transformer_xl"):
            print(f"METRIC {name}_over_fused {seconds['fused'] / seconds[name]:.2f} ratio goal >=3")


if __name__ == "__main__":
    main()
