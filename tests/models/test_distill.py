"""What a student is asked of its teacher: golden values of the released code, closed forms, and nothing where both are
one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from megaptm.families.bert import BERT
from megaptm.families.bert.huggingface import encoder
from megaptm.hub.tensor_rules import import_weights
from megaptm.losses.soft_targets import LargestLogits, Projected, SoftTargetLoss, soft_class_loss
from megaptm.models import Model, fill
from megaptm.models.distill import DistillationLosses
from megaptm.spec import Distillation, ModelSpec, Size, change
from tests.models.tiny import distilled_losses, tiny_batch, tiny_spec
from tests.parity.reference import scatter_labels

GOLDEN = Path(__file__).parents[1] / "golden"


def soft_targets(given: Mapping[str, Tensor], asked: Tensor, soft: str, temperature: float) -> tuple[Tensor, Tensor]:
    """The sum over rows, and its gradient for the logits: they are projected by one times one."""
    student, teacher = (given[name].flatten(0, -2) for name in ("s_logits", "t_logits"))
    student = student.clone().requires_grad_()
    words = student.shape[1]
    loss = SoftTargetLoss(words, temperature=temperature, soft=soft)
    table = torch.eye(words, requires_grad=True)
    total = loss(Projected(student, table, None), Projected(teacher, torch.eye(words), None), asked.flatten())
    return total, *torch.autograd.grad(total, student)  # type: ignore[return-value]


@pytest.mark.parametrize("places", ["all_tokens", "masked_only"])
def test_divergence_is_that_of_the_released_distiller(places: str) -> None:
    given = load_file(GOLDEN / "distilbert_losses.safetensors")
    asked = given["mask"] > 0 if places == "all_tokens" else given["labels"] > -1
    total, _ = soft_targets(given, asked, "kl", 2.0)
    assert (total / asked.sum()).item() == pytest.approx(given[f"ce.{places}"].item(), abs=1e-6)


def test_the_triple_loss_and_its_gradients_are_the_closed_form() -> None:
    """5 x divergence + 2 x masked words + 1 x cosine, as DistilBERT weighs them."""
    given = load_file(GOLDEN / "distilbert_losses.safetensors")
    real = given["mask"] > 0
    divergence, gradient = soft_targets(given, real, "kl", 2.0)
    logits = given["s_logits"].clone().requires_grad_()
    mlm = F.cross_entropy(logits.flatten(0, 1), given["labels"].flatten().long())
    (d_mlm,) = torch.autograd.grad(mlm, logits)
    total = 5 * gradient.view_as(d_mlm) / real.sum() + 2 * d_mlm
    assert (total - given["grad_s_logits"]).abs().max() <= 1e-6
    assert mlm.item() == pytest.approx(given["mlm"].item(), abs=1e-6)
    cosine = torch.where(real, 1 - F.cosine_similarity(given["s_hidden"], given["t_hidden"], dim=-1), 0.0)
    assert (cosine.sum() / real.sum()).item() == pytest.approx(given["cos"].item(), abs=1e-6)
    said = 5 * divergence / real.sum() + 2 * mlm + cosine.sum() / real.sum()
    assert said.item() == pytest.approx(given["total"].item(), rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_soft_cross_entropy_is_that_of_tinyberts_released_code(temperature: float) -> None:
    given = load_file(GOLDEN / "tinybert.safetensors")
    logits = {"s_logits": given["student_logits"], "t_logits": given["teacher_logits"]}
    rows = len(given["student_logits"])
    total, _ = soft_targets(logits, torch.ones(rows, dtype=torch.bool), "cross-entropy", temperature)
    wanted = given[f"prediction_loss_t{temperature:g}"].item()
    assert (total / rows).item() == pytest.approx(wanted, abs=1e-6)
    classes = soft_class_loss(*logits.values(), temperature=temperature, soft="cross-entropy")
    assert classes.mean().item() == pytest.approx(wanted, abs=1e-6)


def released(name: str, width: int, layers: int, ffn: int) -> tuple[ModelSpec, dict[str, Tensor]]:
    """The encoder of the golden values, by our names; with a head that nobody asks."""
    given = load_file(GOLDEN / "tinybert.safetensors")
    theirs = {key.removeprefix(f"{name}."): value for key, value in given.items() if key.startswith(f"{name}.bert.")}
    size = Size(layers=layers, width=width, heads=3, ffn=ffn)
    spec = ModelSpec(family=change(BERT, heads=("mlm",)), size=size, vocabulary=41, context=12, dropout=0.0)
    kept = {name: tensor for name, tensor in theirs.items() if "pooler" not in name}
    return spec, import_weights(encoder("bert"), spec, kept)[0]


def model_with(spec: ModelSpec, weights: Mapping[str, Tensor], distillation: Distillation | None = None) -> Model:
    model = Model(spec, distillation=distillation)
    fill(model, seed=7)
    model.load_state_dict(weights, strict=False)
    return model.eval()


def test_states_scores_and_the_gradient_of_the_map_are_tinyberts() -> None:
    """Layers 3 and 6 of six; one map for embeddings and all layers; scores before the softmax, zero where hidden."""
    given = load_file(GOLDEN / "tinybert.safetensors")
    (teacher_spec, theirs), (spec, ours) = released("teacher", 24, 6, 32), released("student", 12, 2, 20)
    wanted = Distillation(
        teacher=teacher_spec,
        weights={"embeddings": 1.0, "hidden": 1.0, "scores": 1.0},
        layers={"encoder": (2, 5)},
        projection="shared",
    )
    maps = {f"distill.shared.{leaf}": given[f"student.fit_dense.{leaf}"] for leaf in ("weight", "bias")}
    student, teacher = model_with(spec, ours | maps, wanted), model_with(teacher_spec, theirs)
    teacher.keep_layers(wanted.read_of_teacher())
    # The row without padding: of what padding says nobody is asked here, and theirs counts it.
    batch = {"tokens": given["ids"][:1].long(), "segments": given["types"][:1].long()}
    assert given["mask"][0].all()
    losses = student.distill.losses(student, student.states(batch), teacher, batch)  # type: ignore[union-attr]
    said, told = given["student_hidden_projected"][:, 0], given["teacher_hidden_picked"][:, 0]
    apart = (said - told).square().mean((1, 2))
    scores = sum(
        F.mse_loss(given[f"student_scores.{layer}"][0], given[f"teacher_scores_picked.{layer}"][0])
        for layer in range(2)
    )
    wanted_losses = {"embeddings": apart[0], "hidden": apart[1:].sum(), "scores": scores}
    for hook, value in wanted_losses.items():
        loss, count = losses[f"distill-{hook}"]
        assert count == 9
        assert (loss / count).item() == pytest.approx(value.item(), rel=1e-6)
    # The second layer alone.
    student.distill.wanted = replace(wanted, layer_weights=(0.0, 2.0))  # type: ignore[union-attr]
    loss, _ = student.distill.losses(student, student.states(batch), teacher, batch)["distill-hidden"]  # type: ignore[union-attr]
    assert (loss / 9).item() == pytest.approx(2 * apart[2].item(), rel=1e-6)


def test_padded_scores_count_as_zero_in_the_released_means() -> None:
    """Its losses are means over padding too; the terms are ours."""
    given = load_file(GOLDEN / "tinybert.safetensors")
    for layer in range(2):
        pair = (given[f"student_scores.{layer}"], given[f"teacher_scores_picked.{layer}"])
        ours, theirs = (one.masked_fill(one <= -100.0, 0.0) for one in pair)
        assert F.mse_loss(ours, theirs).item() == pytest.approx(given["attention_losses"][layer].item(), rel=1e-6)
    assert given["hidden_losses"].tolist() == pytest.approx(
        (given["student_hidden_projected"] - given["teacher_hidden_picked"]).square().mean((1, 2, 3)).tolist(), rel=1e-6
    )


ALL = {"logits": 1.0, "cosine": 1.0, "embeddings": 1.0, "hidden": 1.0, "scores": 1.0}


@pytest.mark.parametrize("family", ["bert", "gpt2", "palm", "t5", "bart"])
def test_nothing_is_lost_where_the_student_is_the_teacher(family: str) -> None:
    spec = tiny_spec(family)
    layers = {stack: tuple(range(spec.size_of(stack).layers)) for stack in spec.family.stacks}
    asked = {"classes": 1.0} if family == "bert" else {}
    wanted = Distillation(
        teacher=spec, weights=ALL | asked, layers=layers, temperature=2.0, questions=("next-sentence",)
    )
    student, teacher = model_with(spec, {}, wanted), model_with(spec, {})
    teacher.keep_layers(wanted.read_of_teacher())
    batch = tiny_batch(family)
    losses = distilled_losses(student, teacher, batch)
    found = {name: (loss / count).item() for name, (loss, count) in losses.items() if name.startswith("distill-")}
    assert {*found} == {f"distill-{hook}" for hook in (*ALL, *asked)}
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-6)
    # Another seed is another teacher, and nothing is as it was.
    fill(teacher, seed=8)
    losses = distilled_losses(student, teacher, batch)
    assert min(losses[name][0].item() for name in found) > 5e-5


@pytest.mark.parametrize("drops", [True, False], ids=["on a CPU", "on an accelerator"])
@pytest.mark.parametrize("soft", ["kl", "cross-entropy"])
def test_gradients_of_soft_targets_are_those_of_plain_torch(
    soft: str, drops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of hidden states, table and bias, with rows of a table that nobody can say, in several chunks."""
    monkeypatch.setattr("megaptm.losses.soft_targets.drops_unlabeled", lambda hidden: drops)
    monkeypatch.setattr("megaptm.losses.soft_targets.ROWS_PROJECTED", 2)
    torch.manual_seed(0)
    hidden, table, bias = (torch.randn(*shape, requires_grad=True) for shape in ((5, 4), (8, 4), (8,)))
    taught, asked = Projected(torch.randn(5, 3), torch.randn(8, 3), torch.randn(8)), torch.tensor([1, 0, 1, 1, 0]) > 0
    loss = SoftTargetLoss(6, temperature=3.0, soft=soft)
    found = loss(Projected(hidden, table, bias), taught, asked)
    ours = torch.autograd.grad(found, (hidden, table, bias))
    said, told = (F.linear(*one)[asked, :6] / 3.0 for one in (Projected(hidden, table, bias), taught))
    if soft == "kl":
        plain = F.kl_div(said.log_softmax(-1), told.softmax(-1), reduction="sum") * 9
    else:
        plain = -(told.softmax(-1) * said.log_softmax(-1)).sum() / 6
    assert found.item() == pytest.approx(plain.item(), rel=1e-5)
    for mine, theirs in zip(ours, torch.autograd.grad(plain, (hidden, table, bias)), strict=True):
        assert (mine - theirs).abs().max() <= 1e-5


@pytest.mark.parametrize("soft", ["kl", "cross-entropy"])
@pytest.mark.parametrize("top", [3, 6])
def test_of_the_largest_logits_what_they_say_is_all_that_is_said(soft: str, top: int) -> None:
    """The softmax of the teacher over these words alone, and the student's over all; six of eight rows are words."""
    torch.manual_seed(0)
    hidden, table = torch.randn(5, 4, requires_grad=True), torch.randn(8, 4)
    told, asked = torch.randn(5, 6), torch.tensor([1, 0, 1, 1, 0]) > 0
    best = told.topk(top)
    said = (F.linear(hidden, table)[asked, :6] / 3.0).log_softmax(-1).gather(1, best.indices[asked])
    p = (best.values[asked] / 3.0).softmax(-1)
    plain = 9 * (p * (p.log() - said)).sum() if soft == "kl" else -(p * said).sum() / 6
    (wanted,) = torch.autograd.grad(plain, hidden)
    kept = LargestLogits(best.indices, best.values - best.values[:, :1], first=0, words=8)
    found = SoftTargetLoss(6, temperature=3.0, soft=soft)(Projected(hidden, table, None), kept, asked)
    assert found.item() == pytest.approx(plain.item(), rel=1e-6)
    assert (torch.autograd.grad(found, hidden)[0] - wanted).abs().max() <= 1e-6
    # Where words are divided, each has a part of the same row.
    halves = [kept._replace(first=first, words=4).logits() for first in (0, 4)]
    assert torch.equal(torch.cat(halves, 1), kept.logits())


@pytest.mark.parametrize("places", ["all", "target"])
def test_words_are_compared_at_the_places_that_are_meant(places: str) -> None:
    spec, batch = tiny_spec("bert"), tiny_batch("bert")
    wanted = Distillation(teacher=spec, weights={"logits": 1.0}, layers={}, positions=places)
    counted = DistillationLosses(spec, wanted).count("distill-logits", batch).item()
    assert counted == ((batch["document_ids"] > 0) if places == "all" else (batch["labels"] != -100)).sum().item()


def test_maps_are_one_or_one_of_each_kind() -> None:
    spec = tiny_spec("bert")
    wide = replace(spec, size=change(spec.size, width=48))
    wanted = Distillation(teacher=wide, weights={"embeddings": 1.0, "hidden": 1.0}, layers={"encoder": (0, 1)})
    for projection, maps in (("shared", {"shared"}), ("by-kind", {"embeddings", "hidden"}), ("none", set())):
        built = DistillationLosses(spec, replace(wanted, projection=projection))
        assert {name.partition(".")[0] for name, _ in built.named_parameters()} == maps


def test_the_model_trains_by_the_closed_form_of_the_triple_loss() -> None:
    """DistilBERT: 5 T^2 KL(teacher, student) + 2 MLM + 1 - cosine of last states, and its gradient for each weight."""
    spec, teacher_spec = tiny_spec("distilbert"), tiny_spec("bert")
    wanted = Distillation(
        teacher=teacher_spec, weights={"logits": 5.0, "cosine": 1.0}, layers={}, temperature=2.0, objective=2.0
    )
    student, teacher = model_with(spec, {}, wanted), model_with(teacher_spec, {}).requires_grad_(False)
    batch = tiny_batch("bert")
    real = batch["document_ids"] > 0
    losses = distilled_losses(student, teacher, batch)
    weights = wanted.with_loss_weights({"mlm": 1.0})
    assert weights == {"mlm": 2.0, "distill-logits": 5.0, "distill-cosine": 1.0}
    total = sum(weight * losses[name][0] / losses[name][1] for name, weight in weights.items())

    said, told = student.logits(batch)["mlm"][real], teacher.logits(batch)["mlm"][real]
    p, q = (told / 2).softmax(-1), (said / 2).softmax(-1)
    divergence = 4 * (p * (p / q).log()).sum(-1).mean()
    asked = scatter_labels(batch)[real]
    chosen = said.softmax(-1).gather(1, asked.clamp(min=0)[:, None])[:, 0]
    masked = -chosen.log()[asked >= 0].mean()
    one, two = student.encode(batch)[real], teacher.encode(batch)[real]
    cosine = ((one * two).sum(-1) / (one.norm(dim=-1) * two.norm(dim=-1))).mean()
    closed_form = 5 * divergence + 2 * masked + 1 - cosine
    assert total.item() == pytest.approx(closed_form.item(), rel=1e-5)

    parameters = dict(student.named_parameters())
    ours, theirs = (torch.autograd.grad(value, [*parameters.values()]) for value in (total, closed_form))
    assert all(gradient.norm() > 0 for gradient in theirs)
    for name, mine, other in zip(parameters, ours, theirs, strict=True):
        assert (mine - other).abs().max() <= 1e-5, name
