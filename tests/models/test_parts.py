"""A model cut into parts says what the whole model says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megaptm.bricks import heads
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.models import Model, build_model, even_chunks, fill
from megaptm.models.heads import build_heads
from megaptm.models.output import ModelOutput
from megaptm.spec import change
from tests.models.tiny import FAMILIES, mean_losses, tiny_batch, tiny_model, tiny_spec


@pytest.mark.parametrize("num_parts", [1, 2, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_chain_of_parts_equals_the_whole(family: str, num_parts: int) -> None:
    layers = 4 // len(CATALOGUE[family].stacks)
    whole, batch = tiny_model(family, layers=layers), tiny_batch(family)
    equals_the_whole(whole, batch, num_parts)


def equals_the_whole(whole: Model, batch: dict[str, Tensor], num_parts: int) -> None:
    """Loss and gradients, each parameter's summed over the parts that hold it."""
    expected = mean_losses(whole(batch).losses)
    expected.backward()
    weights = dict(whole.named_parameters())

    chain = [build_model(whole.spec, part).eval() for part in even_chunks(whole.spec, num_parts)]
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


def test_the_stream_between_parts_is_encoder_then_decoder() -> None:
    spec = tiny_spec("t5")
    first = build_model(spec, even_chunks(spec, 2)[0])
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert first(tiny_batch("t5")).stream.shape == (12 + 7, 3, 32)


def test_a_stream_split_over_ranks_is_cut_in_proportion() -> None:
    """Half of each stream's sequence arrives where two ranks share it: 6 of 12, 4 of 8."""
    spec = tiny_spec("t5")
    batch = tiny_batch("t5", target=8)
    middle = build_model(spec, even_chunks(spec, 4)[3])
    encoder, decoder = middle._divide(batch, torch.zeros(10, 3, 32)).values()
    assert (len(encoder), len(decoder)) == (6, 4)


def test_each_part_holds_only_its_own_parameters() -> None:
    spec = tiny_spec("t5", layers=4)
    names = [{name for name, _ in build_model(spec, part).named_parameters()} for part in even_chunks(spec, 4)]
    tops = [
        {name.rsplit(".", 1)[0].split(".attention")[0].split(".ffn")[0].split(".cross")[0] for name in n} for n in names
    ]
    assert tops == [
        {"embed.token", "encoder.bias_table", "encoder.0", "encoder.1"},
        {"encoder.bias_table", "encoder.2", "encoder.3", "encoder.final"},
        {"decoder.bias_table", "decoder.0", "decoder.1"},
        {"embed.token", "decoder.bias_table", "decoder.2", "decoder.3", "decoder.final"},
    ]


def test_the_last_part_of_a_tied_model_holds_the_token_table_and_no_positions() -> None:
    spec = tiny_spec("bert")
    names = {name for name, _ in build_model(spec, even_chunks(spec, 2)[1]).named_parameters() if "embed" in name}
    assert names == {"embed.token.weight"}


@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if CATALOGUE[name].tied and not tiny_spec(name).size.cutoffs]
)
def test_a_whole_tied_model_has_one_table_of_tokens_on_which_heads_project(family: str) -> None:
    # As many tokens as nothing else of it is wide.
    spec, batch = replace(tiny_spec(family), vocabulary=300), tiny_batch(family)
    model = build_model(spec).eval()
    fill(model, seed=7)
    tables = [name for name, one in model.named_parameters() if len(one) == spec.padded_vocabulary and one.dim() == 2]
    # What DeBERTa-v3's discriminator reads is the same and a difference, on which nothing projects.
    assert [name for name in tables if not name.endswith("_difference.weight")] == ["embed.token.weight"]
    with torch.no_grad():
        before = model.logits(batch)
        model.get_parameter("embed.token.weight")[299, 0] += 1.0
        after = model.logits(batch)
    of_words = [name for name, one in before.items() if one.shape[-1] == 300]
    assert of_words
    for name in of_words:
        assert (after[name] - before[name])[..., 299].abs().min() > 0, name


def test_layers_that_the_parts_do_not_divide_are_refused() -> None:
    with pytest.raises(UserError, match=r"t5 has 6 layers \(3 encoder \+ 3 decoder\), which 4 pipeline chunks"):
        even_chunks(tiny_spec("t5", layers=3), 4)


@pytest.mark.parametrize("number", ["label_smoothing", "z_loss"])
def test_every_head_that_projects_takes_the_family_s_numbers_of_its_loss(number: str) -> None:
    spec = tiny_spec("spanbert")
    told = replace(spec, family=change(spec.family, **{number: 0.1}))
    for name, brick in heads(spec).items():
        if brick.projects:
            module = build_heads(told, [name])[name]
            assert getattr(module.project, number) == 0.1, name
