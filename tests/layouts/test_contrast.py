"""Contrastive loss over all samples of the global batch: every layout gives the result of one pass over the batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from megaptm.checkpoint.store import CheckpointStore
from megaptm.config import CommunicationConfig, Layout, OptimizerConfig
from megaptm.errors import UserError
from megaptm.layers.attention import Attend
from megaptm.models.initial import init_weights, initial_value
from megaptm.models.model import Model
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, ROWS, batch, losses_of, micro_batches, tiny, train_and_save
from tests.models.pairs import PairsHead
from tests.ranks import run_ranks

FAMILY = "two-towers-contrast"


def first_step(layout: Layout, dropout: float, communication: CommunicationConfig | None = None) -> dict[str, Any]:
    """Return losses and gradient norm of the first step, and an evaluation before it."""
    spec, losses = tiny(FAMILY, dropout=dropout), losses_of(FAMILY)
    engine = filled_engine(spec, layout, ADAM, losses=losses, seed=7, communication=communication)
    local = [micro_batches(batch(FAMILY, 0), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None][0]
    evaluated = engine.evaluate(local).losses
    done = engine.train_step(local, step=0, lr=0.0)
    return {"evaluated": evaluated, "losses": done.losses, "norm": done.gradient_norm, "counts": done.counts}


def first_step_of_torch(dropout: float) -> dict[str, Any]:
    """Return the results of `first_step` by torch alone: one model, one batch, one backward pass."""
    from megaptm.parallel.groups import open_groups, seed_step

    ranks = open_groups(Layout(microbatch=8))
    model, fields = Model(tiny(FAMILY, dropout=dropout)), batch(FAMILY, 0)
    init_weights(model, seed=7)
    with torch.no_grad():
        evaluated = {name: (loss / count).item() for name, (loss, count) in model.eval()(fields).losses.items()}
    seed_step(7, 0, ranks)
    losses = {name: loss / count for name, (loss, count) in model.train()(fields).losses.items()}
    sum(weight * losses[name] for name, weight in losses_of(FAMILY).items()).backward()
    norm = (
        torch.stack([parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None])
        .norm()
        .item()
    )
    return {"evaluated": evaluated, "losses": {name: loss.item() for name, loss in losses.items()}, "norm": norm}


LAYOUTS = {
    "one process, micro-batches of one row": Layout(microbatch=1),
    "DP2": Layout(microbatch=2, data=2),
    "DP4 distributed optimizer": Layout(microbatch=1, data=4, distributed_optimizer=True),
    "TP2 + SP, recompute": Layout(microbatch=4, tensor=2, sequence_parallel=True, recompute="full"),
    "DP2 x PP2 interleaved": Layout(microbatch=1, data=2, pipeline=2, virtual=2),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
    "DP4, one micro-batch, full sharding": Layout(microbatch=2, data=4, full_sharding=True),
    "DP4, one micro-batch": Layout(microbatch=2, data=4, distributed_optimizer=True),
    "DP2 x PP2, one micro-batch": Layout(microbatch=4, data=2, pipeline=2),
    "DP2 x TP2 + SP, one micro-batch, recompute": Layout(
        microbatch=4, data=2, tensor=2, sequence_parallel=True, recompute="full"
    ),
}


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return run_ranks(1, first_step_of_torch, 0.0)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradient_equal_the_full_batch(reference: dict[str, Any], layout: str) -> None:
    for result in run_ranks(LAYOUTS[layout].processes, first_step, LAYOUTS[layout], 0.0):
        assert result["evaluated"] == pytest.approx(reference["evaluated"], rel=1e-5)
        assert result["losses"] == pytest.approx(reference["losses"], rel=1e-5)
        assert result["norm"] == pytest.approx(reference["norm"], rel=1e-5)
        assert result["counts"]["pairs"] == 5


def test_overlapped_messages_change_no_result(reference: dict[str, Any]) -> None:
    layout, communication = LAYOUTS["DP2 x PP2 interleaved"], CommunicationConfig(overlap_p2p_comm=True)
    for result in run_ranks(layout.processes, first_step, layout, 0.0, communication):
        assert result["evaluated"] == pytest.approx(reference["evaluated"], rel=1e-5)
        assert result["losses"] == pytest.approx(reference["losses"], rel=1e-5)
        assert result["norm"] == pytest.approx(reference["norm"], rel=1e-5)


def num_features_passes(layout: Layout) -> int:
    """Return how often this rank computes features in a step and an evaluation before it."""
    original, calls = PairsHead.features, []

    def features(head: PairsHead, *streams: Tensor, batch: dict[str, Tensor]) -> Tensor:
        calls.append(1)
        return original(head, *streams, batch=batch)

    with patch.object(PairsHead, "features", features):
        first_step(layout, 0.0)
    return len(calls)


def test_one_micro_batch_per_rank_runs_one_forward_pass() -> None:
    assert {*run_ranks(4, num_features_passes, Layout(microbatch=2, data=4))} == {2}
    assert {*run_ranks(2, num_features_passes, Layout(microbatch=2, data=2))} == {8}


def comparison_sizes(layout: Layout) -> list[tuple[int, int]]:
    """Return the numbers of own and of all samples in each comparison of a step on this rank."""
    original, sizes = PairsHead.compare, []

    def compare(head: PairsHead, features: Tensor, answers: Tensor, own: slice) -> Tensor:
        sizes.append((len(range(*own.indices(len(features)))), len(features)))
        return original(head, features, answers, own)

    with patch.object(PairsHead, "compare", compare):
        first_step(layout, 0.0)
    return sizes


def test_data_rank_compares_its_samples_with_all() -> None:
    for sizes in run_ranks(4, comparison_sizes, Layout(microbatch=1, data=4)):
        assert {*sizes} == {(ROWS // 4, ROWS)}


def error_of_spoiled(name: str, spoil: Callable[[Tensor], Tensor]) -> str:
    """Return the error if a function of the head returns a spoiled result."""
    original = getattr(PairsHead, name)
    with (
        patch.object(PairsHead, name, lambda *arguments, **batch: spoil(original(*arguments, **batch))),
        pytest.raises(UserError) as error,
    ):
        first_step(Layout(microbatch=4), 0.0)
    return str(error.value)


def to_bfloat16(features: Tensor) -> Tensor:
    return features.bfloat16()


def one_row(features: Tensor) -> Tensor:
    return features[:1]


@pytest.mark.parametrize(
    ("name", "spoil", "expected"),
    [
        ("features", to_bfloat16, "returned [4, 17] in bfloat16 for 4 samples. It must return [4, F] in float32"),
        ("features", one_row, "returned [1, 17] in float32 for 4 samples"),
        ("compare", one_row, "returned [1] for 8 of 8 samples. It must return one loss for each of the samples `own`"),
    ],
)
def test_invalid_head_output_is_rejected(name: str, spoil: Callable[[Tensor], Tensor], expected: str) -> None:
    assert f"PairsHead.{name} {expected}" in run_ranks(1, error_of_spoiled, name, spoil)[0]


@pytest.mark.parametrize("recompute", ["none", "attention", "full"])
def test_both_passes_have_the_same_dropout(recompute: str) -> None:
    layout = Layout(microbatch=8, recompute=recompute)
    actual, expected = run_ranks(1, first_step, layout, 0.3)[0], run_ranks(1, first_step_of_torch, 0.3)[0]
    assert actual["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert actual["norm"] == pytest.approx(expected["norm"], rel=1e-5)
    assert actual["losses"]["pairs"] != pytest.approx(actual["evaluated"]["pairs"], rel=1e-4)


def both_passes(layout: Layout) -> tuple[Tensor, Tensor] | None:
    """Return the features of both passes of a step with dropout, on ranks with the head."""
    engine = filled_engine(tiny(FAMILY, dropout=0.3), layout, ADAM, losses=losses_of(FAMILY), seed=7)
    original, features = PairsHead.features, []
    with patch.object(
        PairsHead, "features", lambda *streams, **batch: features.append(original(*streams, **batch)) or features[-1]
    ):
        local = micro_batches(batch(FAMILY, 0), layout, engine.ranks.data)
        engine.train_step(local if engine.ranks.tensor == 0 else None, step=0, lr=0.0)
    if not features:
        return None
    half = len(features) // 2
    return torch.cat(features[:half]).detach(), torch.cat(features[half:]).detach()


@pytest.mark.parametrize("layout", ["DP2 x PP2 interleaved", "TP2 + SP, recompute"])
def test_both_passes_have_the_same_dropout_in_every_layout(layout: str) -> None:
    feature_pairs = [pair for pair in run_ranks(LAYOUTS[layout].processes, both_passes, LAYOUTS[layout]) if pair]
    assert len(feature_pairs) == 2
    for first, second in feature_pairs:
        assert len(first) == ROWS // LAYOUTS[layout].data
        assert torch.equal(first, second)


def count_feature_passes(layout: Layout, losses: dict[str, float]) -> tuple[int, dict[str, float]]:
    """Return the number of feature computations in an evaluation, and its losses."""
    engine, original, calls = filled_engine(tiny(FAMILY), layout, ADAM, losses=losses, seed=7), PairsHead.features, []
    with patch.object(PairsHead, "features", lambda *streams, **batch: calls.append(1) or original(*streams, **batch)):
        evaluation = engine.evaluate(micro_batches(batch(FAMILY, 0), layout, engine.ranks.data)).losses
    return len(calls), evaluation


def test_contrastive_evaluation_is_one_pass(reference: dict[str, Any]) -> None:
    for calls, losses in run_ranks(2, count_feature_passes, Layout(microbatch=4, pipeline=2), {"pairs": 1.0}):
        assert calls <= 2
        assert losses == {"pairs": pytest.approx(reference["evaluated"]["pairs"], rel=1e-5)}
    [(calls, _)] = run_ranks(1, count_feature_passes, Layout(microbatch=4), losses_of(FAMILY))
    assert calls == 4


def test_single_micro_batch_is_one_pass(reference: dict[str, Any]) -> None:
    [(calls, losses)] = run_ranks(1, count_feature_passes, Layout(microbatch=8), losses_of(FAMILY))
    assert calls == 1
    assert losses == {name: pytest.approx(loss, rel=1e-5) for name, loss in reference["evaluated"].items()}


def cudnn_permissions(layout: Layout) -> list[bool]:
    """Return whether cuDNN's attention kernel is enabled at each call, and after the step."""
    engine, cudnn_enabled = filled_engine(tiny(FAMILY), layout, ADAM, losses=losses_of(FAMILY), seed=7), []
    for module in engine.model.stages[0].modules():
        if isinstance(module, Attend):
            module.register_forward_pre_hook(lambda *_: cudnn_enabled.append(torch.backends.cuda.cudnn_sdp_enabled()))
    engine.train_step(micro_batches(batch(FAMILY, 0), layout, 0), step=0, lr=0.0)
    return [*cudnn_enabled, torch.backends.cuda.cudnn_sdp_enabled()]


def test_both_passes_use_the_same_attention_kernel() -> None:
    """cuDNN's kernel may be unavailable with gradients, in the second pass; another kernel has another dropout mask."""
    *during_step, after_step = run_ranks(1, cudnn_permissions, Layout(microbatch=4))[0]
    assert len(during_step) == 2 * 2 * 4
    assert not any(during_step)
    assert after_step


def temperatures(layout: Layout) -> list[float]:
    """Return the scale of cosines of a bfloat16 model: initially, and after each of two small steps."""
    engine = filled_engine(tiny("clip"), layout, ADAM, losses=losses_of("clip"), seed=7, precision="bf16")
    head, scales = engine.model.stages[-1].model.head["image-text"], []
    for step in range(3):
        scales.append(head.scale.exp().item())
        engine.train_step(micro_batches(batch("clip", step), layout, engine.ranks.data), step=step, lr=1e-4)
    assert head.image.weight.dtype == torch.bfloat16
    return scales


@pytest.mark.parametrize(
    "layout", [Layout(microbatch=4), Layout(microbatch=4, data=2, distributed_optimizer=True)], ids=["one", "DP2"]
)
def test_temperature_is_trained_in_float32(layout: Layout) -> None:
    for first, *later_scales in run_ranks(layout.processes, temperatures, layout):
        assert first == pytest.approx(1 / 0.07, rel=1e-6)
        for before, after in pairwise([first, *later_scales]):
            assert 0 < abs(after / before - 1) < 1e-3


GRADIENT_LAYOUTS = {
    "one process, two passes": Layout(microbatch=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP4": Layout(microbatch=2, data=4),
    "TP2 x DP2": Layout(microbatch=2, tensor=2, data=2),
    "PP2": Layout(microbatch=2, pipeline=2),
}
TOLERANCE = 1e-12
"""Tolerance of the loss, and of a gradient relative to its norm (at least 1), since it is read from rounded weights. In
float32 the order of a sum alone makes 2e-6 (TP2 x DP2)."""


def in_double(family: str, layout: Layout, folder: str, optimizer: OptimizerConfig) -> dict[str, Any]:
    """Train a step with float64 instead of float32 in the engine, megatron-core and the losses."""
    from megaptm.parallel.optimizers import build

    names = {torch: ("float32", "float"), torch.Tensor: ("float",)}
    # Defaults of the class were evaluated at import and remain float32.
    options = dict.fromkeys(("main_grads", "main_params", "exp_avg", "exp_avg_sq"), torch.float64)
    config = partial(build.MegatronOptimizerConfig, **{f"{name}_dtype": kind for name, kind in options.items()})
    with ExitStack() as patched:
        patched.enter_context(patch.object(build, "MegatronOptimizerConfig", config))
        patched.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        for owner, several in names.items():
            wide = torch.float64 if owner is torch else torch.Tensor.double
            for name in several:
                patched.enter_context(patch.object(owner, name, wide))
        return train_and_save(family, layout, folder, 0, 1, "fp32", 0.0, 0, optimizer)


def sgd_gradients(layout: Layout, folder: Path) -> tuple[dict[str, Tensor], float]:
    """Return all gradients of CLIP, read from the weights after a step of SGD with rate 1, and the loss."""
    plain = OptimizerConfig(name="sgd", lr=1.0)
    [first, *_] = run_ranks(layout.processes, in_double, "clip", layout, str(folder), plain)
    reader, spec, gradients = CheckpointStore(folder).load(1).reader, tiny("clip"), {}
    for stored in reader.names():
        kind, _, name = stored.partition("/")
        if kind == "weight":
            weight = reader.read(stored).double()
            gradients[name] = initial_value(spec, name, tuple(weight.shape), 7).double() - weight
    return gradients, first["losses"][0]


@pytest.fixture(scope="module")
def single_process_gradients(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], float]:
    return sgd_gradients(Layout(microbatch=8), tmp_path_factory.mktemp("alone"))


@pytest.mark.drill
@pytest.mark.parametrize("name", GRADIENT_LAYOUTS)
def test_clip_gradients_equal_one_process(
    single_process_gradients: tuple[dict[str, Tensor], float], tmp_path: Path, name: str
) -> None:
    gradients, loss = sgd_gradients(GRADIENT_LAYOUTS[name], tmp_path)
    alone, expected = single_process_gradients
    assert loss == pytest.approx(expected, rel=TOLERANCE)
    assert gradients.keys() == alone.keys()
    assert "head.image-text.scale" in gradients
    for parameter, gradient in alone.items():
        assert gradient.norm() > 0
        assert (gradients[parameter] - gradient).norm() <= TOLERANCE * max(1.0, gradient.norm().item()), parameter
