"""Initial values of parameters, functions of the seed and the parameter's name.

A model therefore starts equal on any layout and any device, and a layer starts equal in any model. Values are sampled
on the host, because a ziggurat cannot be entered at an index and a device's logarithm differs in the last bit. Threads
sample several parameters at once: NumPy releases Python's lock.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod

import numpy as np
import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.models.head_costs import HEADS
from megaptm.models.model import Model
from megaptm.models.mup import mup_factors
from megaptm.plugins import is_plugin, load_plugin
from megaptm.spec import ModelSpec, Size

USUAL_STD = 0.02
"""Default standard deviation of initial weights, of `InitSpec.std`."""
Std = Callable[[Size], float | Tensor]
"""Standard deviation of initial weights, which are normal with mean 0, before truncation: a number, or one per row."""


def constant_init_std(std: float) -> Std:
    """Return an initialization rule with the same standard deviation for all sizes."""
    return lambda size: std


def _normal_std(size: Size) -> float:
    return USUAL_STD


def _residual_std(size: Size) -> float:
    """Return the standard deviation of residual output projections: divided by sqrt(2L), for 2L residual sums
    (GPT-2)."""
    return float(USUAL_STD / np.sqrt(2 * size.layers))


def init_std_by_width(size: Size) -> float:
    """Return the inverse square root of the model's width, a standard deviation of initial weights."""
    return float(size.width**-0.5)


def _feature_std(size: Size) -> float:
    return float(size.ffn**-0.5)


def _inner_std(size: Size) -> float:
    """Return the inverse square root of the width of all heads, a standard deviation of initial weights."""
    return float((size.heads * size.key_width) ** -0.5)


def glorot_init_std(inputs: Callable[[Size], int], outputs: Callable[[Size], int]) -> Std:
    """Return Glorot's standard deviation of initial weights, from the mean of inputs and outputs."""
    return lambda size: float((2 / (inputs(size) + outputs(size))) ** 0.5)


def _query_std(size: Size) -> float:
    """Return the standard deviation of T5's initial query weights: T5 does not scale scores, so they are smaller by
    sqrt(head width)."""
    return float((size.width * size.key_width) ** -0.5)


def _qkv_std(size: Size) -> Tensor:
    """Return standard deviations of initial weights for rows ordered (head, [q, k, v], key width)."""
    one_head = torch.tensor([_query_std(size), init_std_by_width(size), init_std_by_width(size)]).repeat_interleave(
        size.key_width
    )
    return one_head.repeat(size.heads)[:, None]


InitialRules = tuple[tuple[str, Std], ...]
"""Initialization rules: patterns of parameter names. The first that matches the end of a name applies. Biases start at
0 and norms at 1."""

INITIAL_RULES: dict[str, InitialRules] = {
    "normal": ((r".*", _normal_std),),
    # TensorFlow's `truncated_normal`, as in the released code of BERT and its successors.
    "truncated-normal": ((r".*", _normal_std),),
    "gpt2": (
        (r"(attention|cross)\.output\.weight", _residual_std),
        (r"ffn\.down\.weight", _residual_std),
        (r".*", _normal_std),
    ),
    # The head's transform is a residual projection, too, as in the class of transformers.
    "truncated-gpt2": (
        (r"(attention|cross)\.output\.weight", _residual_std),
        (r"(ffn\.down|transform)\.weight", _residual_std),
        (r".*", _normal_std),
    ),
    # Mesh TensorFlow, as in the released code of T5.
    "t5": (
        (r"embed\.token\.weight", constant_init_std(1.0)),
        (r"head\.lm\.table\.weight", init_std_by_width),
        (r"attention\.qkv\.weight", _qkv_std),
        (r"(attention|cross)\.query\.weight", _query_std),
        (r"(attention|cross)\.kv\.weight", init_std_by_width),
        (r"(attention|cross)\.output\.weight", _inner_std),
        (r"ffn\.up\.weight", init_std_by_width),
        (r"ffn\.down\.weight", _feature_std),
        (r"bias_table\.weight", init_std_by_width),
        (r"(\w+_)?(widen|narrow)\.weight", init_std_by_width),
        (r"(pooler|classify|transform)\.weight", init_std_by_width),
    ),
    "glorot": (
        (r"(embed\.\w+|head\.lm\.table)\.weight", init_std_by_width),
        (r"ffn\.(up|down)\.weight", glorot_init_std(lambda size: size.width, lambda size: size.ffn)),
        (r".*", glorot_init_std(lambda size: size.width, lambda size: size.heads * size.key_width)),
    ),
    # arXiv:2204.02311, section 5.
    "fan-in": (
        (r"(embed\.\w+|head\.lm\.table)\.weight", constant_init_std(1.0)),
        (r"(attention|cross)\.output\.weight", _inner_std),
        (r"ffn\.down\.weight", _feature_std),
        (r".*", init_std_by_width),
    ),
}
TRUNCATED = ("truncated-normal", "truncated-gpt2")
"""Rules whose values are at most two standard deviations from zero."""
BY_INIT_STD = (_normal_std, _residual_std)
"""Names of the initialization rules that `InitSpec.std` scales."""
ONES = re.compile(r"(.*norm|.*\.final)\.weight")
MAX_SAMPLED_BYTES = 2 << 30
"""Maximum host memory for initial values that are sampled ahead of their use; a single parameter may be larger."""
ZEROS = re.compile(r".*\.bias")
VOCABULARY_TABLE = re.compile(r"(embed\.(\w+_)?token|head\.[^.]+\.table)\.weight")
"""Parameters with a row per vocabulary entry."""


def initial_value(spec: ModelSpec, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial value of a full parameter, float32 on the CPU, before it is split over ranks."""
    value = _unscaled_value(spec, name, shape, seed)
    factor = mup_factors(spec, name, len(shape)).initial
    return value if factor == 1.0 else value * factor


def _unscaled_value(spec: ModelSpec, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """Return the initial value of a full parameter without the factor of muP."""
    if ONES.fullmatch(name):
        block = spec.family.stacks.get(name.partition(".")[0], spec.family.last_block)
        return torch.full(shape, 0.0 if block.norm.kind == "rms-unit-offset" else 1.0, device="cpu")
    if (constant_value := _constant_initial_value(spec, name)) is not None:
        return torch.full(shape, constant_value, device="cpu")
    if ZEROS.fullmatch(name):
        return torch.zeros(shape, device="cpu")
    std = _find_rule(spec, name)(spec.size_of(next((part for part in name.split(".") if part in spec.size.stacks), "")))
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    sampled = generator.standard_normal(shape, dtype=np.float32)
    if spec.family.init.rule in TRUNCATED:
        _draw_again_beyond_two(sampled.reshape(-1), generator)
    value = torch.from_numpy(np.multiply(sampled, np.asarray(std, np.float32), out=sampled))
    if name in {f"embed.{record.name}.{table}" for record in spec.family.inputs for table in record.zero_first}:
        value[0] = 0.0
    if VOCABULARY_TABLE.fullmatch(name):
        value[spec.vocabulary :] = 0.0
    return value


def initial_values(spec: ModelSpec, parameters: Iterable[tuple[str, tuple[int, ...]]], seed: int) -> Iterator[Tensor]:
    """Yield `initial_value` of each parameter (name, complete shape) in order. As many threads as torch uses sample the
    next ones ahead."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="initial-values")
    waiting: deque[tuple[Future[Tensor], int]] = deque()
    ahead = 0
    try:
        for name, shape in parameters:
            size = 4 * prod(shape)
            while waiting and (len(waiting) == 2 * threads or ahead + size > MAX_SAMPLED_BYTES):
                value, value_size = waiting.popleft()
                ahead -= value_size
                yield value.result()
            waiting.append((pool.submit(initial_value, spec, name, shape, seed), size))
            ahead += size
        while waiting:
            yield waiting.popleft()[0].result()
    finally:
        pool.shutdown(cancel_futures=True)


def _draw_again_beyond_two(sampled: np.ndarray, generator: np.random.Generator) -> None:
    """Resample initial values beyond two standard deviations, in place."""
    beyond = np.flatnonzero(np.abs(sampled) > 2)
    while len(beyond):
        sampled[beyond] = again = generator.standard_normal(len(beyond), dtype=np.float32)
        beyond = beyond[np.abs(again) > 2]


def _constant_initial_value(spec: ModelSpec, name: str) -> float | None:
    """Return the constant initial value of a parameter of a head or an input, or None if its values are random."""
    for record in spec.family.inputs:
        for pattern, value in record.initial_values.items():
            if re.fullmatch(rf"embed\.{record.name}\.{pattern}", name):
                return value
    part, head, *parameter = name.split(".", 2)
    return HEADS[head].initial_values.get(parameter[0]) if part == "head" and head in HEADS else None


def _find_rule(spec: ModelSpec, name: str) -> Std:
    init = spec.family.init
    if init.rule not in INITIAL_RULES and not is_plugin(init.rule):
        raise UserError(
            f"{spec.name}: init.rule is {init.rule!r}, which is unknown; use one of {', '.join(INITIAL_RULES)}."
        )
    for record in spec.family.inputs if init.rule == "normal" else ():
        if record.initial_std is not None and name.startswith(f"embed.{record.name}."):
            return constant_init_std(record.initial_std)
    rules = (
        load_plugin(init.rule, f"{spec.name}: init.rule", "rules") if is_plugin(init.rule) else INITIAL_RULES[init.rule]
    )
    for pattern, std in rules:
        if re.search(rf"(?:^|\.)(?:{pattern})$", name):
            return _scale_std(std, init.std / USUAL_STD) if std in BY_INIT_STD else std
    if name.partition(".")[0] not in ("embed", "head", *spec.family.stacks):
        return init_std_by_width  # a module that an extension adds to the model
    raise KeyError(f"no pattern of the rule {init.rule!r} matches the parameter {name}")


def _scale_std(std: Std, ratio: float) -> Std:
    return lambda size: std(size) * ratio


@torch.no_grad()
def init_weights(model: Model, seed: int) -> None:
    """Set every parameter of an unsplit model or chunk to its initial value."""
    parameters = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for parameter, value in zip(model.parameters(), initial_values(model.spec, parameters.items(), seed), strict=True):
        parameter.copy_(value)
