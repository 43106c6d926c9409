"""Layers compiled by torch.compile: one graph for each kind of layer, which all layers of that kind run.

Operations that stay eager divide a layer into several graphs:
- linear layers split over tensor ranks, whose collectives overlap with products
- attention of context ranks, which gathers keys and values
- attention that has kernels of its own: sparse, or with a soft cap
- recomputed attention
- dropout that samples from another random generator than the other dropouts of the layer
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, cast

import torch
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.attention import Attend, PatternAttend, are_offsets
from megaptm.layers.kernel_choice import AUTO, FUSED
from megaptm.layers.kernels import MAX_COMPILED
from megaptm.layers.layer import Layer, run_without_recomputation
from megaptm.layers.split import Dropout
from megaptm.layers.stack import BaseStack
from megaptm.models.model import Model
from megaptm.parallel.groups import rank_device
from megaptm.parallel.split import SharedLinear, tensor_rank_rng

BACKEND = "inductor"
"""Backend of torch.compile. Tests use one that only captures graphs."""

Log = Callable[[str], None]


def should_compile(configured: Literal["auto", True, False]) -> bool:
    """Whether this process compiles layers with torch.compile, by the setting `train.compile`."""
    return rank_device().type == "cuda" and _is_reproducible() if configured == "auto" else configured


def _is_reproducible() -> bool:
    """Whether torch.compile generates the same kernels each time, as deterministic training requires."""
    import torch._inductor.config

    return not torch.are_deterministic_algorithms_enabled() or hasattr(torch._inductor.config, "deterministic")


def release_graphs() -> None:
    """Release the compiled layers of earlier models, which torch.compile otherwise keeps as long as the process."""
    if "torch._dynamo" in sys.modules:
        import torch._dynamo

        torch._dynamo.reset()


def compile_layers(model: Model, log: Log) -> None:
    """Compile the layers of a model with torch.compile at their first forward pass. Called after their hooks are set.

    `log` receives a line for each stack and each kind of layer that stays eager.
    """
    _configure_torch()
    layers = []
    for path, stack in model.named_modules():
        if not isinstance(stack, BaseStack):
            continue
        if stack.eager_because:
            log(f"the layers of the {path} are not compiled: {stack.eager_because}")
            continue
        kinds: dict[Any, _Kind] = {}
        for number in stack.layer_numbers:
            layer, block = cast(Layer, stack[str(number)]), stack.block.at(number)
            if block not in kinds:
                kinds[block] = _Kind(f"{path}.{number}", log)
            layers.append((layer, kinds[block]))
    rng = _common_rng([layer for layer, _ in layers])
    for layer, kind in layers:
        _mark_eager_modules(layer)
        _compile_layer(layer, kind, rng)


def _configure_torch() -> None:
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.config

    if not _is_reproducible():
        raise UserError(
            f"train.compile is true, but kernels compiled by torch {torch.__version__} depend on measured times, which "
            "train.deterministic does not allow: set train.compile=false, or install torch 2.10 or newer."
        )
    _check_cache()
    if torch.are_deterministic_algorithms_enabled():
        torch._inductor.config.deterministic = True  # else it pads products where a measurement says so
    torch._dynamo.config.recompile_limit = max(MAX_COMPILED, torch._dynamo.config.recompile_limit)
    # With the forward pass, so that a failure is known before anything is computed.
    torch._functorch.config.force_non_lazy_backward_lowering = True


def _check_cache() -> None:
    """Create the cache folder of torch.compile, for this user alone. Raise UserError if others can write to it.

    torch executes the code that it finds there, and in /tmp anybody can create a folder of that name.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & stat.S_IWOTH:
        problem = "can be written by all users" if status.st_uid == os.getuid() else "belongs to another user"
        raise UserError(
            f"{folder}, in which torch.compile keeps generated code, {problem}: set TORCHINDUCTOR_CACHE_DIR to a local "
            "folder of your own, or train.compile=false."
        )


class _Compiled:
    """Call of a layer compiled by torch.compile. If a layer cannot be compiled, it stays eager, and a line in the log
    says so."""

    def __init__(self, name: str, log: Log) -> None:
        self._name, self._log, self._is_eager = name, log, False
        # torch keeps the graphs of a function's code in one list, which is searched and has a maximum length.
        function = FunctionType(_call_module.__code__.replace(co_name=name.replace(".", "_")), _call_module.__globals__)
        self._call_module: Callable[..., Tensor] = torch.compile(function, dynamic=False, backend=BACKEND)

    def __call__(self, module: nn.Module, *tensors: Any) -> Tensor:
        if self._is_eager:
            return _call_module(module, *tensors)
        try:
            return self._call_module(module, *tensors)
        except torch._dynamo.exc.TorchDynamoException as error:
            self._is_eager = True
            cause = getattr(error, "inner_exception", error)  # of a failed backend
            reason = next(filter(None, map(str.strip, str(cause).splitlines())), "")
            self._log(f"{self._name} is not compiled: {type(cause).__name__}: {reason}")
            return _call_module(module, *tensors)


def _call_module(module: nn.Module, *tensors: Any) -> Tensor:
    # Hooks of the module run before and after this: collectives of full sharding cannot be compiled.
    output: Tensor = type(module).forward(module, *tensors)
    return output


class _Kind:
    """Compiled calls of all layers of one kind."""

    def __init__(self, name: str, log: Log) -> None:
        self.layer = _Compiled(f"layer {name}", log)
        self._attention = _Compiled(f"attention of layer {name}", log)
        self._recomputed: dict[Callable[..., Tensor], Callable[..., Tensor]] = {}

    def recomputed(self, hook: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the compiled hook that recomputes the attention of a layer. All layers share it: a graph is only valid
        for the functions that it was compiled with."""

        def run_attention(module: nn.Module, *tensors: Any) -> Tensor:
            return hook(partial(self._attention, module), *tensors)

        if hook not in self._recomputed:
            self._recomputed[hook] = torch.compiler.disable(run_attention)
        return self._recomputed[hook]


def _compile_layer(layer: Layer, kind: _Kind, rng: Callable[[], AbstractContextManager[None]] | None) -> None:
    compiled = partial(kind.layer, layer)
    if layer.run_attention is not run_without_recomputation:
        layer.run_attention = kind.recomputed(layer.run_attention)

    def forward(*tensors: Any) -> Tensor:
        for mask in tensors[1:4:2]:
            if mask is not None and are_offsets(mask):  # their number varies, and only an attention kernel reads it
                torch._dynamo.maybe_mark_dynamic(mask, mask.dim() - 1)
        with rng() if rng is not None and layer.training else nullcontext():
            return compiled(*tensors)

    vars(layer)["forward"] = forward


def _common_rng(layers: Iterable[Layer]) -> Callable[[], AbstractContextManager[None]] | None:
    """Let a layer sample all its dropout from one random generator, if its dropouts agree on one. Return the
    context that selects it. Compiled code cannot change generators."""
    dropouts = {dropout for layer in layers for dropout in _active_dropouts(layer)}
    if not dropouts or any(dropout.rng is not tensor_rank_rng for dropout in dropouts):
        return None
    for dropout in dropouts:
        dropout.rng = nullcontext
    return tensor_rank_rng


def _active_dropouts(module: nn.Module) -> Iterator[Dropout]:
    return (child for child in module.modules() if isinstance(child, Dropout) and child.rate > 0)


def _mark_eager_modules(layer: Layer) -> None:
    """Mark the modules of a layer that torch.compile must leave eager. Attention with kernels of its own is compiled
    where it takes offsets of documents or a dense mask: otherwise it asks which kernel this device has, which compiled
    code cannot."""
    for module in list(layer.modules()):
        dropout = module.dropout if isinstance(module, Attend) else module
        if (
            isinstance(module, ColumnParallelLinear | RowParallelLinear | SharedLinear)
            or (isinstance(module, Attend) and module.context.size > 1)
            or (isinstance(dropout, Dropout) and dropout.rate > 0 and dropout.rng is not nullcontext)
        ):
            # By class: torch would compile a graph for each instance with a function of its own.
            module.__class__ = _eager_class(type(module), "forward")
        elif isinstance(module, PatternAttend) and (
            module.pattern is not None or module.cap is not None or module.kernel not in (AUTO, FUSED)
        ):
            module.__class__ = _eager_class(type(module), "attend_in_pattern")


_EAGER: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}
"""Subclasses of modules with a method that torch.compile leaves eager, by class and method."""


def _eager_class(cls: type[Any], method: str) -> type[Any]:
    if cls in _EAGER.values():
        return cls
    if (cls, method) not in _EAGER:
        _EAGER[cls, method] = type(cls.__name__, (cls,), {method: torch.compiler.disable(getattr(cls, method))})
    return _EAGER[cls, method]
