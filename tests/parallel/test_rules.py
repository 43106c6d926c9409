"""Update rules on one process, compared with transformers and with the formulas of the papers."""

import math

import pytest
import torch
from transformers.optimization import Adafactor as TransformersAdafactor

from megaptm.config import Layout, OptimizerConfig
from megaptm.config.schema import MuonConfig
from megaptm.parallel.groups import open_groups
from megaptm.parallel.optimizers.adafactor import Adafactor, is_factored
from megaptm.parallel.optimizers.lamb import Lamb
from megaptm.parallel.optimizers.muon import Muon, orthogonalize
from megaptm.parallel.optimizers.part import TensorPart
from megaptm.parallel.optimizers.rules import refuse_other_state
from megaptm.parallel.optimizers.stable_adamw import StableAdamW
from megaptm.parallel.split import Placement
from tests.layouts import own_rules
from tests.ranks import run_ranks

SHAPES = ((6, 4), (5,), (4, 8))
STEPS = 8


def tensors(seed=0, shapes=SHAPES):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=g) * 0.1 for shape in shapes]


def gradients(step, shapes=SHAPES):
    return [gradient * 10 ** (index - 2) for index, gradient in enumerate(tensors(100 + step, shapes))]


def parts_of(weights, matrices=1, interleave=1):
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    placements = [
        Placement(str(index), tuple(parameter.shape), (0,) * parameter.dim(), None)
        for index, parameter in enumerate(parameters)
    ]
    if matrices > 1:
        placements = [Placement(each.name, each.shape, each.offset, None, matrices, interleave) for each in placements]
    return [
        TensorPart(placement, parameter, parameter) for placement, parameter in zip(placements, parameters, strict=True)
    ]


def trained(rule, parts, *, rate, decay=0.0, steps=STEPS, shapes=SHAPES):
    """Return the weights after some steps at `rate(step)`; steps count from one."""
    [group] = rule.param_groups
    group["params"] = [part.master for part in parts]
    for step in range(1, steps + 1):
        for part, gradient in zip(parts, gradients(step, shapes), strict=True):
            part.master.grad = gradient.clone()
        group["lr"], group["weight_decay"] = rate(step), decay
        rule.step()
    return [part.master.detach() for part in parts]


def test_state_of_a_rule_of_the_user_is_compared_once_for_each_weight():
    settings = OptimizerConfig(name="tests.layouts.own_rules:RMSprop", lr=0.1)
    parts = parts_of(tensors())
    rule = own_rules.RMSprop([part.master for part in parts], momentum=0.9)
    parts[1].master.grad = tensors()[1]
    rule.step()
    assert refuse_other_state(rule, parts, settings) == [parts[0], parts[2]]


def groups(wd_mult=1.0):
    return [{"params": [], "lr_mult": 1.0, "wd_mult": wd_mult}]


def adafactor(parts, **settings):
    settings = {"momentum": 0.0, "min_dim_size_to_factor": 1, "clip_threshold": 1.0, "scale_parameter": True} | settings
    return Adafactor(groups(), parts, divided=False, **settings)


def reference_weights(weights, *, steps=STEPS, shapes=SHAPES, **settings):
    parameters = [torch.nn.Parameter(weight.clone()) for weight in weights]
    rule = TransformersAdafactor(parameters, **settings)
    for step in range(1, steps + 1):
        for parameter, gradient in zip(parameters, gradients(step, shapes), strict=True):
            parameter.grad = gradient.clone()
        rule.step()
    return [parameter.detach() for parameter in parameters]


def assert_same(weights_after, expected):
    for weight, expected_weight in zip(weights_after, expected, strict=True):
        torch.testing.assert_close(weight, expected_weight, rtol=2e-5, atol=1e-7)


def test_adafactor_with_relative_step_equals_transformers():
    """The schedule is the relative step: `decay: rsqrt` after 10,000 stable steps."""
    parts = parts_of(tensors())
    weights_after = trained(adafactor(parts), parts, rate=lambda step: min(1e-2, step**-0.5))
    assert_same(weights_after, reference_weights(tensors()))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_adafactor_with_external_rate_equals_transformers(momentum):
    settings = {"scale_parameter": False, "momentum": momentum, "clip_threshold": 0.5}
    parts = parts_of(tensors())
    weights_after = trained(adafactor(parts, **settings), parts, rate=lambda step: 0.02, decay=0.1)
    more = {"lr": 0.02, "relative_step": False, "scale_parameter": False, "clip_threshold": 0.5, "weight_decay": 0.1}
    assert_same(weights_after, reference_weights(tensors(), beta1=momentum or None, **more))


def test_adafactor_of_palm_is_adam_scaled_by_weights():
    """arXiv:2204.02311, section 5: unfactored, decay 1 - k^-0.8, weight decay by the squared rate."""
    parts = parts_of(tensors())
    rate = 0.01
    settings = {"momentum": 0.9, "min_dim_size_to_factor": None, "clip_threshold": None}
    weights_after = trained(adafactor(parts, **settings), parts, rate=lambda step: rate, decay=rate)
    weights = tensors()
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    for step in range(1, STEPS + 1):
        keep = 1 - step**-0.8
        for index, (weight, gradient) in enumerate(zip(weights, gradients(step), strict=True)):
            squares[index] = keep * squares[index] + (1 - keep) * gradient**2
            update = rate * weight.square().mean().sqrt().clamp(min=1e-3) * gradient / squares[index].sqrt()
            means[index] = 0.9 * means[index] + 0.1 * update
            weights[index] = weight * (1 - rate**2) - means[index]
    assert_same(weights_after, weights)


def lamb(parts, wd_mult=1.0, **settings):
    return Lamb(groups(wd_mult), parts, divided=False, betas=(0.9, 0.99), eps=1e-6, **settings)


def plain_lamb(weights, shapes, *, rate, decay, adapts=True, corrects=True):
    """Run LAMB (arXiv:1904.00962, algorithm 2), with the norm of the weight unchanged."""
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    for step in range(1, STEPS + 1):
        for index, (weight, gradient) in enumerate(zip(weights, gradients(step, shapes), strict=True)):
            means[index] = 0.9 * means[index] + 0.1 * gradient
            squares[index] = 0.99 * squares[index] + 0.01 * gradient**2
            mean, square = means[index], squares[index]
            if corrects:
                mean, square = mean / (1 - 0.9**step), square / (1 - 0.99**step)
            direction = mean / (square.sqrt() + 1e-6)
            direction = direction + decay * weight
            trust = weight.norm() / direction.norm() if adapts and weight.norm() > 0 else 1.0
            weights[index] = weight - rate * trust * direction
    return weights


@pytest.mark.parametrize("adapts", [True, False])
def test_lamb_equals_the_formula(adapts):
    """Norms and biases, which have no weight decay, are updated as by Adam."""
    parts = parts_of(tensors())
    decay = 0.01 if adapts else 0.0
    weights_after = trained(lamb(parts, 1.0 if adapts else 0.0), parts, rate=lambda step: 0.02, decay=decay)
    assert_same(weights_after, plain_lamb(tensors(), SHAPES, rate=0.02, decay=decay, adapts=adapts))


def test_lamb_of_albert_has_no_bias_correction():
    """The released code has none either; norms, biases and the decay differ from it."""
    parts = parts_of(tensors())
    weights_after = trained(lamb(parts, bias_correction=False), parts, rate=lambda step: 0.02, decay=0.01)
    assert_same(weights_after, plain_lamb(tensors(), SHAPES, rate=0.02, decay=0.01, corrects=False))


def test_lamb_updates_a_tensor_of_zeros():
    parts = parts_of([torch.zeros(shape) for shape in SHAPES])
    weights_after = trained(lamb(parts), parts, rate=lambda step: 0.02)
    assert all(weight.abs().max() > 0 for weight in weights_after)


def stable_adamw(parts, **settings):
    return StableAdamW(groups(), parts, divided=False, betas=(0.9, 0.98), eps=1e-6, **settings)


def test_stable_adamw_equals_the_formula():
    """arXiv:2304.13013, algorithm 2. The gradients of the first tensor jump in step 5, which clips its updates."""
    parts = parts_of(tensors())
    weights_after = trained(stable_adamw(parts), parts, rate=lambda step: 0.02, decay=0.1)
    weights = tensors()
    means, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    largest = 0.0
    for step in range(1, STEPS + 1):
        keep1, keep2 = (beta * (1 - beta ** (step - 1)) / (1 - beta**step) for beta in (0.9, 0.98))
        for index, (weight, gradient) in enumerate(zip(weights, gradients(step), strict=True)):
            means[index] = keep1 * means[index] + (1 - keep1) * gradient
            squares[index] = keep2 * squares[index] + (1 - keep2) * gradient**2
            rms = (gradient**2 / squares[index].clamp(min=1e-12)).mean().sqrt().item()
            largest = max(largest, rms)
            rate = 0.02 / max(1.0, rms)
            weights[index] = weight - rate * 0.1 * weight - rate * means[index] / (squares[index].sqrt() + 1e-6)
    assert largest > 1.2
    assert_same(weights_after, weights)


MATRICES = (*SHAPES, (8, 4), (4, 8))


def muon_parts(dtype, shapes=MATRICES, **turns):
    """Return parts whose matrices, but the last one, are of layers. The last stands for a token table."""
    parts = []
    for index, weight in enumerate(tensors(shapes=shapes)):
        in_layer = len(shapes) == 1 or (weight.dim() == 2 and index < len(shapes) - 1)
        placement = Placement(str(index), tuple(weight.shape), (0,) * weight.dim(), None, **turns, in_layer=in_layer)
        parts.append(TensorPart(placement, torch.nn.Parameter(weight.to(dtype)), torch.nn.Parameter(weight)))
    return parts


def train_with_muon(dtype, adjust_lr_fn, nesterov, shapes=MATRICES, matrices=1, interleave=1):
    open_groups(Layout())
    parts = muon_parts(dtype, shapes, matrices=matrices, interleave=interleave)
    options = MuonConfig(adjust_lr_fn=adjust_lr_fn, nesterov=nesterov, adamw_lr_ratio=0.1).model_dump()
    rule = Muon(groups(), parts, betas=(0.9, 0.95), eps=1e-8, **options)
    return trained(rule, parts, rate=lambda step: 0.02 / step, decay=0.1, shapes=shapes)


def train_with_torch(adjust_lr_fn, nesterov):
    """Train with torch.optim.Muon for matrices of layers and torch.optim.AdamW for the rest."""
    parameters = [part.master for part in muon_parts(torch.float32)]
    matrices = [parameter for parameter in parameters[:-1] if parameter.dim() == 2]
    tables_and_norms = [parameters[1], parameters[-1]]
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn=adjust_lr_fn)
    adamw = torch.optim.AdamW(tables_and_norms, lr=0.002, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, STEPS + 1):
        for parameter, gradient in zip(parameters, gradients(step, MATRICES), strict=True):
            parameter.grad = gradient.clone()
        for optimizer, rate in ((muon, 0.02), (adamw, 0.002)):
            optimizer.param_groups[0]["lr"] = rate / step
            optimizer.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
def test_muon_of_a_bf16_model_equals_torch(adjust_lr_fn, nesterov):
    """torch orthogonalizes in bfloat16; products of several matrices at once may round otherwise."""
    [weights_after] = run_ranks(1, train_with_muon, torch.bfloat16, adjust_lr_fn, nesterov)
    for weight, expected in zip(weights_after, train_with_torch(adjust_lr_fn, nesterov), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-2, atol=2e-4)


def test_muon_moves_along_the_orthogonal_factor():
    """Singular vectors stay; singular values come near 1."""
    matrices_MRC = torch.stack(tensors(shapes=((4, 8),) * 3))
    u, _, v = torch.linalg.svd(matrices_MRC, full_matrices=False)
    singular_values = torch.linalg.svdvals(orthogonalize(matrices_MRC, 5))
    assert singular_values.min() > 0.65
    assert singular_values.max() < 1.25
    aligned = (u.mT @ orthogonalize(matrices_MRC, 5) @ v.mT).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(aligned.sort().values, singular_values.sort().values)


# Two heads of width 3, whose queries, keys and values are interleaved.
FUSED = (18, 4)


def split(fused):
    by_head = fused.unflatten(0, (2, 3, 3))
    return [by_head[:, stream].flatten(0, 1) for stream in range(3)]


@pytest.mark.parametrize("rule", ["adafactor", "lamb", "stable-adamw"])
@pytest.mark.parametrize("shape", [FUSED, FUSED[:1]])
def test_fused_matrices_are_updated_separately(rule, shape):
    scales = torch.tensor([1.0, 10.0, 100.0]).repeat_interleave(3).repeat(2).view(-1, *[1] * (len(shape) - 1))
    weight = tensors(shapes=(shape,))[0] * scales
    fused_parts = parts_of([weight], matrices=3, interleave=3)
    build = {"adafactor": adafactor, "lamb": lamb, "stable-adamw": stable_adamw}[rule]
    [weights_after] = trained(build(fused_parts), fused_parts, rate=lambda step: 0.01, shapes=(shape,))
    for stream, matrix in enumerate(split(weight)):
        parts = parts_of([matrix])
        alone = build(parts)
        alone.param_groups[0]["params"] = [parts[0].master]
        for step in range(1, STEPS + 1):
            parts[0].master.grad = split(gradients(step, (shape,))[0])[stream].clone()
            alone.param_groups[0]["lr"] = 0.01
            alone.step()
        torch.testing.assert_close(split(weights_after)[stream], parts[0].master.detach(), rtol=2e-5, atol=1e-7)


def test_muon_orthogonalizes_fused_matrices_separately():
    [[fused_after]] = run_ranks(1, train_with_muon, torch.float32, "original", True, (FUSED,), 3, 3)
    weight = tensors(shapes=(FUSED,))[0]
    for stream, matrix in enumerate(split(weight)):
        mean = torch.zeros_like(matrix)
        for step in range(1, STEPS + 1):
            gradient = split(gradients(step, (FUSED,))[0])[stream]
            mean = 0.95 * mean + 0.05 * gradient
            direction = orthogonalize((0.05 * gradient + 0.95 * mean)[None], 5)[0]
            rate = 0.02 / step
            matrix = matrix * (1 - 0.1 * rate) - rate * math.sqrt(6 / 4) * direction
        torch.testing.assert_close(split(fused_after)[stream], matrix, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "matrices", "min_dim_size_to_factor", "factored"),
    [
        ((128, 128), 1, 128, True),
        ((128, 127), 1, 128, False),
        ((384, 512), 3, 128, True),
        ((381, 512), 3, 128, False),
        ((512,), 1, 1, False),
        ((512, 512), 1, None, False),
    ],
)
def test_adafactor_factors_large_matrices_only(shape, matrices, min_dim_size_to_factor, factored):
    [part] = parts_of([torch.zeros(shape)], matrices=matrices)
    assert is_factored(part, min_dim_size_to_factor) == factored
    assert math.prod(shape) == part.matrices * part.full_length * part.full_width


@pytest.mark.parametrize("rows", [slice(0, 24), slice(12, 24), slice(5, 22)], ids=["all", "turns", "parts of turns"])
def test_rows_are_summed_and_spread_by_matrix(rows):
    """Queries, keys and values of two heads of width 4, in turns."""
    weight = torch.nn.Parameter(torch.empty(24, 2))
    part = TensorPart(Placement("qkv", (24, 2), (0, 0), None, matrices=3, interleave=4), weight, None)
    matrix = torch.arange(24)[rows] // 4 % 3
    values = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))[rows]
    expected = torch.stack([values[matrix == index].sum(0) for index in range(3)])
    torch.testing.assert_close(part.sum_by_matrix(values, rows), expected)
    assert torch.equal(part.expand_to_rows(expected, rows), expected[matrix])
    assert torch.equal(part.expand_to_rows(expected[:, 0], rows), expected[matrix, 0])
