"""Gradients of small parameters are added together, and weights are copied together."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from megaptm.config import CommunicationConfig, Layout
from tests.layouts.cases import train_steps
from tests.ranks import run_ranks

LAYOUTS = {
    "one micro-batch": Layout(microbatch=8),
    "four micro-batches": Layout(microbatch=2),
    "distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
}
OVERLAP = CommunicationConfig(overlap_grad_reduce=True)


def train(layout, together):
    """Return the results of three steps in bf16, as the engine runs them or one tensor after the other."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

    from megaptm.parallel import gradients
    from megaptm.parallel.optimizers import build

    kinds = (DistributedOptimizer, Float16OptimizerWithFloat16Params)

    def copy_one_by_one(inner):
        next(kind for kind in kinds if isinstance(inner, kind))._copy_main_params_to_model_params(inner)

    if together:
        return train_steps("bert", layout, 3, "bf16", OVERLAP)
    with patch.object(gradients, "MAX_POSTPONED", 0), patch.object(build, "_copy_to_model", copy_one_by_one):
        return train_steps("bert", layout, 3, "bf16", OVERLAP)


@pytest.mark.parametrize("name", LAYOUTS)
def test_kernels_on_many_tensors_change_no_bit(name):
    layout = LAYOUTS[name]
    together, apart = (run_ranks(layout.processes, train, layout, together) for together in (True, False))
    assert together == apart


def test_gradients_of_any_format_and_stride_are_added():
    from megaptm.parallel.gradients import add_gradients

    torch.manual_seed(0)
    gradients = [torch.randn(3), torch.randn(4).bfloat16(), torch.randn(2, 3).t(), torch.randn(2, 3).bfloat16().t()]
    totals = [torch.ones(gradient.shape) for gradient in gradients]
    add_gradients(totals, gradients)
    for total, gradient in zip(totals, gradients, strict=True):
        torch.testing.assert_close(total, 1 + gradient.float(), rtol=0, atol=0)


def test_second_gradient_of_a_parameter_is_rejected():
    """It would be lost where gradients are reduced during the backward pass."""
    from megaptm.parallel.gradients import ChunkGradients

    parameter = torch.nn.Parameter(torch.zeros(3))
    parameter.grad, parameter.grad_added_to_main_grad = torch.ones(3), True
    chunk = SimpleNamespace(ddp_config=SimpleNamespace(overlap_grad_reduce=False))
    with pytest.raises(RuntimeError, match=r"shape \[3\] has two gradients"):
        ChunkGradients._make_backward_post_hook(chunk, parameter)()
