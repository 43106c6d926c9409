"""Training engine: runs a single-device model on many devices. No other package imports megatron-core."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from megaptm.parallel import cpu

LOGGERS = ("wandb", "torch.utils.tensorboard")
"""Optional modules of megatron-core that megaptm uses itself, in one rank."""
TENSORS = ("torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed.fsdp")
"""Optional modules of megatron-core that megaptm does not use."""
EMPTY = ("torch.distributed.checkpoint", "torch.utils.cpp_extension")
"""Modules that megatron-core requires, for functions that megaptm does not use."""


class _Empty(ModuleType):
    """Module whose members are all None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextlib.contextmanager
def hide_unused_modules() -> Iterator[None]:
    """Hide modules from megatron-core that it imports and megaptm does not use. They take a fifth of the CPU time in
    which a rank starts on a CPU."""
    hidden: dict[str, Any] = dict.fromkeys(LOGGERS)
    if not torch.cuda.is_available():  # on a GPU megatron-core compiles functions, and the compiler imports these
        hidden |= {**dict.fromkeys(TENSORS), **{name: _Empty(name) for name in EMPTY}}
    hidden = {name: module for name, module in hidden.items() if name not in sys.modules}
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


# megatron-core warns at import that Transformer Engine and apex are missing, which are optional here, and about its own
# defaults.
warnings.filterwarnings("ignore", message=".*(Transformer Engine|[Aa]pex|modelopt|tensorstore|zarr|full scope).*")
# torch 2.13 renamed two collectives; megatron-core calls the old names because older versions of torch only have those.
warnings.filterwarnings(
    "ignore", message=".*(all_gather_into_tensor|reduce_scatter_tensor). is deprecated", category=FutureWarning
)
# megatron-core requires this for overlap: a collective must be launched before the product it overlaps with.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
cpu.replace_cuda_functions()
with cpu.disable_compile(), hide_unused_modules():
    import megatron.core
