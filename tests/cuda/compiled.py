"""`python -m tests.cuda.compiled FAMILY ...`: the kernels of compiled layers, for a GPU that is simulated. Prints, as
JSON, the kernels of each graph that are generated, and the other ones, forward and backward."""

# ruff: noqa: E402, I001

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tests.cuda import pretend

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

pretend.install()

H100 = SimpleNamespace(
    name="NVIDIA H100",
    type="cuda",
    index=0,
    major=9,
    minor=0,
    cc=90,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    warp_size=32,
    total_memory=80 << 30,
    gcnArchName="",
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
)

from functorch.compile import make_boxed_func
from torch._dynamo import device_interface
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx, config, scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import MultiOutput
from torch._inductor.virtualized import V

from megaptm.layers import kernels
from megaptm.layers.stack import Stack, StackInputs
from megaptm.layers.mask import Mask
from megaptm.models.model import Model, even_chunks
from megaptm.parallel import compiled
from tests.layouts.cases import tiny

BATCH, LENGTH = 4, 16

graphs: list[dict[str, dict[str, int]]] = []
"""Kernels of each graph: `forward` and `backward` -> kernel -> number of launches."""


def patch_device() -> None:
    """Answer the questions of the compiler about the GPU and about Triton, with which no kernel is built here."""
    cuda: Any = torch.cuda
    cuda.get_device_properties = lambda *args: H100
    cuda.get_rng_state = lambda *args: torch.zeros(16, dtype=torch.uint8)
    interface: Any = device_interface.CudaInterface
    for name, answer in {
        "is_available": True,
        "current_device": 0,
        "get_device_properties": H100,
        "get_compute_capability": 90,
        "get_raw_stream": 0,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
    }.items():
        setattr(interface, name, staticmethod(lambda *args, answer=answer, **options: answer))
    interface.Worker.get_device_properties = staticmethod(lambda *args: H100)
    interface.Worker.current_device = staticmethod(lambda: 0)
    patched: Any = scheduler
    patched.has_triton = lambda: True


def attend(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """Call the kernel that a GPU has for this attention: torch cannot choose it without a driver."""
    rate, scale = options.get("dropout_p", 0.0), options.get("scale")
    causal = options.get("is_causal", False)
    if attn_mask is None:
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        mixed: Tensor = flash(q, k, v, rate, causal, scale=scale)[0]
        return mixed
    bias = attn_mask
    if bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill(~bias, -torch.inf)
    bias = bias.expand(*q.shape[:3], k.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    mixed = efficient(q, k, v, bias, True, rate, causal, scale=scale)[0]
    return mixed


def lower(direction: str) -> Callable[..., Any]:
    """Return a compiler that schedules the kernels of a graph, counts them, and runs the graph as it was captured."""

    def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        captured = fx.GraphModule(graph, fx.Graph())
        captured.graph.output(captured.graph.graph_copy(graph.graph, {}))
        captured.recompile()
        compile_fx.view_to_reshape(graph)
        compile_fx._recursive_post_grad_passes(graph)
        mode = torch._guards.detect_fake_mode(inputs)
        with V.set_fake_mode(mode), torch.no_grad(), V.set_debug_handler(DebugContext()):
            lowered = GraphLowering(graph, example_inputs=inputs, is_backward=direction == "backward")
            with V.set_graph_handler(lowered):
                lowered.run(*inputs)
                lowered.init_wrapper_code()
                lowered._update_scheduler()
        graphs[-1][direction] = dict(Counter(filter(None, map(kernel, lowered.scheduler.nodes))))
        return make_boxed_func(captured.forward)

    return compile_graph


def kernel(node: Any) -> str:
    """Return the name of the kernel of a scheduled node, `generated` if the compiler writes it; empty if none."""
    if isinstance(node, scheduler.NopKernelSchedulerNode) or isinstance(node.node, MultiOutput):
        return ""
    if not isinstance(node, scheduler.ExternKernelSchedulerNode):
        return "generated"
    name = getattr(node.node, "python_kernel_name", None) or type(node.node).__name__
    return next(part for part in reversed(str(name).split(".")) if part not in ("default", "low_out", "out"))


def partition(joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    with V.set_fake_mode(torch._guards.detect_fake_mode(inputs)):
        compile_fx._recursive_joint_graph_passes(joint)
    parts: tuple[fx.GraphModule, fx.GraphModule] = min_cut_rematerialization_partition(
        joint, inputs, compiler="inductor", **options
    )
    return parts


def backend(graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
    graphs.append({})
    return aot_autograd(
        fw_compiler=lower("forward"),
        bw_compiler=lower("backward"),
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )(graph, inputs)


def fail(line: str) -> None:
    raise AssertionError(line)


def kernels_of(family: str) -> dict[str, list[dict[str, dict[str, int]]]]:
    """Return the graphs of each stack of a tiny model, in bfloat16 with dropout."""
    spec = tiny(family, dropout=0.1)
    by_stack = {}
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            model = Model(spec, even_chunks(spec, 1)[0])
        compiled.compile_layers(model, fail)
        for path, stack in model.named_modules():
            if isinstance(stack, Stack):
                graphs.clear()
                x = torch.empty(
                    LENGTH, BATCH, stack.size.width, device="cuda", dtype=torch.bfloat16, requires_grad=True
                )
                mask = Mask((LENGTH, LENGTH), x.device, causal=stack.block.causal)
                memory = torch.empty_like(x) if any("cross" in name for name, _ in stack.named_modules()) else None
                stack(x, StackInputs(mask, memory, None if memory is None else Mask((LENGTH, LENGTH), x.device)))
                by_stack[path] = [dict(graph) for graph in graphs]
    return by_stack


def kernels_by_documents(family: str, *numbers: int) -> list[dict[str, dict[str, int]]]:
    """Return the graphs of the last stack of a tiny model, for micro-batches with these numbers of documents."""
    spec = tiny(family)
    graphs.clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with torch.device("cuda"):
            model = Model(spec, even_chunks(spec, 1)[0])
        compiled.compile_layers(model, fail)
        stack = [stack for stack in model.modules() if isinstance(stack, Stack)][-1]
        for number in numbers:
            x = torch.empty(LENGTH, BATCH, stack.size.width, device="cuda", requires_grad=True)
            documents = torch.ones(BATCH, LENGTH, dtype=torch.int64, device="cuda")
            offsets = torch.empty(number + 1, dtype=torch.int32, device="cuda")
            mask = Mask((LENGTH, LENGTH), x.device, (documents, documents), causal=stack.block.causal, offsets=offsets)
            stack(x, StackInputs(mask)).sum().backward()
    return [dict(graph) for graph in graphs]


if __name__ == "__main__":
    patch_device()
    for module, name, replacement in (
        (F, "scaled_dot_product_attention", attend),
        (compiled, "BACKEND", backend),
        (kernels, "has_flash", lambda device: True),
    ):
        setattr(module, name, replacement)
    config.compile_threads, config.joint_graph_constant_folding = 1, False  # constants cannot be computed
    torch.set_default_dtype(torch.bfloat16)
    results: dict[str, Any] = {family: kernels_of(family) for family in sys.argv[1:]}
    by_documents = {f"{family} documents": kernels_by_documents(family, 8, 16) for family in ("gpt2", "modernbert")}
    print(json.dumps(results | by_documents))
