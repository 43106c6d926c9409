"""megatron-core sees CUDA functions on a CPU; all other code sees torch as it is."""

import sys

import torch

from megaptm.parallel import split

layers = sys.modules[split.ColumnParallelLinear.__module__]
random = sys.modules[split.get_cuda_rng_tracker.__module__]


def test_torch_is_unchanged():
    assert torch.cuda.current_device.__module__ == "torch.cuda"
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0
    assert torch.zeros is torch._C._VariableFunctions.zeros


def test_megatron_computes_on_the_cpu():
    device = layers.torch.cuda.current_device()
    made = [layers.torch.empty(2, device=device), layers.torch.zeros(2, device="cuda"), torch.ones(2).cuda()]
    assert {tensor.device.type for tensor in made} == {"cpu"}
    assert random._lazy_call(lambda: "called") == "called"


def test_megatron_keeps_default_devices():
    with torch.device("meta"):
        made = [layers.torch.empty(2), layers.torch.arange(2), layers.torch.full((2,), 1.0), layers.torch.tensor([1])]
    assert {tensor.device.type for tensor in made} == {"meta"}
