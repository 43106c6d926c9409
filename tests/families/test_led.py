"""LED begins from a BART: what it says, its places, and the maps of what sees all."""

from __future__ import annotations

import torch

from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import from_hugging_face
from megaptm.spec import published
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import inputs_of, model_of, random_reference


def test_a_led_begins_as_its_bart() -> None:
    """Of rows as long as BART's it says the same; later places of the encoder are the same ones again, and what sees
    all begins with the maps of all tokens."""
    theirs, batch = random_reference(tiny_spec("bart")), tiny_batch("bart", sequence=24, target=20)
    found = from_hugging_face(theirs, family="led")
    spec, model = found.spec, model_of(found.spec, found.weights)
    assert (spec.name, spec.context_of("encoder"), spec.context_of("decoder")) == ("led", 16_384, 24)
    assert not found.absent
    real = batch["decoder_document_ids"] > 0
    said = theirs(**inputs_of("bart", batch)).logits
    assert (model.logits(batch)["lm"] - said)[real].abs().max() <= 1e-5
    first, places = theirs.model.encoder.embed_positions.weight[2:], found.weights["embed.position.weight"]
    assert len(places) == 16_384
    assert places.equal(first[torch.arange(16_384) % 24])
    assert found.weights["embed.decoder_position.weight"].equal(theirs.model.decoder.embed_positions.weight[2:])
    for kind in ("weight", "bias"):
        ours = found.weights[f"encoder.1.attention.qkv.{kind}"]
        assert found.weights[f"encoder.1.attention.global_qkv.{kind}"].equal(ours)
    # So a token that sees all says at first what it says anyway.
    marks = torch.zeros_like(batch["tokens"])
    marks[:, 0] = 1
    assert (model.logits(batch | {"global_tokens": marks})["lm"] - said)[real].abs().max() <= 1e-5


def test_published_windows_and_places_are_those_of_the_paper() -> None:
    """Section 7: windows of 1,024 in the encoder alone, and 16 times BART's places."""
    spec = published(CATALOGUE["led"], "large")
    encoder, decoder = spec.family.stacks.values()
    assert (encoder.attention, encoder.window, encoder.dilation, decoder.attention) == ("window", 1024, 1, "dot")
    assert [spec.positions_of(stack) for stack in spec.family.stacks] == [16_384, 1024]
