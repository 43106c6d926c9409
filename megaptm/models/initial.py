"""Initial weights: each value is a function of the seed and the parameter's name, never of who holds it.

So a model starts the same on any layout, and a layer starts the same whatever stands around it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from megaptm.batch import CHANNELS
from megaptm.errors import UserError
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size

USUAL_STD = 0.02
"""Where a family says no other (`Family.init_std`)."""
Std = Callable[[Size], float | Tensor]
"""The standard deviation of a zero-mean normal, before it is truncated: a number, or one a row."""


def _constant(std: float) -> Std:
    return lambda size: std


def _normal(size: Size) -> float:
    return USUAL_STD


def _residual(size: Size) -> float:
    """GPT-2: what is summed into the stream 2L times starts sqrt(2L) times smaller."""
    return float(USUAL_STD / np.sqrt(2 * size.layers))


def _width(size: Size) -> float:
    return float(size.width**-0.5)


def _features(size: Size) -> float:
    return float(size.ffn**-0.5)


def _inner(size: Size) -> float:
    """By the width of all heads together."""
    return float((size.heads * size.key_width) ** -0.5)


def _glorot(inputs: Callable[[Size], int], outputs: Callable[[Size], int]) -> Std:
    """By the root of the mean of a map's inputs and outputs."""
    return lambda size: float((2 / (inputs(size) + outputs(size))) ** 0.5)


def _even(limit: float) -> Std:
    """Of numbers that the released code draws evenly between minus and plus the limit."""
    return _constant(limit / 3**0.5)


def _by_filters(size: Size) -> float:
    return float(sum(filters for _, filters in size.filters) ** -0.5)


def _pixels(size: Size) -> float:
    """By the root of the numbers of a patch."""
    return float((CHANNELS * (size.patch or 1) ** 2) ** -0.5)


def _scaled_residual(size: Size) -> float:
    """By the root of the width, and of how often the stream is summed into."""
    return float((size.width * 2 * size.layers) ** -0.5)


def _query(size: Size) -> float:
    """T5 does not divide scores by the square root of the head width; its queries start that much smaller instead."""
    return float((size.width * size.key_width) ** -0.5)


def _qkv(size: Size) -> Tensor:
    """Rows ordered (head, [q, k, v], key width)."""
    one_head = torch.tensor([_query(size), _width(size), _width(size)]).repeat_interleave(size.key_width)
    return one_head.repeat(size.heads)[:, None]


# The first pattern that a name matches from its end decides. Shifts start at 0 and norms at 1 in every family.
RULES: dict[str, tuple[tuple[str, Std], ...]] = {
    # Axial positions as in the released code of Reformer.
    "normal": ((r"axial\.(row|column)\.weight", _constant(1.0)), (r".*", _normal)),
    # TensorFlow's `truncated_normal`, as in the released code of BERT and what was made from it.
    "truncated-normal": ((r".*", _normal),),
    "gpt2": (
        (r"(attention|cross)\.output\.weight", _residual),
        (r"ffn\.down\.weight", _residual),
        (r".*", _normal),
    ),
    # Mesh TensorFlow's, as in the released T5 code.
    "t5": (
        (r"embed\.token\.weight", _constant(1.0)),
        (r"head\.lm\.table\.weight", _width),
        (r"attention\.qkv\.weight", _qkv),
        (r"(attention|cross)\.query\.weight", _query),
        (r"(attention|cross)\.kv\.weight", _width),
        (r"(attention|cross)\.output\.weight", _inner),
        (r"ffn\.up\.weight", _width),
        (r"ffn\.down\.weight", _features),
        (r"bias_table\.weight", _width),
        (r"(\w+_)?(widen|narrow)\.weight", _width),
        (r"(pooler|classify|transform)\.weight", _width),
        (r"distill\.\w+\.weight", _width),
    ),
    # The released code of ViT: maps of layers by the root of the mean of inputs and outputs, that of patches by the
    # root of its inputs; zeros for what stands for an image, or for what is hidden, and for labels.
    "vit": (
        (r"embed\.patch\.project\.weight", _pixels),
        (r"embed\.patch\.(image|mask)\.weight", _constant(0.0)),
        (r"embed\.position\.weight", _constant(0.02)),
        (r"head\..*\.weight", _constant(0.0)),
        (r"ffn\.(up|down)\.weight", _glorot(lambda size: size.width, lambda size: size.ffn)),
        (r".*", _glorot(lambda size: size.width, lambda size: size.heads * size.key_width)),
    ),
    # The released code of CLIP; of the images' stack it says less, and has the same here.
    "clip": (
        (r"embed\.token\.weight", _constant(0.02)),
        (r"embed\.text_position\.weight", _constant(0.01)),
        (r"embed\.patch\.project\.weight", lambda size: _pixels(size) / 3**0.5),
        (r"attention\.output\.weight", _scaled_residual),
        (r"ffn\.up\.weight", lambda size: float((2 * size.width) ** -0.5)),
        (r"ffn\.down\.weight", _scaled_residual),
        (r".*", _width),
    ),
    "glorot": (
        (r"(embed\.\w+|head\.lm\.table)\.weight", _width),
        (r"ffn\.(up|down)\.weight", _glorot(lambda size: size.width, lambda size: size.ffn)),
        (r".*", _glorot(lambda size: size.width, lambda size: size.heads * size.key_width)),
    ),
    # The released code of ELMo: maps of words by the root of their inputs, recurrent ones by that of the mean of a
    # kernel's inputs and outputs, which are two maps here.
    "elmo": (
        (r"token\.characters\.weight", _even(1.0)),
        (r"token\.filters\.\d+\.weight", _even(0.05)),
        (r"highway\.\d+\.(carry|transform)\.weight", _by_filters),
        (r"token\.out\.weight", _by_filters),
        (r"recurrent\.(input|state)\.weight", _glorot(lambda size: 2 * size.width, lambda size: 4 * size.ffn)),
        (r"recurrent\.projection\.weight", _glorot(lambda size: size.ffn, lambda size: size.width)),
        (r"head\.bidirectional-lm\.table\.weight", _width),
    ),
    # Torch's own LSTMs and maps of as many features; the paper does not say.
    "recurrent": (
        (r"embed\.token\.weight", _constant(0.1)),
        (r"head\.lm\.table\.weight", _width),
        (r"(widen|narrow)\.weight", _width),
        (r"recurrent\..*\.weight", lambda size: float((3 * size.ffn) ** -0.5)),
    ),
    # arXiv:2204.02311, section 5.
    "fan-in": (
        (r"(embed\.\w+|head\.lm\.table)\.weight", _constant(1.0)),
        (r"(attention|cross)\.output\.weight", _inner),
        (r"ffn\.down\.weight", _features),
        (r".*", _width),
    ),
}
BY_INIT_STD = (_normal, _residual)
"""Rules that `Family.init_std` changes."""
ONES = re.compile(r"(.*norm|.*\.final)\.weight")
ZEROS = re.compile(r".*\.bias|.*_difference\.weight")
LEANING = re.compile(r".*\.highway\.\d+\.carry\.bias")
"""Gates of highway layers begin with most of the old value (arXiv:1505.00387, 2.1)."""
TEMPERATURE = "head.image-text.scale"
"""The logarithm of what cosines are multiplied by begins at that of 1 / 0.07 (arXiv:2103.00020, 2.5)."""
ZERO_FIRST = ("embed.token.characters.weight", "embed.region.mask.weight")
"""Tables whose first row is of nothing: of what stands behind a text, and of regions that are not hidden."""
VOCABULARY_TABLES = (
    *("embed.token.weight", "head.lm.table.weight", "head.bidirectional-lm.table.weight"),
    "head.image-label.table.weight",
)


def initial_value(spec: ModelSpec, name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    """The whole parameter, float32 on the CPU, before any split over ranks."""
    if ONES.fullmatch(name):
        return torch.ones(shape, device="cpu")
    if LEANING.fullmatch(name):
        return torch.full(shape, -2.0, device="cpu")
    if name == TEMPERATURE:
        return torch.full(shape, -float(np.log(0.07)), device="cpu")
    if ZEROS.fullmatch(name):
        return torch.zeros(shape, device="cpu")
    std = _rule(spec, name)(spec.size_of(next((part for part in name.split(".") if part in spec.size.stacks), "")))
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    drawn = generator.standard_normal(shape, dtype=np.float32)
    if spec.family.init == "truncated-normal":
        _draw_again_beyond_two(drawn.reshape(-1), generator)
    value = torch.from_numpy(drawn).mul_(std)
    if name in ZERO_FIRST:
        value[0] = 0.0
    if name in VOCABULARY_TABLES:
        value[spec.vocabulary :] = 0.0
    return value


def _draw_again_beyond_two(drawn: np.ndarray, generator: np.random.Generator) -> None:
    """In place: what is further than two standard deviations from zero, until nothing is."""
    while len(beyond := np.flatnonzero(np.abs(drawn) > 2)):
        drawn[beyond] = generator.standard_normal(len(beyond), dtype=np.float32)


def _rule(spec: ModelSpec, name: str) -> Std:
    if spec.family.init not in RULES:
        raise UserError(f"{spec.name}: init is {spec.family.init!r}, which is unknown; use one of {', '.join(RULES)}.")
    for pattern, std in RULES[spec.family.init]:
        if re.search(rf"(?:^|\.)(?:{pattern})$", name):
            return _scaled(std, spec.family.init_std / USUAL_STD) if std in BY_INIT_STD else std
    raise KeyError(f"no rule of init={spec.family.init!r} names the parameter {name}")


def _scaled(std: Std, ratio: float) -> Std:
    return lambda size: std(size) * ratio


@torch.no_grad()
def fill(model: Model, seed: int) -> None:
    """Gives every parameter of a whole (unsplit) model or part its initial value."""
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_value(model.spec, name, tuple(parameter.shape), seed))
