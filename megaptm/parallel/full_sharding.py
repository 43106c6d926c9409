"""Full sharding: weights, gradients and optimizer state are sharded over data ranks (ZeRO stage 3, arXiv:1910.02054,
section 5; FSDP, arXiv:2304.11277).

A unit is a layer; all other parameters form one more unit, the root. Between uses a data rank keeps only its shard of a
unit: float32 weights for the update rule, the same in the precision of the model, and a float32 gradient. The weights
of a layer are gathered before its forward pass and again before its backward pass, while the neighbor computes, and
freed after each. Its gradient is summed over data ranks after each backward pass. The root is gathered once a step, and
its gradient summed once.

Parameters and their `main_grad` are views of flat tensors. The memory of these is freed and allocated again, so modules
need no change.
"""

# P elements of the parameters of a unit, padded to a multiple of the data ranks; R those of one data rank

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.layers.stack import BaseStack
from megaptm.models.model import Model
from megaptm.parallel.groups import rank_device, replica_group

ALIGNMENT = 64
"""Alignment of parameters in their flat tensor, in elements, for kernels that read aligned memory."""


@dataclass(frozen=True)
class OwnRange:
    """Range of a fully sharded parameter that this data rank owns."""

    start: int
    """First element of the range, in the flattened parameter."""
    master: Tensor
    """Float32 values [n] of the range, which the update rule changes."""
    gradient: Tensor
    """Float32 gradient [n] of the range."""

    @property
    def span(self) -> tuple[int, int]:
        """First element of the range of a fully sharded parameter and the one after its last."""
        return self.start, self.start + self.master.numel()


class FlatParameters:
    """Flat tensor of all parameters of one dtype in a fully sharded unit, divided over data ranks."""

    def __init__(self, owners: Sequence[tuple[nn.Module, str]], group: dist.ProcessGroup) -> None:
        """Replace the parameters, on the meta device and given by module and name, by views of the flat tensor."""
        self._group = group
        old = [module._parameters[name] for module, name in owners]
        self.dtype = old[0].dtype  # type: ignore[union-attr]
        starts = [0]
        for parameter in old:
            starts.append(starts[-1] + -(-parameter.numel() // ALIGNMENT) * ALIGNMENT)  # type: ignore[union-attr]
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        length = -(-starts[-1] // ranks)
        self._full_P = torch.empty(length * ranks, dtype=self.dtype, device=rank_device())
        self._full_gradient_P = torch.empty(length * ranks, device=rank_device())
        self.master_R = torch.zeros(length, device=rank_device())
        self.gradient_R = torch.zeros(length, device=rank_device())
        self._shard_R = (
            self.master_R
            if self.dtype == torch.float32
            else torch.zeros(length, dtype=self.dtype, device=rank_device())
        )
        self._pending: tuple[dist.Work, Tensor] | None = None
        self._gathering: dist.Work | None = None
        self.parameters: list[nn.Parameter] = []
        for (module, name), parameter, start in zip(owners, old, starts[:-1], strict=True):
            stop = start + parameter.numel()  # type: ignore[union-attr]
            # `data` has a version of its own, so that gathering does not count as a change of saved weights.
            view = nn.Parameter(self._full_P[start:stop].view(parameter.shape).data)  # type: ignore[union-attr]
            view.main_grad = self._full_gradient_P[start:stop].view(view.shape)  # type: ignore[attr-defined]
            first, last = (min(max(edge, start), stop) for edge in (rank * length, (rank + 1) * length))
            own = slice(first - rank * length, last - rank * length)
            view.own_range = OwnRange(first - start, self.master_R[own], self.gradient_R[own])  # type: ignore[attr-defined]
            module._parameters[name] = view
            self.parameters.append(view)
        _free_memory(self._full_P)
        _free_memory(self._full_gradient_P)

    @property
    def is_gathered(self) -> bool:
        return _has_memory(self._full_P)

    @property
    def has_gradient(self) -> bool:
        """Whether the full gradient of the flat tensor is allocated."""
        return _has_memory(self._full_gradient_P)

    def start_gather(self) -> None:
        """Start to gather the weights of a fully sharded unit from all data ranks."""
        if not self.is_gathered:
            _allocate(self._full_P)
            self._gathering = dist.all_gather_into_tensor(self._full_P, self._shard_R, group=self._group, async_op=True)

    def gather(self) -> None:
        """Gather the weights of a fully sharded unit from all data ranks, or wait for `start_gather`."""
        self.start_gather()
        self._wait()

    def release(self) -> None:
        """Free the gathered weights of a fully sharded unit."""
        self._wait()  # memory must not be freed while a collective writes it
        _free_memory(self._full_P)

    def _wait(self) -> None:
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None

    def open_gradient(self) -> None:
        """Allocate the full gradient of a fully sharded unit, filled with zeros."""
        self.finish_reduce()  # a layer that runs several times has several backward passes
        if not self.has_gradient:
            _allocate(self._full_gradient_P)
            self._full_gradient_P.zero_()

    def start_reduce(self) -> None:
        """Start to sum the full gradient of a fully sharded unit over data ranks."""
        total_R = torch.empty_like(self.gradient_R)
        work = dist.reduce_scatter_tensor(total_R, self._full_gradient_P, group=self._group, async_op=True)
        self._pending = (work, total_R)

    def finish_reduce(self) -> None:
        """Add the gradient summed over data ranks to this rank's shard, and free the full gradient."""
        if self._pending is not None:
            work, total_R = self._pending
            work.wait()
            self.gradient_R += total_R
            self._pending = None
            _free_memory(self._full_gradient_P)

    def update_shard(self) -> None:
        """Copy this rank's float32 weights to its shard in the precision of the model."""
        if self._shard_R is not self.master_R:
            self._shard_R.copy_(self.master_R)


class ShardedUnit:
    """Parameters of a fully sharded model that are gathered and freed together."""

    def __init__(self, owners: Sequence[tuple[nn.Module, str]], group: dist.ProcessGroup) -> None:
        by_dtype: dict[torch.dtype, list[tuple[nn.Module, str]]] = {}
        for module, name in owners:
            by_dtype.setdefault(module._parameters[name].dtype, []).append((module, name))  # type: ignore[union-attr]
        self.flat = [FlatParameters(same, group) for same in by_dtype.values()]

    def each(self, method: Callable[[FlatParameters], None]) -> None:
        """Call a method of each flat tensor of a fully sharded unit."""
        for flat in self.flat:
            method(flat)

    @property
    def has_gradient(self) -> bool:
        return any(flat.has_gradient for flat in self.flat)


class FullyShardedStage(nn.Module):
    """Pipeline stage of a fully sharded model, the only stage. Its parameters are sharded over data ranks.

    It has the attributes of `DistributedDataParallel` that megatron-core's schedules read.
    """

    def __init__(self, stage: Any) -> None:
        """`stage`: a `Stage` whose model is fully sharded."""
        super().__init__()
        self.module, self.config, self._units = stage, stage.config, stage.sharded

    def forward(self, *arguments: Any, **options: Any) -> Any:
        self._units.begin_pass()
        return self.module(*arguments, **options)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context without effect: gradients are summed after each backward pass."""
        return nullcontext()

    def zero_grad_buffer(self) -> None:
        """Set all gradients of the fully sharded stage to zero."""
        self._units.zero_gradients()

    def finalize_gradients(self) -> None:
        """Sum the remaining gradients of the fully sharded stage over data ranks, and those of sequence slices over
        tensor ranks."""
        self._units.finish_step(sequence_parallel=self.config.sequence_parallel)


class FullySharded:
    """Fully sharded model: its units gather their weights when their modules run."""

    def __init__(self, model: Model) -> None:
        """Allocate a model of the meta device, with its trained parameters divided over data ranks. Frozen ones are
        replicated.

        The forward method of each layer must be called; calling only its parts would not gather the weights.
        """
        group = replica_group()
        stacks = [module for module in model.modules() if isinstance(module, BaseStack)]
        layers = [stack[str(number)] for stack in stacks for number in stack.layer_numbers]
        owners = [_trained_parameters(layer) for layer in layers]
        self._check_unshared(model)
        holding = Counter(module for layer in owners for module in {id(owner[0]) for owner in layer})
        shared = {module for module, number in holding.items() if number > 1}
        owners = [[owner for owner in layer if id(owner[0]) not in shared] for layer in owners]
        taken = {id(owner[0]) for layer in owners for owner in layer}
        root = [owner for owner in _trained_parameters(model) if id(owner[0]) not in taken]
        self.root = ShardedUnit(root, group)
        self._by_layer = [ShardedUnit(layer, group) for layer in owners]
        _allocate_frozen(model)
        for number, (layer, unit) in enumerate(zip(layers, self._by_layer, strict=True)):
            self._attach_hooks(layer, number, unit)
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(_add_to_main_grad)
        self._pending: list[ShardedUnit] = []

    @staticmethod
    def _check_unshared(model: Model) -> None:
        owners = [owner for module in model.modules() for owner in _own_parameters(module)]
        if len({id(module._parameters[name]) for module, name in owners}) < len(owners):
            raise UserError(
                f"layout.full_sharding: {model.spec.name} has a parameter in two modules, which full sharding cannot "
                "divide: use layout.distributed_optimizer."
            )

    @property
    def units(self) -> list[ShardedUnit]:
        return [self.root, *self._by_layer]

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that are sharded over data ranks."""
        for unit in self.units:
            for flat in unit.flat:
                yield from flat.parameters

    def _attach_hooks(self, layer: nn.Module, number: int, unit: ShardedUnit) -> None:
        """Attach hooks to a layer that gather the weights of its unit and free them."""

        def before_forward(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            unit.each(FlatParameters.gather)
            if not is_in_backward():  # in a recomputation, the backward pass prefetches
                self._prefetch_layer(number + 1)
            return _call_after_backward(lambda: self._after_backward(unit), inputs)

        def after_forward(_: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in output if isinstance(output, tuple) else (output,):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    tensor.register_hook(lambda _: self._before_backward(number, unit))
            if not is_in_backward():
                unit.each(FlatParameters.release)

        layer.register_forward_pre_hook(before_forward)
        layer.register_forward_hook(after_forward)

    def _prefetch_layer(self, number: int) -> None:
        if 0 <= number < len(self._by_layer):
            self._by_layer[number].each(FlatParameters.start_gather)

    def _before_backward(self, number: int, unit: ShardedUnit) -> None:
        unit.each(FlatParameters.gather)
        unit.each(FlatParameters.open_gradient)
        self._prefetch_layer(number - 1)

    def _after_backward(self, unit: ShardedUnit) -> None:
        unit.each(FlatParameters.release)
        if unit.has_gradient:
            for waiting in self._pending:
                waiting.each(FlatParameters.finish_reduce)
            unit.each(FlatParameters.start_reduce)
            self._pending = [unit]

    def begin_pass(self) -> None:
        """Gather the root unit of a fully sharded model at the start of a pass."""
        self.root.each(FlatParameters.gather)

    def zero_gradients(self) -> None:
        """Set all gradients of a fully sharded model to zero, and allocate the full gradient of the root unit."""
        for unit in self.units:
            for flat in unit.flat:
                flat.gradient_R.zero_()
        self.root.each(FlatParameters.open_gradient)

    def finish_step(self, *, sequence_parallel: bool) -> None:
        """Sum the gradients of fully sharded units that have not been summed yet, at the end of a step."""
        unfinished = [unit for unit in self._by_layer if unit.has_gradient and unit not in self._pending]
        for unit in (*unfinished, self.root):
            unit.each(FlatParameters.start_reduce)
        for unit in (*self._pending, *unfinished, self.root):
            unit.each(FlatParameters.finish_reduce)
        self._pending = []
        for unit in self._by_layer:
            unit.each(FlatParameters.release)
        if sequence_parallel:
            self._sum_over_tensor_ranks()

    def _sum_over_tensor_ranks(self) -> None:
        """Sum the gradients of parameters that each tensor rank used on its slice of the sequence."""
        gradients = [
            own_range(parameter).gradient
            for parameter in self.parameters()
            if getattr(parameter, "sequence_parallel", False)
        ]
        if gradients:
            flat = torch.cat(gradients)
            dist.all_reduce(flat, group=parallel_state.get_tensor_model_parallel_group())
            torch._foreach_copy_(gradients, list(flat.split([gradient.numel() for gradient in gradients])))

    def weights_changed(self) -> None:
        """Copy this rank's changed float32 weights to its shards; the next pass gathers them."""
        for unit in self.units:
            unit.each(FlatParameters.update_shard)
            unit.each(FlatParameters.release)


def own_range(parameter: Tensor) -> OwnRange:
    """Return the range of a fully sharded parameter that this data rank owns."""
    own: OwnRange = parameter.own_range  # type: ignore[attr-defined]
    return own


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter is sharded over data ranks."""
    return hasattr(parameter, "own_range")


@torch.no_grad()
def write_parameter(parameter: Tensor, value: Tensor) -> None:
    """Set a parameter to a full value; if it is fully sharded, set only this rank's range."""
    if is_sharded(parameter):
        own = own_range(parameter)
        own.master.copy_(value.reshape(-1)[slice(*own.span)])
    else:
        parameter.copy_(value)


class _AfterBackward(torch.autograd.Function):
    """Autograd function that returns tensors unchanged, and calls a function when all of their gradients are known."""

    @staticmethod
    def forward(ctx: Any, function: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.function()
        return None, *gradients


def _call_after_backward(function: Callable[[], None], inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a module, wrapped so that `function` is called after the module's backward pass."""
    indices = [index for index, value in enumerate(inputs) if isinstance(value, Tensor) and value.requires_grad]
    if not indices or not torch.is_grad_enabled():
        return inputs
    outputs = dict(zip(indices, _AfterBackward.apply(function, *(inputs[index] for index in indices)), strict=True))
    return tuple(outputs.get(index, value) for index, value in enumerate(inputs))


def _add_to_main_grad(parameter: Tensor) -> None:
    """Add the gradient that autograd computed to the float32 gradient. Modules that write to the float32 gradient
    themselves give autograd no gradient."""
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
    parameter.grad = None


def is_in_backward() -> bool:
    """Whether a backward pass runs in this thread, which may repeat forward passes of layers."""
    return torch._C._current_graph_task_id() != -1


def _own_parameters(module: nn.Module) -> list[tuple[nn.Module, str]]:
    return [(module, name) for name, parameter in module._parameters.items() if parameter is not None]


def _trained_parameters(root: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return module and name of each trained parameter of a model."""
    return [
        owner
        for module in root.modules()
        for owner in _own_parameters(module)
        if owner[0]._parameters[owner[1]].requires_grad  # type: ignore[union-attr]
    ]


def _allocate_frozen(model: nn.Module) -> None:
    """Allocate the parameters and buffers of a model that are not sharded."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                memory = torch.empty_like(parameter, device=rank_device())
                module._parameters[name] = nn.Parameter(memory, requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[name] = torch.empty_like(buffer, device=rank_device())


def _has_memory(tensor: Tensor) -> bool:
    return tensor.untyped_storage().size() > 0


def _free_memory(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def _allocate(tensor: Tensor) -> None:
    tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size())
