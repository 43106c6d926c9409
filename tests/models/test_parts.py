"""Pipeline parts of a model compute the same as the model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.models.chunk import allows_heads_alone, model_chunks
from megaptm.models.head_costs import head_costs
from megaptm.models.heads import build_heads
from megaptm.models.initial import init_weights
from megaptm.models.model import Model, even_chunks
from megaptm.models.output import ModelOutput
from megaptm.spec import change
from tests.models.tiny import FAMILIES, mean_losses, tiny_batch, tiny_model, tiny_spec


@pytest.mark.parametrize("num_parts", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_parts_equal_the_model(family: str, num_parts: int) -> None:
    layers = 4 // len(CATALOGUE[family].stacks)
    model, batch = tiny_model(family, layers=layers), tiny_batch(family)
    assert_parts_equal_model(model, batch, num_parts)


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        *((family, (3, 1)) for family in FAMILIES),
        *((family, (1, 1, 2, 0)) for family in FAMILIES if allows_heads_alone(tiny_spec(family))),
    ],
)
def test_uneven_parts_equal_the_model(family: str, layers: tuple[int, ...]) -> None:
    """A part has layers of two stacks; the last one may have only heads."""
    model = tiny_model(family, layers=4 // len(CATALOGUE[family].stacks))
    assert_parts_equal_model(model, tiny_batch(family), len(layers), layers)


def assert_parts_equal_model(
    full_model: Model, batch: dict[str, Tensor], num_parts: int, layers: tuple[int, ...] | None = None
) -> None:
    """Compare losses and gradients. Gradients of a parameter are summed over the parts that hold it."""
    expected = mean_losses(full_model(batch).losses)
    expected.backward()
    weights = dict(full_model.named_parameters())

    chain = [Model(full_model.spec, part).eval() for part in model_chunks(full_model.spec, num_parts, layers)]
    for model in chain:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(weights[name])
    x, inner, output = None, [], ModelOutput()
    for model in chain:
        model.add_losses = lambda stream, losses: (inner.append(mean_losses(losses)), stream)[1]
        output = model(batch, x)
        x = output.stream
    loss = sum(inner, start=mean_losses(output.losses))
    torch.testing.assert_close(loss, expected, rtol=1e-6 if inner else 0, atol=0)
    loss.backward()

    gradients: dict[str, Tensor] = {}
    for model in chain:
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            gradients[name] = gradients.get(name, 0) + parameter.grad
    assert set(gradients) == set(weights)
    for name, parameter in weights.items():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-6, msg=name)


def test_hidden_states_between_parts_are_encoder_then_decoder() -> None:
    spec = tiny_spec("t5")
    first = Model(spec, even_chunks(spec, 2)[0])
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert first(tiny_batch("t5")).stream.shape == (12 + 7, 3, 32)


def test_divided_hidden_states_are_split_by_stream() -> None:
    """With two sequence parallel ranks, half of each stream arrives: 6 of 12 and 4 of 8 positions."""
    spec = tiny_spec("t5")
    batch = tiny_batch("t5", target=8)
    middle = Model(spec, even_chunks(spec, 4)[3])
    encoder, decoder = middle._split_stream(batch, torch.zeros(10, 3, 32)).values()
    assert (len(encoder), len(decoder)) == (6, 4)


def test_parts_hold_only_their_own_parameters() -> None:
    spec = tiny_spec("t5", layers=4)
    names = [{name for name, _ in Model(spec, part).named_parameters()} for part in even_chunks(spec, 4)]
    tops = [
        {name.rsplit(".", 1)[0].split(".attention")[0].split(".ffn")[0].split(".cross")[0] for name in n} for n in names
    ]
    assert tops == [
        {"embed.token", "encoder.bias_table", "encoder.0", "encoder.1"},
        {"encoder.bias_table", "encoder.2", "encoder.3", "encoder.final"},
        {"decoder.bias_table", "decoder.0", "decoder.1"},
        {"embed.token", "decoder.bias_table", "decoder.2", "decoder.3", "decoder.final"},
    ]


def test_last_part_of_a_tied_model_holds_the_token_table() -> None:
    spec = tiny_spec("bert")
    names = {name for name, _ in Model(spec, even_chunks(spec, 2)[1]).named_parameters() if "embed" in name}
    assert names == {"embed.token.weight"}


@pytest.mark.parametrize(
    "family",
    [name for name in FAMILIES if CATALOGUE[name].output.tied and not tiny_spec(name).size.inputs.get("cutoffs")],
)
def test_tied_model_projects_with_its_token_table(family: str) -> None:
    # A vocabulary size that no other dimension of the model has.
    spec, batch = replace(tiny_spec(family), vocabulary=300), tiny_batch(family)
    model = Model(spec).eval()
    init_weights(model, seed=7)
    tables = [
        name for name, weight in model.named_parameters() if len(weight) == spec.padded_vocabulary and weight.dim() == 2
    ]
    # DeBERTa-v3's discriminator reads the table plus a difference, and T5Gemma's encoder its own: no head projects with
    # these.
    separate = ("_difference.weight", "_token.weight")
    assert [name for name in tables if not name.endswith(separate)] == ["embed.token.weight"]
    with torch.no_grad():
        before = model.logits(batch)
        model.get_parameter("embed.token.weight")[299, 0] += 1.0
        after = model.logits(batch)
    language_heads = [name for name, logits in before.items() if logits.shape[-1] == 300]
    assert language_heads
    for name in language_heads:
        assert (after[name] - before[name])[..., 299].abs().min() > 0, name


def test_indivisible_layers_are_rejected() -> None:
    with pytest.raises(UserError, match=r"t5 has 6 layers \(3 encoder \+ 3 decoder\), which 4 pipeline chunks"):
        even_chunks(tiny_spec("t5", layers=3), 4)


@pytest.mark.parametrize("option", ["label_smoothing", "z_loss"])
def test_language_heads_take_loss_options_of_the_family(option: str) -> None:
    spec = tiny_spec("spanbert")
    changed = replace(spec, family=change(spec.family, loss={option: 0.1}))
    for name, costs in head_costs(spec).items():
        if costs.projects:
            module = build_heads(changed, [name])[name]
            assert getattr(module.project, option) == 0.1, name
