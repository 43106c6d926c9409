"""`python -m tests.cuda.flex NAME ...`: FlexAttention kernels of a mask, forward and backward, as torch generates them
and triton compiles them for an A100 and an H100, without a GPU. Prints bytes of machine code, as JSON.

    Needs the package triton, which torch for CPUs does not include.
"""

# ruff: noqa: E402, I001

from __future__ import annotations

import copy
import importlib.util
import json
import re
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any

from tests.cuda import pretend

import torch
import triton
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

pretend.install()

H100 = types.SimpleNamespace(
    name="NVIDIA H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    warp_size=32,
    total_memory=80 << 30,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    is_integrated=False,
    L2_cache_size=50 << 20,
    gcnArchName="",
)
TARGETS = {"A100": GPUTarget("cuda", 80, 32), "H100": GPUTarget("cuda", 90, 32)}


class Driver:
    """Driver of triton, which needs nothing else of the machine."""

    def get_current_target(self) -> GPUTarget:
        return TARGETS["H100"]

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


cuda: Any = torch.cuda
cuda.get_device_properties = lambda *args, **kwargs: H100
triton.runtime.driver.set_active(Driver())

import torch._dynamo.device_interface as interfaces
import torch._inductor.config
import torch._inductor.utils
import torch.utils._triton

interface: Any = interfaces.CudaInterface
for name, result in {
    "is_available": True,
    "current_device": 0,
    "get_device_properties": H100,
    "get_compute_capability": 90,
    "is_triton_capable": True,
    "raise_if_triton_unavailable": None,
}.items():
    setattr(interface, name, staticmethod(lambda *args, result=result: result))
interface.Worker.get_device_properties = staticmethod(lambda *args: H100)
interface.Worker.current_device = staticmethod(lambda: 0)
for module in (torch.utils._triton, torch._inductor.utils):
    patched: Any = module
    patched.has_triton = patched.has_triton_package = lambda *args, **kwargs: True
torch._inductor.config.compile_threads = 1

import torch._inductor.runtime.triton_heuristics as heuristics
import torch._inductor.runtime.triton_helpers as helpers
from torch._higher_order_ops.flex_attention import create_fw_bw_graph, flex_attention, flex_attention_backward
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import _identity

from megaptm.layers.custom_pattern import CustomPattern
from megaptm.families.reformer.pattern import ChunkPairs
from megaptm.layers.pattern import Pattern, SlidingWindow
from megaptm.layers.kernels import block_mask, score_function
from megaptm.layers.mask import Mask
from tests.models.strided import near_or_first

ROWS, HEADS, LENGTH, WIDTH = 2, 4, 1024, 64
PATTERNS: dict[str, tuple[Pattern, bool, bool]] = {
    "window of documents": (SlidingWindow(255, 255), False, True),
    "dilated window, causal": (SlidingWindow(255, 0, dilation=2), True, True),
    "chunks": (ChunkPairs(64), False, False),
    "custom, documents": (CustomPattern(near_or_first), False, True),
    "soft cap, causal window of documents": (SlidingWindow(255, 0), True, True),
}
"""Name -> pattern, whether it is causal, whether a sequence has several documents."""
CAPS = {"soft cap, causal window of documents": 50.0}
"""Name -> soft cap of the scores."""
KERNEL_OPTIONS = {
    "PRESCALE_QK": False,
    "ROWS_GUARANTEED_SAFE": False,
    "BLOCKS_ARE_CONTIGUOUS": False,
    "WRITE_DQ": True,
    "OUTPUT_LOGSUMEXP": True,
    "OUTPUT_MAX": False,
}


def generate_code(name: str, mode: FakeTensorMode) -> dict[str, str]:
    """Return the code that torch generates for a forward and a backward pass."""
    pattern, causal, packed = PATTERNS[name]
    score_mod = score_function(CAPS.get(name)) or _identity
    shape = (ROWS, HEADS, LENGTH, WIDTH)
    with mode:
        documents = torch.ones(ROWS, LENGTH, dtype=torch.long, device="cuda")
        mask = Mask(
            (LENGTH, LENGTH),
            documents.device,
            (documents, documents) if packed else None,
            causal=causal,
            pattern=pattern,
        )
        q, k, v, out, grad = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(5))
        logsumexp = torch.empty(shape[:3], dtype=torch.float32, device="cuda")
        blocks = block_mask(mask).as_tuple()
    read = [*([documents] if packed else []), *([] if mask.table is None else [mask.table])]

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *inputs: Tensor) -> Tensor:
        mask_of_inputs = copy.copy(mask)
        if packed:
            object.__setattr__(mask_of_inputs, "documents", (inputs[0], inputs[0]))
        if mask.table is not None:
            object.__setattr__(mask_of_inputs, "table", inputs[-1])
        return mask_of_inputs.attends(batch, head, query, key)

    tensors = [value for value in blocks if isinstance(value, Tensor)]

    def with_tensors(tensors: tuple[Tensor, ...]) -> tuple[Any, ...]:
        remaining = iter(tensors)
        return (*(next(remaining) if isinstance(value, Tensor) else value for value in blocks[:-1]), attends)

    def forward(q: Tensor, k: Tensor, v: Tensor, *inputs: Tensor) -> list[Tensor]:
        mask_inputs, block_inputs = inputs[: len(read)], inputs[len(read) :]
        return [
            *flex_attention(q, k, v, score_mod, with_tensors(block_inputs), 0.125, KERNEL_OPTIONS, (), mask_inputs)[:2]
        ]

    def backward(
        q: Tensor, k: Tensor, v: Tensor, out: Tensor, logsumexp: Tensor, grad: Tensor, *inputs: Tensor
    ) -> list[Tensor]:
        mask_inputs, block_inputs = inputs[: len(read)], inputs[len(read) :]
        indices = [torch.zeros((), dtype=torch.int32, device="cuda") for _ in range(4)]
        score = torch.zeros((), dtype=torch.bfloat16, device="cuda", requires_grad=True)
        ahead, back = create_fw_bw_graph(score_mod, (score, *indices), ())
        gradients = flex_attention_backward(
            q,
            k,
            v,
            out,
            logsumexp,
            grad,
            None,
            ahead,
            back,
            with_tensors(block_inputs),
            0.125,
            KERNEL_OPTIONS,
            (),
            mask_inputs,
        )
        return [*gradients[:3]]

    return {
        "forward": lower(forward, [q, k, v, *read, *tensors], mode),
        "backward": lower(backward, [q, k, v, out, logsumexp, grad, *read, *tensors], mode),
    }


def lower(function: Callable[..., Any], inputs: list[Tensor], mode: FakeTensorMode) -> str:
    with mode:
        traced = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")(*inputs)
    with V.set_fake_mode(mode), torch.no_grad(), V.set_debug_handler(DebugContext()):
        graph = GraphLowering(traced)
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            graph.run(*inputs)
            code: Any = graph.codegen()
    code = code[0] if isinstance(code, tuple) else code
    return str(getattr(code, "value", code))


class Kernel:
    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        self.function, self.options = function, options


def kernels(code: str) -> Iterator[Kernel]:
    """Return the attention kernels in generated code."""
    for source in re.findall(
        r"async_compile\.triton\('triton_tem\w+', '''(.*?)''', device_str='cuda'\)", code, re.DOTALL
    ):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(source)
            file.flush()
            spec = importlib.util.spec_from_file_location("written", file.name)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            [kernel] = [value for value in vars(module).values() if isinstance(value, Kernel)]
            kernel.function.src  # noqa: B018 - read before the file is deleted
            yield kernel


def machine_code(kernel: Kernel, target: GPUTarget) -> int:
    """Return the size of the machine code in bytes."""
    meta = kernel.options["triton_meta"]
    names = kernel.function.arg_names
    constants = {(names.index(name),): value for name, value in meta.get("constants", {}).items()}
    source = ASTSource(
        fn=kernel.function, signature=dict(meta["signature"]), constexprs=constants, attrs=meta["configs"][0]
    )
    compile_options = {name: kernel.options[name] for name in ("num_warps", "num_stages")}
    return len(triton.compile(source, target=target, options=compile_options).asm["cubin"])


if __name__ == "__main__":
    replaced: Any = heuristics
    replaced.template = lambda **options: lambda function: Kernel(function, options)
    replaced = helpers
    replaced.set_driver_to_gpu = lambda *args: None
    fake = FakeTensorMode()
    print(
        json.dumps(
            {
                name: {
                    f"{way} on {gpu}": [machine_code(kernel, target) for kernel in kernels(code)]
                    for way, code in generate_code(name, fake).items()
                    for gpu, target in TARGETS.items()
                }
                for name in sys.argv[1:]
            }
        )
    )
