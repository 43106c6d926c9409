"""Planned memory equals that of the engine, of autograd, and of papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from megaptm.config import Layout, OptimizerConfig
from megaptm.config.schema import AdafactorConfig
from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT3
from megaptm.families.infoword.head_modules import InfoMaxHead
from megaptm.layers.attention_logits import max_logit
from megaptm.layers.layer import Layer
from megaptm.layers.mask import Mask
from megaptm.losses import token
from megaptm.models.contrast import ContrastHead
from megaptm.models.head_costs import head_costs
from megaptm.models.heads import build_heads
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.plan import activations
from megaptm.plan.memory import estimate_memory, state_bytes
from megaptm.plan.software import Software
from megaptm.plan.workload import Workload
from megaptm.spec import Family, ModelSpec, Size, change
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, LENGTH, ROWS, batch, losses_of, micro_batches, tiny
from tests.models.grammar import VARIANTS
from tests.models.pairs import PairsHead
from tests.models.tiny import VOCABULARY, mean_losses, tiny_batch
from tests.ranks import run_ranks

FACTORED = OptimizerConfig(name="adafactor", lr=1e-3, adafactor=AdafactorConfig(min_dim_size_to_factor=32))
PALM = OptimizerConfig(name="adafactor", lr=1e-3, momentum=0.9, adafactor=AdafactorConfig(min_dim_size_to_factor=None))
MUON = OptimizerConfig(name="muon", lr=1e-3)
SGD = OptimizerConfig(name="sgd", lr=1e-3)
CASES = {
    "gpt2 in bf16": ("gpt2", "bf16", Layout(microbatch=2)),
    "bert in fp32": ("bert", "fp32", Layout(microbatch=2)),
    "t5 on two tensor ranks": ("t5", "bf16", Layout(microbatch=2, tensor=2)),
    "t5 on two stages": ("t5", "fp32", Layout(microbatch=2, pipeline=2)),
    "gpt2 interleaved": ("gpt2", "bf16", Layout(microbatch=2, pipeline=2, virtual=2)),
    "bert, distributed optimizer": ("bert", "bf16", Layout(microbatch=2, data=2, distributed_optimizer=True)),
    "gpt2, distributed optimizer, fp32": ("gpt2", "fp32", Layout(microbatch=2, data=2, distributed_optimizer=True)),
    "t5, adafactor": ("t5", "bf16", Layout(microbatch=2), FACTORED),
    "bert, adafactor, two tensor ranks": ("bert", "fp32", Layout(microbatch=2, tensor=2), FACTORED),
    "t5, adafactor, two stages": ("t5", "bf16", Layout(microbatch=2, pipeline=2), FACTORED),
    "bert, adafactor, distributed": (
        "bert",
        "bf16",
        Layout(microbatch=2, data=2, distributed_optimizer=True),
        FACTORED,
    ),
    "deberta-v3, adafactor, two stages": ("deberta-v3", "bf16", Layout(microbatch=2, pipeline=2), FACTORED),
    "gpt2 as PaLM": ("gpt2", "fp32", Layout(microbatch=2), PALM),
    "t5, muon": ("t5", "bf16", Layout(microbatch=2), MUON),
    "bert, muon, two tensor ranks": ("bert", "fp32", Layout(microbatch=2, tensor=2), MUON),
    "xlnet, muon, two stages": ("xlnet", "fp32", Layout(microbatch=2, pipeline=2), MUON),
    "bert, mean of weights": (
        "bert",
        "bf16",
        Layout(microbatch=2, data=2, distributed_optimizer=True),
        OptimizerConfig(name="adamw", lr=1e-3, ema_decay=0.9),
    ),
    "gpt2 by SGD": ("gpt2", "bf16", Layout(microbatch=2), SGD),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_of_ranks_equals_the_engine(case):
    family, precision, layout = CASES[case][:3]
    rule = CASES[case][3] if len(CASES[case]) > 3 else ADAM
    ranks = run_ranks(layout.processes, bytes_of_rank, family, precision, layout, rule)
    lengths = {name: LENGTH // (1 + index) for index, name in enumerate(tiny(family).family.stacks)}
    work = Workload(spec=tiny(family), lengths=lengths, layout=layout, batch=ROWS, precision=precision, optimizer=rule)
    planned = estimate_memory(work)
    for rank in ranks:
        stage = planned[rank["stage"]]
        assert rank["weights"] == stage.weights
        assert rank["gradients"] == stage.gradients
    # Data ranks divide the moments of a stage at the middle of a buffer, so only their sum is exact.
    assert sum(rank["optimizer"] for rank in ranks) == sum(planned[rank["stage"]].optimizer for rank in ranks)


def bytes_of_rank(family: str, precision: str, layout: Layout, rule: OptimizerConfig) -> dict[str, Any]:
    """Return the bytes that the engine holds after a step. Runs in a worker."""
    engine = filled_engine(tiny(family), layout, rule, losses=losses_of(family), seed=7, precision=precision)
    batches = micro_batches(batch(family, 0), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
    engine.train_step(batches, step=0, lr=1e-3)
    parameters = [parameter for stage in engine.model.stages for parameter in stage.parameters()]
    weights = {parameter.data_ptr() for parameter in parameters}
    states = [(part.master, engine.optimizer.rule.state.get(part.key, {})) for part in engine.optimizer.parts]
    moments = [value for _, state in states for name, value in state.items() if name != "step"]
    # Float32 copies of weights. For a float32 model they are the weights themselves.
    copies = [master for master, _ in states if master is not None] if precision == "bf16" else []
    assert not weights & {copy.data_ptr() for copy in copies}
    return {
        "stage": engine.ranks.pipeline,
        "weights": sum(size(parameter) for parameter in parameters),
        "gradients": sum(size(parameter.main_grad) for parameter in parameters),
        "optimizer": sum(size(tensor) for tensor in (*moments, *copies)),
    }


def size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# Bytes that a layer of the paper's GPT saves, per token and width: arXiv:2205.05198, table 2. D = 64 heads x 96.
PAPER = Software(attention="materialized")
SCORES = 5 * 64 * 2048 / 6144
TABLE_2 = {
    "no parallelism": (Layout(), "none", 34 + SCORES),
    "tensor": (Layout(tensor=8), "none", 10 + 24 / 8 + SCORES / 8),
    "tensor and sequence": (Layout(tensor=8, sequence_parallel=True), "none", 34 / 8 + SCORES / 8),
    "tensor, selective recompute": (Layout(tensor=8), "selective", 10 + 24 / 8),
    "tensor and sequence, selective recompute": (Layout(tensor=8, sequence_parallel=True), "selective", 34 / 8),
    "full recompute": (Layout(tensor=8), "full", 2),
}


def paper_22b(layout: Layout, recompute: str = "none", software: Software = PAPER) -> Workload:
    layers = Size(layers=48, width=6144, heads=64, ffn=4 * 6144)
    spec = ModelSpec(family=GPT3, size=layers, vocabulary=51200, context=2048, dropout=0.1)
    return Workload(
        spec=spec,
        lengths={"decoder": 2048},
        layout=layout,
        batch=layout.data,
        precision="fp16",
        recompute=recompute,
        software=software,
    )


@pytest.mark.parametrize("row", TABLE_2)
def test_activations_of_a_layer_equal_the_paper(row):
    layout, recompute, expected = TABLE_2[row]
    saved = activations.layer_bytes(paper_22b(layout, recompute), "decoder")
    assert saved / (2048 * 6144) == pytest.approx(expected, rel=1e-6)


def test_fused_attention_saves_one_value_per_query():
    fused = activations.layer_bytes(paper_22b(Layout(), software=Software()), "decoder")
    assert fused / (2048 * 6144) == pytest.approx(34 + 4 * 64 / 6144)


def workspace_of(family: Family, size: Size, length: int, *, rows: int, dropout: float) -> float:
    """Return the planned temporary bytes of a backward pass of one stack in bfloat16."""
    spec = ModelSpec(family=family, size=size, vocabulary=512, context=length, dropout=dropout)
    work = Workload(spec=spec, lengths={next(iter(family.stacks)): length}, layout=Layout(microbatch=rows), batch=rows)
    return activations.workspace_bytes(work, 0)


def test_backward_pass_of_attention_sums_gradients_of_queries_in_float32():
    """Four gradients of 16 bits, and FlashAttention-2's `dq_accum`, with an output that is wider than the stream."""
    size = Size(layers=2, width=64, heads=8, head_width=64, ffn=64)
    gradients = 2 * 128 * (4 * 512 * 2 + 512 * 4 + 2 * 64 * 2)
    assert workspace_of(GPT3, size, 128, rows=2, dropout=0.0) == gradients


def test_tiles_of_attention_need_a_gigabyte():
    """Weights, dropout factors and the gradients of both, of all scores of a layer; FlexAttention has none."""
    bigbird, size = CATALOGUE["bigbird"], CATALOGUE["bigbird"].sizes["base"]
    without, tiles = (workspace_of(bigbird, size, 4096, rows=4, dropout=rate) for rate in (0.0, 0.1))
    assert tiles - without == pytest.approx(1e9, rel=0.15)


def test_gradients_of_scores_by_distance_are_twice_as_long():
    """The gradient of the bias, and two tensors for each of DeBERTa's terms."""
    deberta, size = CATALOGUE["deberta"], CATALOGUE["deberta"].sizes["base"]
    scores = 32 * 12 * 512 * 512 * 2
    assert workspace_of(deberta, size, 512, rows=32, dropout=0.1) > 5 * scores


@pytest.mark.parametrize(("virtual", "factor"), [(1, 1.0), (3, 1 + 7 / (8 * 3))])
def test_layers_in_flight_on_the_first_stage(virtual, factor):
    """arXiv:2205.05198, section 4.2.3: L layers in all, and (1 + (p - 1) / (p v)) times as many when interleaved."""
    layers = Size(layers=48, width=512, heads=8, ffn=2048)
    family = change(GPT3, dropout=0.0)
    spec = ModelSpec(family=family, size=layers, vocabulary=512, context=64, dropout=0.0)
    layout = Layout(pipeline=8, virtual=virtual)
    work = Workload(spec=spec, lengths={"decoder": 64}, layout=layout, batch=64)
    assert estimate_memory(work)[0].activations == pytest.approx(48 * factor * activations.layer_bytes(work, "decoder"))


# arXiv:1910.02054, figure 1: 7.5 billion parameters on 64 data ranks, float16 gradients, in 10^9 bytes.
@pytest.mark.parametrize(("divided", "gigabytes"), [(False, 120), (True, 31.4)])
def test_states_equal_the_zero_paper(divided, gigabytes):
    layout = Layout(data=64, distributed_optimizer=divided)
    work = paper_22b(layout, software=Software(gradient_bytes=2))
    assert sum(state_bytes(work, 7_500_000_000)) / 1e9 == pytest.approx(gigabytes, rel=0.02)


VARIANTS_OF_LAYERS = {
    "gpt2": GPT3,
    "bert": BERT,
    "swiglu": change(GPT3, stacks={"decoder": change(GPT3.last_block, ffn={"activation": "swiglu"})}),
    "relu, post-norm": change(
        GPT3, stacks={"decoder": change(GPT3.last_block, ffn={"activation": "relu"}, norm={"position": "post"})}
    ),
}


@pytest.mark.parametrize("recompute", ["none", "attention"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("variant", VARIANTS_OF_LAYERS)
def test_activations_of_a_layer_equal_autograd(variant, masked, recompute):
    """To 3%, because norms also save two values per token. Without dropout, which fused attention on CPUs lacks."""
    family = change(VARIANTS_OF_LAYERS[variant], dropout=0.0)
    two, three = (saved_bytes(family, layers, masked=masked, recompute=recompute) for layers in (2, 3))
    work = Workload(
        spec=small(family, layers=2),
        lengths={next(iter(family.stacks)): 64},
        layout=Layout(microbatch=2),
        batch=2,
        precision="fp32",
        has_mask=masked,
        recompute=recompute,
    )
    assert three - two == pytest.approx(activations.layer_bytes(work, next(iter(family.stacks))), rel=0.03)


def small(family: Family, *, layers: int) -> ModelSpec:
    size = Size(layers=layers, width=32, heads=4, ffn=64)
    return ModelSpec(family=family, size=size, vocabulary=VOCABULARY, context=64, dropout=family.dropout)


def saved_bytes(family: Family, layers: int, *, masked: bool, recompute: str) -> int:
    """Return the bytes of all tensors that a forward pass saves, without weights, each storage once."""
    model = Model(small(family, layers=layers))
    init_weights(model, seed=7)
    for module in model.modules():
        if isinstance(module, Layer) and recompute == "attention":
            module.run_attention = partial(checkpoint, use_reentrant=True)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    fields = tiny_batch("bert" if "encoder" in family.stacks else "gpt2", rows=2, sequence=64)
    if not masked:
        del fields["document_ids"]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mean_losses(model.train()(fields).losses)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(nbytes for pointer, nbytes in storages.items() if pointer not in weights)


@pytest.mark.parametrize(("name", "precision"), [("bert", "fp32"), ("spanbert", "fp32"), ("bert", "bf16")])
def test_memory_of_losses_equals_torch(monkeypatch: pytest.MonkeyPatch, name: str, precision: str) -> None:
    """Each projecting head saves the gradient of its logits until its backward pass. The plan neglects small tensors
    such as the input of a norm."""
    # As on a GPU.
    monkeypatch.setattr(token, "drops_unlabeled", lambda hidden: False)
    square = torch.ones(64, 64, dtype=torch.bfloat16)
    if precision == "bf16" and peak_bytes(lambda: square @ square) > square.nbytes:
        pytest.skip("this processor has no bfloat16 instructions, and its products allocate extra memory")
    size = Size(layers=1, width=32, heads=4, ffn=64)
    spec = ModelSpec(family=change(CATALOGUE[name], dropout=0.0), size=size, vocabulary=20_480, context=64, dropout=0.0)
    work = Workload(
        spec=spec,
        lengths={"encoder": 64},
        layout=Layout(microbatch=3),
        batch=3,
        precision=precision,
        num_predicted=12,
        software=Software(fused_loss=False),
    )
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    fields = tiny_batch(name, rows=3, sequence=64)
    labels = {field: value.repeat(1, 4) for field, value in fields.items() if value.shape[1:] == (3,)}
    stream = torch.randn(64, 3, 32, dtype=dtype, requires_grad=True)
    built = build_heads(spec, [head_name for head_name, costs in head_costs(spec).items() if costs.projects]).to(dtype)
    table = torch.randn(spec.padded_vocabulary, 32, dtype=dtype, requires_grad=True)
    assert len(built) == (2 if name == "spanbert" else 1)
    measured = peak_bytes(lambda: [head.loss(stream, fields | labels, table) for head in built.values()])
    assert activations.logits_bytes(work) == pytest.approx(measured, rel=0.1)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak of bytes that a function allocates."""
    with torch.profiler.profile(profile_memory=True) as profiled:
        result = work()
    events = profiled.profiler.kineto_results.events()
    del result
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


TOWERS = VARIANTS["two-towers-contrast"].family
NGRAMS = VARIANTS["infomax"].family


@pytest.mark.parametrize(("family", "module"), [(TOWERS, PairsHead), (NGRAMS, InfoMaxHead)])
@pytest.mark.parametrize(("own", "rows"), [(512, 512), (64, 1024)])
def test_memory_of_a_contrastive_comparison(own: int, rows: int, family: Family, module: type[ContrastHead]) -> None:
    """An upper bound: with many scores, some are freed before the gradient of the features is allocated."""
    spec = small(family, layers=2)
    [head] = [event for event in head_costs(spec).values() if event.contrasts]
    features = torch.randn(rows, head.features, requires_grad=True)
    labels = torch.zeros(rows, dtype=torch.int64)
    with torch.profiler.profile(profile_memory=True) as profiled:
        torch.autograd.grad(module(spec, head).compare(features, labels, slice(0, own)).sum(), features)
    allocations = [event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    assert 1.0 <= head.compare_bytes(own, rows) / (max(accumulate(allocations)) + features.nbytes) < 1.15


def test_memory_of_measured_attention_logits() -> None:
    """An upper bound: without rotary position embedding, queries and keys have no second copy."""
    spec = small(GPT3, layers=1)
    work = Workload(spec=spec, lengths={"decoder": 256}, layout=Layout(microbatch=2), batch=2, precision="fp32")
    layer = next(module for module in Model(spec).modules() if isinstance(module, Layer))
    x, mask = torch.randn(256, 2, 32), Mask((256, 256), torch.device("cpu"), causal=True)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profiled:
        max_logit(*layer.attention.queries_and_keys(layer.attention_norm(x)), mask, scale=1.0)
    allocations = [event.nbytes() for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    planned = activations.measurement_bytes(replace(work, measures_logits=True))
    assert 1.0 <= planned / max(accumulate(allocations)) < 1.15
    assert activations.measurement_bytes(work) == 0


def test_data_ranks_divide_the_contrastive_comparison() -> None:
    spec = small(TOWERS, layers=2)
    work = Workload(spec=spec, lengths={"encoder": 64, "decoder": 64}, layout=Layout(data=8, microbatch=1), batch=8192)
    few = replace(work, layout=Layout(data=2, microbatch=1))
    assert activations.comparison_bytes(few) / activations.comparison_bytes(work) == pytest.approx(4, rel=0.05)
    held, plain = estimate_memory(work)[0], estimate_memory(replace(work, trained_heads=("lm",)))[0]
    assert plain.comparison == 0
    before = held.activations + held.logits + held.workspace + held.buffers
    assert held.comparison == activations.comparison_bytes(work) - before > 0
