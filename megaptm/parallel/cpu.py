"""CPU replacements of the CUDA functions that megatron-core calls, for machines without a GPU.

megatron-core names CUDA in hundreds of places, but uses only a few things: the current device, streams and events, the
generator's state, `device="cuda"` in tensor factories, and type names. `install()` replaces those, and does nothing if
CUDA is available. It must run before megatron is imported; `parallel/__init__` does that, and no other module knows
about it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._device import _device_constructors

_FACTORIES = ("tensor", "zeros", "empty", "ones", "full", "arange", "rand", "randn", "randint", "as_tensor", "eye")
_LIKE = ("zeros_like", "empty_like", "ones_like", "full_like", "rand_like")
_installed = False


class _Stream:
    """Stream on a device that executes everything in order. A class, because libraries use it in type unions."""

    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def wait_stream(self, stream: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: object = None) -> _Event:
        return _Event()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def record(self, stream: object = None) -> None: ...

    def wait(self, stream: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class _OneGenerator:
    """`default_generators` with the same generator for any device."""

    def __len__(self) -> int:
        return 0  # number of GPUs

    def __getitem__(self, device: object) -> torch.Generator:
        return torch.default_generator


def _is_cuda(device: Any) -> bool:
    return device == "cuda" or (isinstance(device, torch.device) and device.type == "cuda") or isinstance(device, int)


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def made_on_cpu(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs and _is_cuda(kwargs["device"]):
            kwargs["device"] = "cpu"
        return factory(*args, **kwargs)

    return made_on_cpu


def _cuda_type_name(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make `tensor.type()` return names such as `torch.cuda.FloatTensor`, which megatron-core compares."""

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = original(self, *args, **kwargs)
        if not args and not kwargs and isinstance(name, str):
            return name.replace("torch.", "torch.cuda.", 1)
        return name

    return type_name


def _nothing(name: str) -> Callable[..., None]:
    """Return a new no-op function. torch's compiler keeps a table of functions and rejects one function under two
    names."""

    def nothing(*args: Any, **kwargs: Any) -> None: ...

    nothing.__name__ = name
    return nothing


def install() -> None:
    """Replace CUDA functions by CPU ones, once, if CUDA is not available."""
    global _installed
    if _installed or torch.cuda.is_available():
        return
    _installed = True
    cuda: Any = torch.cuda
    cpu = torch.device("cpu")

    # `with torch.device("meta")` recognizes factories by identity, in a table that is built at first use. It must hold
    # the original ones, which the wrappers call; it would ignore wrappers.
    _device_constructors()
    for name in (*_FACTORIES, *_LIKE):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    tensor.type = _cuda_type_name(tensor.type)
    module: Any = torch.nn.Module
    module.cuda = lambda self, *args, **kwargs: self

    cuda.Stream = _Stream
    cuda.Event = _Event
    stream = _Stream()
    cuda.current_stream = cuda.default_stream = lambda *args, **kwargs: stream
    cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    cuda.current_device = lambda: cpu
    cuda.device_count = lambda: 1
    for name in ("synchronize", "empty_cache", "set_device", "_lazy_init"):
        setattr(cuda, name, _nothing(name))
    cuda._lazy_call = lambda function, **kwargs: function()
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_capability = lambda *args, **kwargs: (0, 0)

    # megatron's random tracker saves and restores the CUDA generator around a region; a CPU has one generator.
    generator = torch.default_generator
    cuda.default_generators = _OneGenerator()
    for namespace in (cuda, cuda.random):
        namespace.get_rng_state = lambda *args, **kwargs: generator.get_state()
        namespace.set_rng_state = lambda state, *args, **kwargs: generator.set_state(state)
        namespace.manual_seed = lambda seed: generator.manual_seed(seed)
    for kind in ("Float", "Half", "BFloat16", "Double", "Int", "Long", "Byte", "Bool"):
        setattr(cuda, f"{kind}Tensor", getattr(torch, f"{kind}Tensor"))


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Disable torch.compile while megatron is imported on a CPU.

    Its small fused functions are only useful on a GPU, and the compiler takes seconds to import.
    """
    if torch.cuda.is_available():
        yield
        return
    compiler = torch.compile
    torch.compile = lambda function=None, **_: function if function is not None else (lambda f: f)  # type: ignore
    try:
        yield
    finally:
        torch.compile = compiler
