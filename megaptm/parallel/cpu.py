"""CPU replacements of the CUDA functions that megatron-core calls, for machines without a GPU.

megatron-core names CUDA in hundreds of places, but uses only a few things: the current device, streams and events, the
generator's state, `device="cuda"` in tensor factories, and type names. `replace_cuda_functions()` replaces these in
megatron-core's modules, and does nothing if CUDA is available. torch itself is unchanged except for three methods,
because its compiler reads `torch.cuda` too. Call it before megatron is imported; `parallel/__init__` does that, and no
other module knows about it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

_FACTORIES = ("tensor", "zeros", "empty", "ones", "full", "arange", "rand", "randn", "randint", "as_tensor", "eye")
_LIKE = ("zeros_like", "empty_like", "ones_like", "full_like", "rand_like")


class _Stream:
    """CPU replacement of a CUDA stream; a CPU executes everything in order. It is a class because libraries use it in
    type unions."""

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
    """CPU replacement of `torch.cuda.default_generators`: the CPU's generator for any device index."""

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
    """Make `tensor.type()` return names such as `torch.cuda.FloatTensor` on a CPU, which megatron-core compares."""

    def type_name(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        name = original(self, *args, **kwargs)
        if not args and not kwargs and isinstance(name, str):
            return name.replace("torch.", "torch.cuda.", 1)
        return name

    return type_name


def _do_nothing(*args: Any, **kwargs: Any) -> None: ...


class _Overlay(ModuleType):
    """Copy of a module with some names replaced, for megatron-core on a CPU."""

    def __init__(self, module: ModuleType, replaced: dict[str, Any]) -> None:
        super().__init__(module.__name__)
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _cuda_on_cpu() -> _Overlay:
    """Return a replacement of `torch.cuda` for a machine whose only device is the CPU."""
    # megatron's random tracker saves and restores the CUDA generator around a region; a CPU has one generator.
    cpu, stream, generator = torch.device("cpu"), _Stream(), torch.default_generator
    random = {
        "get_rng_state": lambda *args, **kwargs: generator.get_state(),
        "set_rng_state": lambda state, *args, **kwargs: generator.set_state(state),
        "manual_seed": lambda seed: generator.manual_seed(seed),
    }
    kinds = ("Float", "Half", "BFloat16", "Double", "Int", "Long", "Byte", "Bool")
    return _Overlay(
        torch.cuda,
        {
            "Stream": _Stream,
            "Event": _Event,
            "current_stream": lambda *args, **kwargs: stream,
            "default_stream": lambda *args, **kwargs: stream,
            "stream": lambda *args, **kwargs: contextlib.nullcontext(),
            "current_device": lambda: cpu,
            "device_count": lambda: 1,
            "is_current_stream_capturing": lambda: False,
            "get_device_capability": lambda *args, **kwargs: (0, 0),
            "default_generators": _OneGenerator(),
            "random": _Overlay(torch.cuda.random, random),
            "_lazy_call": lambda function, **kwargs: function(),
            **dict.fromkeys(("synchronize", "empty_cache", "set_device", "_lazy_init"), _do_nothing),
            **{f"{kind}Tensor": getattr(torch, f"{kind}Tensor") for kind in kinds},
            **random,
        },
    )


class _Finder(importlib.abc.MetaPathFinder):
    """Import finder of megatron-core's modules. After a module is imported, its global names refer to the replacements
    for the CPU."""

    def __init__(self) -> None:
        cuda = _cuda_on_cpu()
        factories = {name: _on_cpu(getattr(torch, name)) for name in (*_FACTORIES, *_LIKE)}
        self._torch = _Overlay(torch, {"cuda": cuda} | factories)
        lazy = {id(getattr(torch.cuda, name)): vars(cuda)[name] for name in ("_lazy_call", "_lazy_init")}
        self._replaced = {id(torch): self._torch, id(torch.cuda): cuda} | lazy

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("megatron."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._execute_module, loader.exec_module)
        return spec

    def _execute_module(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        execute(module)
        for name, value in list(vars(module).items()):
            if id(value) in self._replaced:
                setattr(module, name, self._replaced[id(value)])


def replace_cuda_functions() -> None:
    """Install the CPU replacements of CUDA functions in megatron-core's modules, once, if CUDA is not available."""
    if torch.cuda.is_available() or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *args, **kwargs: self
    tensor.type = _cuda_type_name(tensor.type)
    module: Any = torch.nn.Module
    module.cuda = lambda self, *args, **kwargs: self


@contextlib.contextmanager
def disable_compile() -> Iterator[None]:
    """Disable torch.compile while megatron-core is imported on a CPU.

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
