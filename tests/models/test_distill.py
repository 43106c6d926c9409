"""Losses of distillation: equal to the released code and to closed forms, and zero if student and teacher are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from megaptm.distillation.losses import DistillationLosses, add_distillation_losses
from megaptm.distillation.soft_targets import LargestLogits, SoftTargetLoss, soft_class_loss
from megaptm.distillation.spec import Distillation
from megaptm.families.bert import BERT
from megaptm.families.bert.huggingface import encoder_rules
from megaptm.hub.tensor_rules import import_weights
from megaptm.losses.token import Projected
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import ModelSpec, Size, change
from tests.models.students import distillation_of, distilled_losses
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import scatter_labels

GOLDEN = Path(__file__).parents[1] / "golden"


def soft_target_loss(
    golden: Mapping[str, Tensor], is_target: Tensor, kind: str, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the sum over positions and its gradient with respect to the logits, which an identity matrix projects."""
    student, teacher = (golden[name].flatten(0, -2) for name in ("s_logits", "t_logits"))
    student = student.clone().requires_grad_()
    vocabulary = student.shape[1]
    loss = SoftTargetLoss(vocabulary, temperature=temperature, soft=kind)
    table = torch.eye(vocabulary, requires_grad=True)
    total = loss(Projected(student, table, None), Projected(teacher, torch.eye(vocabulary), None), is_target.flatten())
    return total, *torch.autograd.grad(total, student)  # type: ignore[return-value]


@pytest.mark.parametrize("positions", ["all_tokens", "masked_only"])
def test_kl_divergence_equals_distilbert(positions: str) -> None:
    golden = load_file(GOLDEN / "distilbert_losses.safetensors")
    is_target = golden["mask"] > 0 if positions == "all_tokens" else golden["labels"] > -1
    total, _ = soft_target_loss(golden, is_target, "kl", 2.0)
    assert (total / is_target.sum()).item() == pytest.approx(golden[f"ce.{positions}"].item(), abs=1e-6)


def test_triple_loss_and_gradients_equal_distilbert() -> None:
    """The loss is 5 x divergence + 2 x masked LM + 1 x cosine, with DistilBERT's weights."""
    golden = load_file(GOLDEN / "distilbert_losses.safetensors")
    real = golden["mask"] > 0
    divergence, gradient = soft_target_loss(golden, real, "kl", 2.0)
    logits = golden["s_logits"].clone().requires_grad_()
    mlm = F.cross_entropy(logits.flatten(0, 1), golden["labels"].flatten().long())
    (d_mlm,) = torch.autograd.grad(mlm, logits)
    total = 5 * gradient.view_as(d_mlm) / real.sum() + 2 * d_mlm
    assert (total - golden["grad_s_logits"]).abs().max() <= 1e-6
    assert mlm.item() == pytest.approx(golden["mlm"].item(), abs=1e-6)
    cosine = torch.where(real, 1 - F.cosine_similarity(golden["s_hidden"], golden["t_hidden"], dim=-1), 0.0)
    assert (cosine.sum() / real.sum()).item() == pytest.approx(golden["cos"].item(), abs=1e-6)
    expected = 5 * divergence / real.sum() + 2 * mlm + cosine.sum() / real.sum()
    assert expected.item() == pytest.approx(golden["total"].item(), rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_soft_cross_entropy_equals_tinybert(temperature: float) -> None:
    golden = load_file(GOLDEN / "tinybert.safetensors")
    logits = {"s_logits": golden["student_logits"], "t_logits": golden["teacher_logits"]}
    batch = len(golden["student_logits"])
    total, _ = soft_target_loss(logits, torch.ones(batch, dtype=torch.bool), "cross-entropy", temperature)
    expected = golden[f"prediction_loss_t{temperature:g}"].item()
    assert (total / batch).item() == pytest.approx(expected, abs=1e-6)
    classes = soft_class_loss(*logits.values(), temperature=temperature, soft="cross-entropy")
    assert classes.mean().item() == pytest.approx(expected, abs=1e-6)


def golden_encoder(name: str, width: int, layers: int, ffn: int) -> tuple[ModelSpec, dict[str, Tensor]]:
    """Return spec and weights of a golden encoder under our names. Its MLM head is not used."""
    golden = load_file(GOLDEN / "tinybert.safetensors")
    golden_weights = {
        key.removeprefix(f"{name}."): value for key, value in golden.items() if key.startswith(f"{name}.bert.")
    }
    size = Size(layers=layers, width=width, heads=3, ffn=ffn)
    spec = ModelSpec(family=change(BERT, heads=("mlm",)), size=size, vocabulary=41, context=12, dropout=0.0)
    encoder_weights = {name: tensor for name, tensor in golden_weights.items() if "pooler" not in name}
    return spec, import_weights(encoder_rules("bert"), spec, encoder_weights)[0]


def model_with(spec: ModelSpec, weights: Mapping[str, Tensor], distillation: Distillation | None = None) -> Model:
    model = Model(spec)
    if distillation is not None:
        add_distillation_losses(model, distillation)
    init_weights(model, seed=7)
    model.load_state_dict(weights, strict=False)
    return model.eval()


def test_hidden_states_and_scores_equal_tinybert() -> None:
    """Teacher layers 3 and 6 of 6, one shared projection, attention scores before the softmax, 0 where masked."""
    golden = load_file(GOLDEN / "tinybert.safetensors")
    (teacher_spec, teacher_weights), (spec, student_weights) = (
        golden_encoder("teacher", 24, 6, 32),
        golden_encoder("student", 12, 2, 20),
    )
    distillation = Distillation(
        teacher=teacher_spec,
        weights={"embeddings": 1.0, "hidden": 1.0, "scores": 1.0},
        layers={"encoder": (2, 5)},
        projection="shared",
    )
    projections = {f"distill.shared.{leaf}": golden[f"student.fit_dense.{leaf}"] for leaf in ("weight", "bias")}
    student = model_with(spec, student_weights | projections, distillation)
    teacher = model_with(teacher_spec, teacher_weights)
    teacher.keep_layers(distillation.compared_teacher_layers())
    # Only the sample without padding: the released code counts padding, ours does not.
    batch = {"tokens": golden["ids"][:1].long(), "segments": golden["types"][:1].long()}
    assert golden["mask"][0].all()
    losses = distillation_of(student).losses(student, student.states(batch), teacher, batch)
    student_states, teacher_states = golden["student_hidden_projected"][:, 0], golden["teacher_hidden_picked"][:, 0]
    mse = (student_states - teacher_states).square().mean((1, 2))
    scores = sum(
        F.mse_loss(golden[f"student_scores.{layer}"][0], golden[f"teacher_scores_picked.{layer}"][0])
        for layer in range(2)
    )
    expected_losses = {"embeddings": mse[0], "hidden": mse[1:].sum(), "scores": scores}
    for hook, value in expected_losses.items():
        loss, count = losses[f"distill-{hook}"]
        assert count == 9
        assert (loss / count).item() == pytest.approx(value.item(), rel=1e-6)
    # The second layer only.
    distillation_of(student).distillation = replace(distillation, layer_weights=(0.0, 2.0))
    loss, _ = distillation_of(student).losses(student, student.states(batch), teacher, batch)["distill-hidden"]
    assert (loss / 9).item() == pytest.approx(2 * mse[2].item(), rel=1e-6)


def test_released_means_count_padding_as_zero() -> None:
    """The released losses are means over padding too. Their terms equal ours."""
    golden = load_file(GOLDEN / "tinybert.safetensors")
    for layer in range(2):
        pair = (golden[f"student_scores.{layer}"], golden[f"teacher_scores_picked.{layer}"])
        student, teacher = (scores.masked_fill(scores <= -100.0, 0.0) for scores in pair)
        expected = golden["attention_losses"][layer].item()
        assert F.mse_loss(student, teacher).item() == pytest.approx(expected, rel=1e-6)
    assert golden["hidden_losses"].tolist() == pytest.approx(
        (golden["student_hidden_projected"] - golden["teacher_hidden_picked"]).square().mean((1, 2, 3)).tolist(),
        rel=1e-6,
    )


ALL_LOSSES = {"logits": 1.0, "cosine": 1.0, "embeddings": 1.0, "hidden": 1.0, "scores": 1.0}


@pytest.mark.parametrize("family", ["bert", "gpt2", "palm", "t5", "bart"])
def test_losses_are_zero_if_student_equals_teacher(family: str) -> None:
    spec = tiny_spec(family)
    layers = {stack: tuple(range(spec.size_of(stack).layers)) for stack in spec.family.stacks}
    class_loss = {"classes": 1.0} if family == "bert" else {}
    distillation = Distillation(
        teacher=spec, weights=ALL_LOSSES | class_loss, layers=layers, temperature=2.0, questions=("next-sentence",)
    )
    student, teacher = model_with(spec, {}, distillation), model_with(spec, {})
    teacher.keep_layers(distillation.compared_teacher_layers())
    batch = tiny_batch(family)
    losses = distilled_losses(student, teacher, batch)
    values = {name: (loss / count).item() for name, (loss, count) in losses.items() if name.startswith("distill-")}
    assert {*values} == {f"distill-{hook}" for hook in (*ALL_LOSSES, *class_loss)}
    assert values == pytest.approx(dict.fromkeys(values, 0.0), abs=1e-6)
    # With another teacher all losses are positive.
    init_weights(teacher, seed=8)
    losses = distilled_losses(student, teacher, batch)
    assert min(losses[name][0].item() for name in values) > 5e-5


@pytest.mark.parametrize("drops", [True, False], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("soft", ["kl", "cross-entropy"])
def test_soft_target_gradients_equal_plain_torch(soft: str, drops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of hidden states, table and bias are compared, with a padded vocabulary, in several chunks."""
    monkeypatch.setattr("megaptm.distillation.soft_targets.drops_unlabeled", lambda hidden: drops)
    monkeypatch.setattr("megaptm.distillation.soft_targets.num_rows_projected", lambda *_: 2)
    torch.manual_seed(0)
    hidden, table, bias = (torch.randn(*shape, requires_grad=True) for shape in ((5, 4), (8, 4), (8,)))
    teacher, is_target = (
        Projected(torch.randn(5, 3), torch.randn(8, 3), torch.randn(8)),
        torch.tensor([1, 0, 1, 1, 0]) > 0,
    )
    loss = SoftTargetLoss(6, temperature=3.0, soft=soft)
    result = loss(Projected(hidden, table, bias), teacher, is_target)
    gradients = torch.autograd.grad(result, (hidden, table, bias))
    pair = (Projected(hidden, table, bias), teacher)
    student_logits, teacher_logits = (F.linear(*projected)[is_target, :6] / 3.0 for projected in pair)
    if soft == "kl":
        plain = F.kl_div(student_logits.log_softmax(-1), teacher_logits.softmax(-1), reduction="sum") * 9
    else:
        plain = -(teacher_logits.softmax(-1) * student_logits.log_softmax(-1)).sum() / 6
    assert result.item() == pytest.approx(plain.item(), rel=1e-5)
    for gradient, expected in zip(gradients, torch.autograd.grad(plain, (hidden, table, bias)), strict=True):
        assert (gradient - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("soft", ["kl", "cross-entropy"])
@pytest.mark.parametrize("top", [3, 6])
def test_loss_on_largest_logits_equals_plain_torch(soft: str, top: int) -> None:
    """The teacher's softmax covers its largest logits, the student's all; six of eight table rows are words."""
    torch.manual_seed(0)
    hidden, table = torch.randn(5, 4, requires_grad=True), torch.randn(8, 4)
    teacher_logits, is_target = torch.randn(5, 6), torch.tensor([1, 0, 1, 1, 0]) > 0
    best = teacher_logits.topk(top)
    log_q = (F.linear(hidden, table)[is_target, :6] / 3.0).log_softmax(-1).gather(1, best.indices[is_target])
    p = (best.values[is_target] / 3.0).softmax(-1)
    plain = 9 * (p * (p.log() - log_q)).sum() if soft == "kl" else -(p * log_q).sum() / 6
    (expected,) = torch.autograd.grad(plain, hidden)
    largest = LargestLogits(best.indices, best.values - best.values[:, :1], first=0, words=8)
    result = SoftTargetLoss(6, temperature=3.0, soft=soft)(Projected(hidden, table, None), largest, is_target)
    assert result.item() == pytest.approx(plain.item(), rel=1e-6)
    assert (torch.autograd.grad(result, hidden)[0] - expected).abs().max() <= 1e-6
    # With a vocabulary divided over ranks, each rank has its columns.
    halves = [largest._replace(first=first, words=4).logits() for first in (0, 4)]
    assert torch.equal(torch.cat(halves, 1), largest.logits())


@pytest.mark.parametrize("positions", ["all", "target"])
def test_logits_are_compared_at_configured_positions(positions: str) -> None:
    spec, batch = tiny_spec("bert"), tiny_batch("bert")
    distillation = Distillation(teacher=spec, weights={"logits": 1.0}, layers={}, positions=positions)
    count = DistillationLosses(spec, distillation).count_positions("distill-logits", batch).item()
    assert count == ((batch["document_ids"] > 0) if positions == "all" else (batch["labels"] != -100)).sum().item()


def test_projections_are_shared_or_by_kind() -> None:
    spec = tiny_spec("bert")
    wide = replace(spec, size=change(spec.size, width=48))
    distillation = Distillation(teacher=wide, weights={"embeddings": 1.0, "hidden": 1.0}, layers={"encoder": (0, 1)})
    for projection, expected in (("shared", {"shared"}), ("by-kind", {"embeddings", "hidden"}), ("none", set())):
        built = DistillationLosses(spec, replace(distillation, projection=projection))
        assert {name.partition(".")[0] for name, _ in built.named_parameters()} == expected


def test_model_gradients_equal_the_triple_loss() -> None:
    """DistilBERT: 5 T^2 KL(teacher, student) + 2 MLM + 1 - cosine of the last states, and all gradients."""
    spec, teacher_spec = tiny_spec("distilbert"), tiny_spec("bert")
    distillation = Distillation(
        teacher=teacher_spec, weights={"logits": 5.0, "cosine": 1.0}, layers={}, temperature=2.0, objective=2.0
    )
    student, teacher = model_with(spec, {}, distillation), model_with(teacher_spec, {}).requires_grad_(False)
    batch = tiny_batch("bert")
    real = batch["document_ids"] > 0
    losses = distilled_losses(student, teacher, batch)
    weights = distillation.with_loss_weights({"mlm": 1.0})
    assert weights == {"mlm": 2.0, "distill-logits": 5.0, "distill-cosine": 1.0}
    total = sum(weight * losses[name][0] / losses[name][1] for name, weight in weights.items())

    student_logits, teacher_logits = (model.logits(batch)["mlm"][real] for model in (student, teacher))
    p, q = (teacher_logits / 2).softmax(-1), (student_logits / 2).softmax(-1)
    divergence = 4 * (p * (p / q).log()).sum(-1).mean()
    labels = scatter_labels(batch)[real]
    probabilities = student_logits.softmax(-1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
    masked = -probabilities.log()[labels >= 0].mean()
    x, y = student.encode(batch)[real], teacher.encode(batch)[real]
    cosine = ((x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))).mean()
    closed_form = 5 * divergence + 2 * masked + 1 - cosine
    assert total.item() == pytest.approx(closed_form.item(), rel=1e-5)

    parameters = dict(student.named_parameters())
    gradients, expected = (torch.autograd.grad(value, [*parameters.values()]) for value in (total, closed_form))
    assert all(gradient.norm() > 0 for gradient in expected)
    for name, gradient, other in zip(parameters, gradients, expected, strict=True):
        assert (gradient - other).abs().max() <= 1e-5, name
