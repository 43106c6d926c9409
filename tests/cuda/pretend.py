"""CUDA without a GPU, for tensors that have a shape but no memory. Imported before torch, in its own process.

Code that asks `torch.cuda` gets the answers of a machine with one GPU. Nothing is computed, so values mean nothing.
What can be observed is the device of each operation, and where the host waits for the device.
"""

# ruff: noqa: E402

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

torch_spec = importlib.util.find_spec("torch")
assert torch_spec is not None
assert torch_spec.origin is not None
assert "torch" not in sys.modules
for library in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(Path(torch_spec.origin).parent / "lib" / library))
ctypes.CDLL(os.environ["GUARD"])

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests import ROOT

# Operations whose output size depends on values that only the device knows.
SIZED_BY_NUMBERS = {"nonzero", "unique", "unique_dim", "_unique", "_unique2", "masked_select", "bincount"}
# Operations that only allocate memory or describe it.
NO_KERNELS = {"device", "detach", "set_", "_unsafe_view"}
NO_KERNELS |= {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
WRITE_ONLY = {"copy_", "fill_", "zero_", "new_zeros", "zeros_like", "full_like"}
"""Operations that do not read their first argument."""
ANSWERS_TO_THE_HOST = {"equal", "is_nonzero"}
# Operations that fail on a GPU with `train.deterministic` (torch.use_deterministic_algorithms), for floats.
ANY_ORDER = {"cumsum", "cumprod", "histc", "bincount", "kthvalue", "put_", "nll_loss2d_forward", "resize_", "median"}
ANY_ORDER |= {"_ctc_loss_backward", "grid_sampler_2d_backward", "upsample_bilinear2d_backward", "_embedding_bag"}
ANY_ORDER |= {"reflection_pad1d_backward", "replication_pad1d_backward", "max_unpool2d", "avg_pool3d_backward"}
ANY_ORDER |= {"upsample_nearest2d_backward", "upsample_bicubic2d_backward", "adaptive_avg_pool2d_backward"}
PINNED = "pretended_pinned"
"""Attribute of host tensors that a device can fetch by itself."""

waits: Counter[str] = Counter()
"""Location -> number of times that the host waited for the device, or for a copy from its pageable memory."""
messages: Counter[str] = Counter()
"""Collective or message -> number of calls."""
refused: Counter[str] = Counter()
"""Operation of `ANY_ORDER` and location -> number of calls."""
kernels: Counter[str] = Counter()
"""Operation on the device -> number of calls. For attention with a mask: the operations of its plain form."""
traffic: Counter[str] = Counter()
"""Operation on the device -> bytes that its kernels read and write."""
pairs: Counter[str] = Counter()
"""Location -> number of tensors on the device with an element for each pair of positions."""
num_positions = 0
"""Length of the sequences whose pairs are counted."""


def clear() -> None:
    """Reset all counters."""
    for counter in (waits, messages, refused, kernels, traffic, pairs):
        counter.clear()


def location() -> str:
    """Return the running line of this project, with the line of megatron-core that it called, if any."""
    frame: FrameType | None = sys._getframe()
    outer = ""
    while frame is not None:
        code = frame.f_code
        path = Path(code.co_filename)
        if path.is_relative_to(ROOT / "megaptm") and code.co_name != "copy_to_host":
            return f"{path.relative_to(ROOT)}:{frame.f_lineno} {code.co_name}{outer}"
        if not outer and "megatron" in path.parts:
            outer = f" < {'/'.join(path.parts[path.parts.index('megatron') :])}:{frame.f_lineno} {code.co_name}"
        frame = frame.f_back
    return outer.removeprefix(" < ") or "elsewhere"


def wait(how: str) -> None:
    waits[f"{how}: {location()}"] += 1


class Stream:
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: object = None) -> Event:
        return Event()

    def synchronize(self) -> None:
        wait("synchronize")


class Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        wait("synchronize")


class Generator:
    """Generator of the device: its random numbers cannot be simulated, but its seed and offset are known to the
    host."""

    def __init__(self) -> None:
        self.offset = 0

    def set_state(self, state: object) -> None: ...

    def initial_seed(self) -> int:
        return 0

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset


class HostGenerator(torch.Generator):
    """Generator that replaces one on the device and is never used."""

    def __new__(cls, device: object = None) -> HostGenerator:
        return super().__new__(cls)


class Work:
    def wait(self, *args: object) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def _tolist(tensor: torch.Tensor) -> Any:
    """Return values that are all 1, counting one copy for any number of them."""
    if tensor.is_cuda:
        wait("numbers")
    value = 1.0 if tensor.is_floating_point() else 1
    for length in reversed(tensor.shape):
        value = [value] * length  # type: ignore[assignment]
    return value


class Waits(TorchDispatchMode):
    """Record where the host waits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        on_device = any(tensor.is_cuda for tensor in tensors)
        if name == "_local_scalar_dense":
            if on_device:
                wait("number")
            return 1.0 if args[0].is_floating_point() else 1
        if on_device and (name in SIZED_BY_NUMBERS | ANSWERS_TO_THE_HOST or _indexes_by_flags(name, args)):
            wait(name)
        if on_device and name in ANY_ORDER and tensors[0].is_floating_point():
            refused[f"{name}: {location()}"] += 1
        pinned = kwargs.pop("pin_memory", False)
        result = func(*args, **kwargs)
        if pinned:
            result = _pinned(result)
        launches = on_device or _is_on_device(result) or any(map(_is_on_device, _in_lists(args)))
        if launches and not (func.is_view or name in NO_KERNELS):
            kernels[name] += _launches(name, args)
            traffic[name] += _bytes_moved(name, args, result)
        if _is_on_device(result) and result.shape[-2:] == (num_positions, num_positions):
            pairs[location()] += 1
        if name in ("_to_copy", "copy_"):
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], result)
            at_once = kwargs.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
            if source.is_cuda != target.is_cuda and not at_once:
                wait("copy")
            elif source.is_cuda != target.is_cuda and not getattr(target if source.is_cuda else source, PINNED, False):
                wait("copy of memory that is not pinned")
        return result


def _launches(name: str, args: tuple[Any, ...]) -> int:
    """Return the number of kernels of an operation. One on lists of tensors launches a kernel for each if their dtypes
    differ, unless it copies."""
    tensors = [[*value] for value in args if name.startswith("_foreach") and isinstance(value, list | tuple)]
    dtypes = {tensor.dtype for part in tensors for tensor in part if isinstance(tensor, torch.Tensor)}
    return 1 if len(dtypes) < 2 or name == "_foreach_copy_" else len(tensors[0])


def _bytes_moved(name: str, args: tuple[Any, ...], result: Any) -> int:
    """Return the bytes of the inputs and outputs of an operation. An element is counted once if it is repeated (with a
    stride of zero), and only as written if its old value is not read."""
    read, written = [*args, *_in_lists(args)], result if isinstance(result, list | tuple) else [result]
    if name in WRITE_ONLY:
        read = read[1:]
    return sum(_stored_bytes(value) for value in (*read, *written) if isinstance(value, torch.Tensor))


def _stored_bytes(tensor: torch.Tensor) -> int:
    lengths = (length for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(lengths) * tensor.element_size()


def _pinned(tensor: Any) -> Any:
    setattr(tensor, PINNED, True)
    return tensor


def _in_lists(args: tuple[Any, ...]) -> Iterator[Any]:
    """Yield what the lists among the arguments hold: tensors of kernels that process many at once."""
    for value in args:
        if isinstance(value, list | tuple):
            yield from value


def _is_on_device(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.is_cuda


def _indexes_by_flags(name: str, args: tuple[Any, ...]) -> bool:
    if name not in ("index", "index_put", "index_put_"):
        return False
    flags = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return flags and (name == "index" or args[2].numel() != 1)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """Attend by one kernel without a mask, as a GPU does, and otherwise by the operations of torch for any device."""
    if attn_mask is not None or q.dtype == torch.float32:
        return plain_attention(q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    mixed: torch.Tensor = flash(q, k, v, dropout_p, is_causal, scale=scale)[0]
    return mixed


plain_attention = torch.nn.functional.scaled_dot_product_attention


def _counted(name: str) -> Any:
    def send(*args: Any, async_op: bool = False, **kwargs: Any) -> Work | None:
        messages[name] += 1
        return Work() if async_op else None

    return send


def _by_the_host(name: str, times: int) -> Any:
    """Return a collective of objects: their bytes, and their number, go to the device and back."""

    def send(*args: Any, **kwargs: Any) -> None:
        messages[name] += 1
        for _ in range(times):
            wait(name)

    return send


@contextlib.contextmanager
def _together(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Work]:
    yield Work()


def install() -> None:
    """Replace CUDA functions. Called before megatron-core is imported."""
    cuda: Any = torch.cuda
    stream = Stream()
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.Stream, cuda.Event = Stream, Event
    setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)  # noqa: B010
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: stream
    cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.current_device = lambda: 0
    cuda.device_count = lambda: 1
    cuda.get_device_capability = lambda *args, **kwargs: (9, 0)
    torch.backends.cuda.is_flash_attention_available = lambda: True
    functional: Any = torch.nn.functional
    functional.scaled_dot_product_attention = _attend
    cuda.is_current_stream_capturing = lambda: False
    cuda.synchronize = lambda *args, **kwargs: wait("synchronize")
    cuda._lazy_call = lambda function, **kwargs: function()
    for name in ("set_device", "empty_cache", "_lazy_init", "manual_seed", "get_rng_state", "set_rng_state"):
        setattr(cuda, name, lambda *args, **kwargs: None)
        setattr(cuda.random, name, getattr(cuda, name))
    cuda.default_generators = [Generator()]
    setattr(torch, "Generator", HostGenerator)  # noqa: B010

    distributed: Any = dist
    for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter_tensor", "all_gather_into_tensor", "barrier"):
        setattr(dist, name, _counted(name))
        setattr(distributed.distributed_c10d, name, getattr(dist, name))
    for name in ("_reduce_scatter_base", "_all_gather_base"):
        setattr(dist, name, _counted(name.strip("_")))
    for name in ("isend", "irecv"):
        setattr(dist, name, lambda *args, kind=name, **kwargs: _counted(kind)(async_op=True))
    dist.broadcast_object_list = _by_the_host("broadcast_object_list", 4)
    distributed._coalescing_manager = distributed.distributed_c10d._coalescing_manager = _together

    fake: Any = FakeTensor
    fake.tolist = _tolist
    fake.pin_memory = _pinned

    # Tensors of Python numbers are copied to the device, and fake ones are created without one.
    internals: Any = torch._C
    internals._set_only_lift_cpu_tensors(True)
    mode: Any = FakeTensorMode
    mode.avoid_device_init = property(lambda self: True, lambda self, value: None)
