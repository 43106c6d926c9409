"""LED begins from a BART: what it says, its places, and the maps of what sees all."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import from_hugging_face
from megaptm.objectives import build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.spec import AttentionSpec, WindowSpec, published
from tests.models.tiny import VOCABULARY, tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import inputs_of, model_of, random_reference, reference_of


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
    assert encoder.attention == WindowSpec(window=1024)
    assert decoder.attention == AttentionSpec()
    assert [spec.positions_of(stack) for stack in spec.family.stacks] == [16_384, 1024]


def led_special() -> SpecialTokens:
    """As in BART's vocabulary: `<s>`, `<pad>` and `</s>` come first."""
    return SpecialTokens(size=VOCABULARY, begin=0, pad=1, end=2, specials=frozenset(range(3)))


def pairs(*lengths: tuple[int, int], seed: int = 0) -> list[DocumentSlice]:
    """Documents of a text and its summary, of so many tokens."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(3, VOCABULARY, sum(both)).astype(np.uint16) for both in lengths]
    return [
        DocumentSlice(tokens, 4, {"parts": np.array([0, source], np.int32)})
        for tokens, (source, _) in zip(texts, lengths, strict=True)
    ]


def row_of(objective: object, piece: list[DocumentSlice], sequence: int) -> dict[str, Tensor]:
    """[1, ...]: one sample."""
    task = build_objective({"text-to-text": objective})
    sample = task.make(piece, SampleContext(led_special(), np.random.default_rng(0), sequence, True))
    task.batch(sequence, True).check(sample, maker=task.name)
    return {name: torch.from_numpy(array)[None] for name, array in sample.items()}


SUMMARIES = {"add_begin_token": True, "global_tokens": 1, "max_target_length": 12}


def test_the_loss_of_a_summary_is_that_of_theirs() -> None:
    """PARITY: of texts, what sees all, and summaries theirs makes itself what the decoder hears."""
    model = tiny_model("led")
    theirs = reference_of(model)
    theirs.config.decoder_start_token_id = led_special().end
    rows = [row_of(SUMMARIES | {"packed": False}, pairs(both, seed=n), 24) for n, both in enumerate([(19, 6), (12, 8)])]
    batch = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    loss, count = model(batch).losses["lm"]
    assert count == 6 + 8 + 2 * 2
    said = theirs(
        input_ids=batch["tokens"],
        attention_mask=(batch["document_ids"] > 0).long(),
        global_attention_mask=batch["global_tokens"],
        labels=batch["labels"],
    )
    assert abs(loss / count - said.loss) <= 1e-6
    unmarked, _ = model(batch | {"global_tokens": torch.zeros_like(batch["tokens"])}).losses["lm"]
    assert abs(unmarked - loss) > 1e-4, "the mark weighs"


def test_packed_summaries_are_said_as_each_by_itself() -> None:
    """LEAK: of several pairs in a row each has its own token that sees all, and its own text alone."""
    model, piece = tiny_model("led"), pairs((9, 3), (7, 4))
    packed = row_of(SUMMARIES, piece, 24)
    assert packed["global_tokens"][0].nonzero().flatten().tolist() == [0, 11]
    alone = [model(row_of(SUMMARIES, [one], 24)).losses["lm"] for one in piece]
    loss, count = model(packed).losses["lm"]
    assert count == sum(asked for _, asked in alone)
    torch.testing.assert_close(loss, sum(one for one, _ in alone), rtol=1e-5, atol=0)
