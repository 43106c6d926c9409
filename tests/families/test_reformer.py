"""Reformer: equality with Hugging Face, reversible layers, hashing, resume, and training."""

# S sequence, B batch, D width

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common.memory import peak_bytes
from megaptm.config import Layout
from megaptm.errors import UserError
from megaptm.families.reformer import stack as reversible_stack
from megaptm.families.reformer.attention import HashedAttend, hash_rotations
from megaptm.families.reformer.reversible import LayerInputs
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.tensor_rules import export_weights
from megaptm.layers.rng import RngReplay
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.spec import change, with_attention_options
from tests.hub.reloaded import use_own_random_values
from tests.layouts.cases import train_and_save
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import make_reference
from tests.ranks import run_ranks

LENGTH = 48
OPTIONS: dict[str, Any] = {"chunk_length": (4, 4, 8, 4), "num_hashes": 3, "num_buckets": (2, 4)}


def build_model_with_large_weights(
    *, layers: int = 4, dropout: float = 0.0, context: int = LENGTH, **options: Any
) -> Model:
    """Return a tiny model for sequences of many chunks, with weights large enough that attention matters."""
    tiny = tiny_spec("reformer", layers=layers, dropout=dropout)
    stacks = {"decoder": with_attention_options(tiny.family.last_block, OPTIONS | options)}
    model = Model(replace(tiny, context=context, family=change(tiny.family, stacks=stacks)))
    init_weights(model, seed=7)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape) + name.endswith(("norm.weight", "final.weight")))
    return model.eval()


def gradients(model: Model, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss, count = model(batch).losses["lm"]
    (loss / count).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_logits_and_gradients_match_hugging_face() -> None:
    """Compare in float64: Hugging Face adds -1e5 to the score of a position with itself, which loses digits in
    float32."""
    model, batch = build_model_with_large_weights().double(), tiny_batch("reformer", sequence=LENGTH)
    reference = use_own_random_values(make_reference(model)).double().train()  # its backward pass needs train mode
    mask = (batch["document_ids"] > 0).long()
    logits = reference(input_ids=batch["tokens"], attention_mask=mask)[0]
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    own_gradients = gradients(model, batch)
    expected.backward()
    is_token = mask > 0
    assert (model.logits(batch)["lm"][is_token] - logits[is_token]).abs().max() < 1e-5
    reference_parameters = dict(reference.named_parameters())
    for name, gradient in export_weights(find_counterpart(model.spec).rules, model.spec, own_gradients).items():
        assert (gradient - reference_parameters[name].grad).abs().max() < 1e-5, name


def test_one_chunk_equals_full_attention() -> None:
    attend = build_model_with_large_weights(chunk_length=64).decoder["2"].attention.attend
    q, v = torch.randn(2, 20, 3, 4, 8).unbind()
    assert attend.hash_buckets(q) is None
    scores = torch.einsum("sbhk,tbhk->bhst", q, F.normalize(q, dim=-1))
    is_attended = torch.ones(20, 20, dtype=torch.bool).tril(-1)
    is_attended[0, 0] = True  # the first position attends to itself, since it has no other
    weights = scores.masked_fill(~is_attended, float("-inf")).softmax(-1)
    expected = torch.einsum("bhst,tbhk->sbhk", weights, v).flatten(2)
    torch.testing.assert_close(attend(q, v, None, None), expected, rtol=0, atol=1e-5)


def run_with_autograd(
    x1: Tensor, x2: Tensor, layers: Sequence[LayerInputs], remember: Callable[[], RngReplay]
) -> list[Tensor]:
    """Run the same layers with autograd, which saves all activations."""
    for inputs in layers:
        x1 = x1 + inputs.layer.attention_branch(x2, inputs.mask, inputs.position_state)[0]
        x2 = x2 + torch.cat([inputs.layer.ffn_branch(rows) for rows in x1.split(16)])
    return [x1, x2]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_reversible_gradients_equal_autograd(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputation repeats dropout masks, also if the feed-forward runs in pieces, and restores the inputs."""
    monkeypatch.setattr("megaptm.families.reformer.reversible.ROWS_FED", 16 * 3)
    model, batch = (
        build_model_with_large_weights(dropout=dropout).double().train(),
        tiny_batch("reformer", sequence=LENGTH),
    )
    inputs: list[Tensor] = []
    model.decoder["0"].attention_norm.register_forward_hook(lambda module, args, out: inputs.append(args[0].detach()))
    torch.manual_seed(1)
    actual = gradients(model, batch)
    first, recomputed = inputs
    assert (recomputed - first).abs().max() < 1e-12
    monkeypatch.setattr(reversible_stack, "run_reversible", run_with_autograd)
    torch.manual_seed(1)
    expected = gradients(model, batch)
    for name, gradient in actual.items():
        assert (gradient - expected[name]).abs().max() < 1e-12, name


def saved_bytes(layers: int) -> int:
    """Return the bytes that a forward pass saves for the backward pass, without weights."""
    model, batch = build_model_with_large_weights(layers=layers), tiny_batch("reformer", sequence=LENGTH)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda parameter: parameter):
        model(batch)
    return sum(parameter.untyped_storage().nbytes() for pointer, parameter in saved.items() if pointer not in weights)


def test_saved_memory_does_not_grow_with_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only hash buckets are saved per layer, in every fourth layer."""
    shallow, deep = saved_bytes(4), saved_bytes(12)
    assert 0 < (deep - shallow) / 8 < 0.05 * shallow
    monkeypatch.setattr(reversible_stack, "run_reversible", run_with_autograd)
    assert saved_bytes(12) > 4 * deep


def peak_of_step(layers: int) -> int:
    """Return the peak of bytes that torch allocates during a forward and a backward pass, without weights and
    gradients."""
    model, batch = build_model_with_large_weights(layers=layers), tiny_batch("reformer", sequence=LENGTH)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return peak_bytes(lambda: model(batch).losses["lm"][0].backward())


def test_peak_memory_does_not_grow_with_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak includes temporary tensors of the backward pass; benchmarks/long_inputs.py measures longer sequences."""
    shallow, deep = peak_of_step(4), peak_of_step(12)
    assert 0 < (deep - shallow) / 8 < 0.05 * shallow
    monkeypatch.setattr(reversible_stack, "run_reversible", run_with_autograd)
    assert peak_of_step(12) > 1.5 * deep


def token_gradient(model: Model, batch: dict[str, Tensor], select: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of absolute gradients [S, B] of selected logits at the token embeddings."""
    embedded: list[Tensor] = []
    hook = model.embed.token.register_forward_hook(lambda module, args, out: embedded.append(out))
    logits = model.logits(batch)["lm"]
    hook.remove()
    (gradient,) = torch.autograd.grad(select(logits).square().sum(), embedded[0])
    return gradient.abs().sum(-1)


def test_nothing_comes_from_the_future_or_another_document() -> None:
    """Hashes have no gradient. Later tokens can only change which earlier tokens a position is compared with."""
    model = build_model_with_large_weights()
    batch = {"tokens": tiny_batch("reformer", rows=1, sequence=LENGTH)["tokens"]}
    for position in (1, 17, 40):
        from_tokens = token_gradient(model, batch, lambda logits, position=position: logits[0, position])
        assert from_tokens[position + 1 :].abs().max() == 0
        assert from_tokens[: position + 1].max() > 0
    batch["document_ids"] = (torch.arange(LENGTH) >= 20).long()[None] + 1
    from_tokens = token_gradient(model, batch, lambda logits: logits[0, 20:])
    assert from_tokens[:20].abs().max() == 0
    # With fixed hashes, a changed token changes no earlier logits.
    with torch.no_grad():
        before = model.logits(batch)["lm"]
        modules = [module for module in model.modules() if isinstance(module, HashedAttend)]
        buckets: dict[int, Tensor | None] = {}

        def with_fixed_buckets(module: HashedAttend) -> Callable[[Tensor], Tensor | None]:
            compute = module.hash_buckets
            return lambda q: buckets.setdefault(module.layer, compute(q))

        for module in modules:
            module.hash_buckets = with_fixed_buckets(module)
        torch.testing.assert_close(model.logits(batch)["lm"], before, rtol=0, atol=0)
        batch["tokens"] = batch["tokens"].index_fill(1, torch.tensor([33]), 5)
        after = model.logits(batch)["lm"]
    torch.testing.assert_close(after[:, :33], before[:, :33], rtol=0, atol=1e-6)
    assert (after - before)[0, 33].abs().max() > 1e-3


def test_rotations_depend_on_seed_step_layer_and_head() -> None:
    shape = (4, 2, 8)
    values = hash_rotations("7:3", 2, range(4), shape)
    assert values[2:].equal(hash_rotations("7:3", 2, range(2, 4), shape))  # the heads of a tensor-parallel rank
    assert values.std() == pytest.approx(1, abs=0.15)
    different = [hash_rotations("7:4", 2, range(4), shape), hash_rotations("8:3", 2, range(4), shape), values.flip(0)]
    assert all((values != other).all() for other in [*different, hash_rotations("7:3", 1, range(4), shape)])


def train_at_once_and_resumed(folder: str) -> list[dict[str, Any]]:
    """Train three steps at once, and one plus two after a resume, with dropout."""

    def train(name: str, start: int, steps: int) -> dict[str, Any]:
        return train_and_save("reformer", Layout(microbatch=4), f"{folder}/{name}", start, steps, dropout=0.1)

    return [train("whole", 0, 3), train("parts", 0, 1), train("parts", 1, 2)]


def test_resume_is_bit_identical(tmp_path: Path) -> None:
    [(full, first, second)] = run_ranks(1, train_at_once_and_resumed, str(tmp_path))
    for metric in ("losses", "norms"):
        assert first[metric] + second[metric] == full[metric]


def test_model_learns_repeated_text() -> None:
    """Predict the next token of a periodic text, on sequences of many chunks."""
    model = build_model_with_large_weights(context=32).train()
    text = torch.randint(1, 12, (40,), generator=torch.Generator().manual_seed(4)).repeat(3)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(40):
        rows = torch.stack([text[start : start + 33] for start in range(step % 5, 40, 5)])
        model.set_hash_seed_key(f"0:{step}")
        loss, count = model({"tokens": rows[:, :-1], "labels": rows[:, 1:]}).losses["lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append((loss / count).item())
    assert sum(losses[-5:]) / 5 < torch.tensor(11.0).log() / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": {"position": "post"}}, r"Block\.norm\.position is post, which reversible layers do not support"),
        ({"sharing": {"sublayers": ("ffn",)}}, r"Block\.sharing\.sublayers is .* reversible layers do not support"),
    ],
)
def test_reversible_layers_refuse_unsupported_fields(options: dict[str, Any], message: str) -> None:
    tiny = tiny_spec("reformer")
    family = change(tiny.family, stacks={"decoder": change(tiny.family.last_block, **options)})
    with pytest.raises(UserError, match=message):
        Model(replace(tiny, family=family))


def test_odd_number_of_hash_buckets_is_refused() -> None:
    with pytest.raises(UserError, match=r"Block\.attention\.num_buckets \(3\) must be even"):
        build_model_with_large_weights(num_buckets=(4, 3))
