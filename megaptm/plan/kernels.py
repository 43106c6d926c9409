"""Attention kernels that a run will use."""

from __future__ import annotations

from megaptm.config import Config, resolve_spec
from megaptm.layers.kernel_choice import ComputeDevice, KernelChoice, attention_works, choose_kernel
from megaptm.spec import LayerlessSpec


def attention_kernels(config: Config, device: str) -> list[tuple[str, KernelChoice]]:
    """Return each kind of attention of a run and its kernel on `cuda` or `cpu`, out of the installed kernels.

    Raise UserError if the configured kernel cannot be used.
    """
    if isinstance(spec := resolve_spec(config), LayerlessSpec):
        return []
    batch = config.batch_spec
    here = ComputeDevice(device)
    works = attention_works(spec, batch, config.train.precision, context=config.layout.context)
    return [(work.name, choose_kernel(work, here, config.train.attention_kernel)) for work in works]
