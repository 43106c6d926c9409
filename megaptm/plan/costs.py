"""Seconds of the operations of a layer on one rank, forward and backward.

A product of matrices takes its operations at the rate a large product reaches, and the reading and writing of its
operands at the memory's: small products are slow because the second part does not shrink with the first. Everything
between products takes the bytes it reads and writes. Both are counted from what `layers/` and megatron-core's linear
maps do; the machine's file says at which rates.
"""

# N tokens of a micro-batch, D width, A = heads x key width, F feed-forward features, T tensor ranks

from __future__ import annotations

from dataclasses import dataclass

from megaptm.plan.links import collective
from megaptm.plan.machine import Machine
from megaptm.plan.stages import Chunk, layer_weights
from megaptm.plan.work import Work
from megaptm.spec import Block


@dataclass(frozen=True)
class Seconds:
    """Of one pass over something, by what the device does meanwhile."""

    products: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    """Norms, nonlinearities, dropout, sums, and the time between kernels."""
    tensor: float = 0.0
    """Tensor-parallel communication that nothing hides."""

    @property
    def total(self) -> float:
        return self.products + self.attention + self.memory + self.tensor

    def __add__(self, other: Seconds) -> Seconds:
        # Written out: a search adds some hundred thousand of these.
        return Seconds(
            self.products + other.products,
            self.attention + other.attention,
            self.memory + other.memory,
            self.tensor + other.tensor,
        )

    def __mul__(self, times: float) -> Seconds:
        return Seconds(self.products * times, self.attention * times, self.memory * times, self.tensor * times)


@dataclass(frozen=True)
class Passes:
    """Forward, backward, and what the backward pass computes again."""

    forward: Seconds
    backward: Seconds
    again: Seconds = Seconds()

    def __add__(self, other: Passes) -> Passes:
        return Passes(self.forward + other.forward, self.backward + other.backward, self.again + other.again)

    def __mul__(self, times: float) -> Passes:
        return Passes(self.forward * times, self.backward * times, self.again * times)

    @property
    def total(self) -> float:
        return self.forward.total + self.backward.total + self.again.total


def product(machine: Machine, work: Work, rows: float, inputs: float, outputs: float) -> float:
    """Seconds of [rows, inputs] @ [inputs, outputs]."""
    operations = 2 * rows * inputs * outputs / (machine.peak(work.precision) * machine.efficiency.matmul)
    moved = work.element * (rows * inputs + inputs * outputs + rows * outputs) / machine.bandwidth
    return operations + moved + machine.efficiency.kernel_microseconds * 1e-6


def stage(machine: Machine, work: Work, held: list[Chunk]) -> Passes:
    """One micro-batch through all chunks of a stage."""
    total = Passes(Seconds(), Seconds())
    layers = {name: layer(machine, work, name) for name in work.lengths}
    for chunk in held:
        for name, number in chunk.layers.items():
            total += layers[name] * number
        if chunk.first:
            total += embedding(machine, work)
        if chunk.last:
            total += head(machine, work)
    return total


def layer(machine: Machine, work: Work, stack: str) -> Passes:
    """One layer of a stack, for one micro-batch."""
    block: Block = getattr(work.spec.family, stack)
    first = next(iter(work.lengths))
    passes = _linears(machine, work, block, stack) + _elementwise(machine, work, block, stack)
    passes += _attention(machine, work, block, stack, stack)
    if block.cross:
        passes += _attention(machine, work, block, stack, first)
    passes += _communication(machine, work, block, stack)
    if work.recompute == "full":
        return Passes(passes.forward, passes.backward, passes.forward)
    if work.recompute == "selective":
        again = _attention(machine, work, block, stack, stack).forward
        return Passes(passes.forward, passes.backward, again)
    return passes


def _linears(machine: Machine, work: Work, block: Block, stack: str) -> Passes:
    size, tensor = work.spec.size, work.layout.tensor
    inner, tokens = size.heads * size.key_width, work.layout.microbatch * work.lengths[stack]
    up = 2 if block.gated else 1
    maps = [
        (tokens, size.width, 3 * inner / tensor),
        (tokens, inner / tensor, size.width),
        (tokens, size.width, up * size.ffn / tensor),
        (tokens, size.ffn / tensor, size.width),
    ]
    if block.cross:
        memory = work.layout.microbatch * next(iter(work.lengths.values()))
        maps += [
            (tokens, size.width, inner / tensor),
            (memory, size.width, 2 * inner / tensor),
            (tokens, inner / tensor, size.width),
        ]
    forward = sum(product(machine, work, *shape) for shape in maps)
    # The same operations for the input's gradient and for the weight's, whose operands are the same three matrices.
    return Passes(Seconds(products=forward), Seconds(products=2 * forward))


def _attention(machine: Machine, work: Work, block: Block, queries: str, keys: str) -> Passes:
    """Scores, softmax, dropout, mean of values; fused in one kernel or one by one."""
    size, tensor = work.spec.size, work.layout.tensor
    rows, heads = work.layout.microbatch, size.heads / tensor
    asking, asked = work.lengths[queries], work.lengths[keys]
    pairs = rows * heads * asking * asked
    if work.software.attention == "materialized":
        return _materialized(machine, work, pairs)
    causal = block.attention == "causal" and queries == keys and not work.masked
    operations = 4 * pairs * size.key_width * (0.5 if causal else 1.0)
    rate = machine.peak(work.precision) * machine.efficiency.attention
    # The first fused kernels had half the rate of their successors (arXiv:2307.08691, abstract).
    seconds = operations / (rate if work.software.attention == "fused" else rate / 2)
    kernel = machine.efficiency.kernel_microseconds * 1e-6
    # The backward pass computes the scores again: five products where the forward pass has two.
    return Passes(Seconds(attention=seconds + kernel), Seconds(attention=2.5 * seconds + 2 * kernel))


def _materialized(machine: Machine, work: Work, pairs: float) -> Passes:
    element, key = work.element, work.spec.size.key_width
    rate = machine.peak(work.precision) * machine.efficiency.matmul
    products = 4 * pairs * key / rate
    # Scores written, read and written by softmax and by dropout with its mask, and read by the product with values.
    dropped = (2 * element + 1) if work.spec.dropout else 0
    # Scaling and masking in passes of their own read and write twice more; backward, only scaling does.
    apart = 0 if work.software.fused_softmax else 2 * element
    forward = pairs * (element + 2 * apart + 2 * element + dropped + element) / machine.bandwidth
    backward = pairs * (element + dropped + 3 * element + apart + 3 * element) / machine.bandwidth
    kernel = machine.efficiency.kernel_microseconds * 1e-6
    return Passes(
        Seconds(attention=products + forward + 4 * kernel), Seconds(attention=2 * products + backward + 6 * kernel)
    )


def _elementwise(machine: Machine, work: Work, block: Block, stack: str) -> Passes:
    """Bytes read and written between products, at the memory's rate."""
    size, tensor, element = work.spec.size, work.layout.tensor, work.element
    tokens = work.layout.microbatch * work.lengths[stack]
    sublayers, mask = (3 if block.cross else 2), (1 if work.spec.dropout else 0)
    residual = sublayers * tokens * size.width / work.slice
    # Norm: read, write. Residual sum: read twice, write. Dropout of its own pass: read, write.
    drop = (2 * element if mask and not work.software.fused_residual else 0) + mask
    forward = residual * (2 * element + 3 * element + drop)
    # Norm: gradient and input read, gradient written, read again for its weights; sum: as forward; dropout; bias.
    backward = residual * (5 * element + 3 * element + mask * (2 * element + 1) + element)
    features = tokens * size.ffn / tensor
    gates = 2.5 if block.gated else 1.0
    forward += features * 2 * element * gates
    backward += features * 4 * element * gates
    # Heads are laid out for the kernel and back.
    inner = tokens * size.heads * size.key_width / tensor * (2 if block.cross else 1)
    forward += inner * 4 * element
    backward += inner * 8 * element
    # A weight's gradient is added to its float32 sum, which is read and written; the product has counted one writing.
    weights = layer_weights(block, work.spec) / tensor
    backward += weights * (8 - element if work.software.fused_gradient_sum else 8 + element)
    kernel = machine.efficiency.kernel_microseconds * 1e-6
    kernels = 5 * sublayers
    return Passes(
        Seconds(memory=forward / machine.bandwidth + kernels * kernel),
        Seconds(memory=backward / machine.bandwidth + 2 * kernels * kernel),
    )


def _communication(machine: Machine, work: Work, block: Block, stack: str) -> Passes:
    """What tensor ranks say to each other in a layer, less what products hide.

    Each sub-layer sums its output over ranks, forward, and the gradient of its input, backward; with sequence
    parallelism as a reduce-scatter and an all-gather, and once more a gather, of the kept input, backward.
    """
    layout = work.layout
    if layout.tensor == 1:
        return Passes(Seconds(), Seconds())
    tokens = layout.microbatch * work.lengths[stack]
    size = tokens * work.spec.size.width * work.element
    sublayers = 3 if block.cross else 2
    one = collective(machine, size, ranks=layout.tensor, stride=1)  # a gather or a scatter
    beside, overlap = machine.efficiency.beside, work.software.tensor_overlap
    forward, backward, hidden = 2 * one * sublayers, 2 * one * sublayers, 0.0
    if overlap == "pieces":
        # Each collective is cut into as many pieces as there are ranks, and only one piece finds no product to hide in.
        hidden, forward, backward = (forward + backward) * (1 - 1 / layout.tensor), forward / layout.tensor, 0.0
        backward = forward
    elif overlap == "backward":
        # Beside the weight's gradient: the sum of the input's. With sequence parallelism its scatter, and the gather of
        # the kept input; the gather of the output's gradient finds nothing to hide behind.
        hidden, backward = backward, (one * sublayers if layout.sequence_parallel else 0.0)
    return Passes(Seconds(tensor=forward), Seconds(tensor=backward + beside * hidden))


def embedding(machine: Machine, work: Work) -> Passes:
    """Lookups, their sum and dropout, and gradients added to the tables."""
    size = work.layout.microbatch * work.stream * work.spec.size.width * work.element
    seconds = size * 6 / machine.bandwidth + 6 * machine.efficiency.kernel_microseconds * 1e-6
    summed = collective(machine, size, ranks=work.layout.tensor, stride=1) * (1 if work.layout.sequence_parallel else 2)
    return Passes(Seconds(memory=seconds, tensor=summed), Seconds(memory=2 * seconds))


def head(machine: Machine, work: Work) -> Passes:
    """Projection on the vocabulary and cross-entropy, where a model has them."""
    spec, tensor = work.spec, work.layout.tensor
    if not {"lm", "mlm"} & set(spec.family.heads):
        return Passes(Seconds(), Seconds())
    length = work.lengths[spec.family.stacks[-1]]
    places = work.layout.microbatch * (length if work.asked is None else work.asked)
    vocabulary = spec.padded_vocabulary / tensor
    forward = product(machine, work, places, spec.size.width, vocabulary)
    passes = places * vocabulary / machine.bandwidth
    gathered = collective(
        machine, work.layout.microbatch * length * spec.size.width * work.element, ranks=tensor, stride=1
    )
    # Float32 copies, the largest, exponentials, their sum, the division; then the gradient and its copy.
    return Passes(
        Seconds(products=forward, memory=30 * passes, tensor=gathered),
        Seconds(products=2 * forward, memory=16 * passes, tensor=gathered),
    )
