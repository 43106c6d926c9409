"""Reformer: hashes, two streams that are computed back, and what Hugging Face's says with the same rotations."""

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
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.tensor_rules import export_weights
from megaptm.layers import layer as layers_of_stacks
from megaptm.layers.draws import Again
from megaptm.layers.lsh import HashedAttend, rotations
from megaptm.layers.reversible import LayerInputs
from megaptm.models import Model, build_model, fill
from megaptm.spec import change, with_attention_options
from tests.hub.reloaded import drawing_ours
from tests.layouts.cases import train_and_save
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import reference_of
from tests.ranks import run_ranks

LENGTH = 48
OPTIONS: dict[str, Any] = {"chunk_length": (4, 4, 8, 4), "num_hashes": 3, "num_buckets": (2, 4)}


def sharp(*, layers: int = 4, dropout: float = 0.0, context: int = LENGTH, **options: Any) -> Model:
    """A tiny one whose rows are many chunks, with weights so large that what is seen matters."""
    tiny = tiny_spec("reformer", layers=layers, dropout=dropout)
    stacks = {"decoder": with_attention_options(tiny.family.last_block, OPTIONS | options)}
    model = build_model(replace(tiny, context=context, family=change(tiny.family, stacks=stacks)))
    fill(model, seed=7)
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


def test_logits_and_every_gradient_with_the_same_rotations() -> None:
    """In double precision: theirs adds numbers near -1e5 for places that see themselves alone, of which float32 has
    every hundredth."""
    model, batch = sharp().double(), tiny_batch("reformer", sequence=LENGTH)
    theirs = drawing_ours(reference_of(model)).double().train()  # only then it has a backward pass
    mask = (batch["document_ids"] > 0).long()
    logits = theirs(input_ids=batch["tokens"], attention_mask=mask)[0]
    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    ours = gradients(model, batch)
    expected.backward()
    real = mask > 0
    assert (model.logits(batch)["lm"][real] - logits[real]).abs().max() < 1e-5
    their_parameters = dict(theirs.named_parameters())
    for name, gradient in export_weights(find_counterpart(model.spec).rules, model.spec, ours).items():
        assert (gradient - their_parameters[name].grad).abs().max() < 1e-5, name


def test_one_chunk_is_full_attention_of_queries_that_are_keys() -> None:
    attend = sharp(chunk_length=64).decoder["2"].attention.attend
    q, v = torch.randn(2, 20, 3, 4, 8).unbind()
    assert attend.buckets(q) is None
    scores = torch.einsum("sbhk,tbhk->bhst", q, F.normalize(q, dim=-1))
    seen = torch.ones(20, 20, dtype=torch.bool).tril(-1)
    seen[0, 0] = True  # the first has nobody else
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    expected = torch.einsum("bhst,tbhk->sbhk", weights, v).flatten(2)
    torch.testing.assert_close(attend(q, v, None, None), expected, rtol=0, atol=1e-5)


def summed_as_usual(
    x1: Tensor, x2: Tensor, layers: Sequence[LayerInputs], remember: Callable[[], Again]
) -> list[Tensor]:
    """The same layers, of which autograd keeps all."""
    for told in layers:
        x1 = x1 + told.layer.mixed(x2, told.mask, told.position_state)[0]
        x2 = x2 + torch.cat([told.layer.fed(some) for some in x1.split(16)])
    return [x1, x2]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradients_are_those_of_layers_that_keep_everything(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout draws the same again, also where the feed-forward is done in pieces; what is read is computed back."""
    monkeypatch.setattr("megaptm.layers.reversible.ROWS_FED", 16 * 3)
    model, batch = sharp(dropout=dropout).double().train(), tiny_batch("reformer", sequence=LENGTH)
    read: list[Tensor] = []
    model.decoder["0"].attention_norm.register_forward_hook(lambda module, given, out: read.append(given[0].detach()))
    torch.manual_seed(1)
    ours = gradients(model, batch)
    first, back = read
    assert (back - first).abs().max() < 1e-12
    monkeypatch.setattr(layers_of_stacks, "run_reversible", summed_as_usual)
    torch.manual_seed(1)
    kept = gradients(model, batch)
    for name, gradient in ours.items():
        assert (gradient - kept[name]).abs().max() < 1e-12, name


def bytes_kept(layers: int) -> int:
    """What a forward pass through so many layers leaves for the backward pass, besides weights."""
    model, batch = sharp(layers=layers), tiny_batch("reformer", sequence=LENGTH)
    weights = {one.data_ptr() for one in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(one: Tensor) -> Tensor:
        kept[one.untyped_storage().data_ptr()] = one
        return one

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        model(batch)
    return sum(one.untyped_storage().nbytes() for place, one in kept.items() if place not in weights)


def test_what_is_kept_does_not_grow_with_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """But by numbers of buckets, of every fourth of them."""
    shallow, deep = bytes_kept(4), bytes_kept(12)
    assert 0 < (deep - shallow) / 8 < 0.05 * shallow
    monkeypatch.setattr(layers_of_stacks, "run_reversible", summed_as_usual)
    assert bytes_kept(12) > 4 * deep


def peak_of_step(layers: int) -> int:
    """What torch has allocated at most during a forward and a backward pass, besides weights and their gradients."""
    model, batch = sharp(layers=layers), tiny_batch("reformer", sequence=LENGTH)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return peak_bytes(lambda: model(batch).losses["lm"][0].backward())


def test_peak_memory_does_not_grow_with_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As measured, also on the way back, which nothing kept says nothing of; see benchmarks/long_inputs.py for longer
    rows."""
    shallow, deep = peak_of_step(4), peak_of_step(12)
    assert 0 < (deep - shallow) / 8 < 0.05 * shallow
    monkeypatch.setattr(layers_of_stacks, "run_reversible", summed_as_usual)
    assert peak_of_step(12) > 1.5 * deep


def tokens_embedded(model: Model, batch: dict[str, Tensor], say: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient [S, B, D], at the tokens, of something of what the model says."""
    seen: list[Tensor] = []
    hook = model.embed.token.register_forward_hook(lambda module, given, out: seen.append(out))
    logits = model.logits(batch)["lm"]
    hook.remove()
    (gradient,) = torch.autograd.grad(say(logits).square().sum(), seen[0])
    return gradient.abs().sum(-1)


def test_nothing_comes_from_the_future_or_another_document() -> None:
    """Through hashes no gradient comes; all others that there are come from what a place may see. Tokens that come
    later can only change which of those before it a place is compared with."""
    model = sharp()
    batch = {"tokens": tiny_batch("reformer", rows=1, sequence=LENGTH)["tokens"]}
    for place in (1, 17, 40):
        from_tokens = tokens_embedded(model, batch, lambda logits, place=place: logits[0, place])
        assert from_tokens[place + 1 :].abs().max() == 0
        assert from_tokens[: place + 1].max() > 0
    batch["document_ids"] = (torch.arange(LENGTH) >= 20).long()[None] + 1
    from_tokens = tokens_embedded(model, batch, lambda logits: logits[0, 20:])
    assert from_tokens[:20].abs().max() == 0
    # With hashes that are known, a token that changes changes nothing before it.
    with torch.no_grad():
        before = model.logits(batch)["lm"]
        found = [one for one in model.modules() if isinstance(one, HashedAttend)]
        known: dict[int, Tensor | None] = {}

        def remembering(one: HashedAttend) -> Callable[[Tensor], Tensor | None]:
            made = one.buckets
            return lambda q: known.setdefault(one.layer, made(q))

        for one in found:
            one.buckets = remembering(one)
        torch.testing.assert_close(model.logits(batch)["lm"], before, rtol=0, atol=0)
        batch["tokens"] = batch["tokens"].index_fill(1, torch.tensor([33]), 5)
        after = model.logits(batch)["lm"]
    torch.testing.assert_close(after[:, :33], before[:, :33], rtol=0, atol=1e-6)
    assert (after - before)[0, 33].abs().max() > 1e-3


def test_rotations_are_a_function_of_seed_step_layer_and_head() -> None:
    shape = (4, 2, 8)
    one = rotations("7:3", 2, range(4), shape)
    assert one[2:].equal(rotations("7:3", 2, range(2, 4), shape))  # those of a tensor rank
    assert one.std() == pytest.approx(1, abs=0.15)
    others = [rotations("7:4", 2, range(4), shape), rotations("8:3", 2, range(4), shape), one.flip(0)]
    assert all((one != other).all() for other in [*others, rotations("7:3", 1, range(4), shape)])


def whole_and_in_parts(folder: str) -> list[dict[str, Any]]:
    """With dropout, in one process."""

    def train(place: str, start: int, steps: int) -> dict[str, Any]:
        return train_and_save("reformer", Layout(microbatch=4), f"{folder}/{place}", start, steps, dropout=0.1)

    return [train("whole", 0, 3), train("parts", 0, 1), train("parts", 1, 2)]


def test_a_run_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    [(whole, first, rest)] = run_ranks(1, whole_and_in_parts, str(tmp_path))
    for what in ("losses", "norms"):
        assert first[what] + rest[what] == whole[what]


def test_it_learns() -> None:
    """What comes after two tokens in a text that goes round, of rows that are many chunks."""
    model = sharp(context=32).train()
    text = torch.randint(1, 12, (40,), generator=torch.Generator().manual_seed(4)).repeat(3)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(40):
        rows = torch.stack([text[start : start + 33] for start in range(step % 5, 40, 5)])
        model.hash_by(f"0:{step}")
        loss, count = model({"tokens": rows[:, :-1], "labels": rows[:, 1:]}).losses["lm"]
        optimizer.zero_grad()
        (loss / count).backward()
        optimizer.step()
        losses.append((loss / count).item())
    assert sum(losses[-5:]) / 5 < torch.tensor(11.0).log() / 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"norm": {"position": "post"}}, r"Block\.norm\.position is post, which reversible layers do not support"),
        ({"sharing": {"sublayers": ("ffn",)}}, r"Block\.sharing\.sublayers is .* reversible layers do not support"),
    ],
)
def test_reversible_layers_refuse_unsupported_fields(words: dict[str, Any], why: str) -> None:
    tiny = tiny_spec("reformer")
    family = change(tiny.family, stacks={"decoder": change(tiny.family.last_block, **words)})
    with pytest.raises(UserError, match=why):
        build_model(replace(tiny, family=family))


def test_odd_number_of_hash_buckets_is_refused() -> None:
    with pytest.raises(UserError, match=r"Block\.attention\.num_buckets \(3\) must be even"):
        sharp(num_buckets=(4, 3))
