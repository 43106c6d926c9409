"""LED: import from BART, published sizes, and packed documents with global tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from megaptm.families import CATALOGUE
from megaptm.families.longformer.spec import WindowSpec
from megaptm.hub.huggingface import from_hugging_face
from megaptm.objectives import build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.spec import AttentionSpec, published_spec
from tests.models.tiny import VOCABULARY, tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import build_with_weights, convert_inputs, make_random_reference, make_reference


def test_import_from_bart() -> None:
    """Logits equal BART's on its positions. Further encoder positions repeat the table, and global projections are
    copies."""
    reference, batch = make_random_reference(tiny_spec("bart")), tiny_batch("bart", sequence=24, target=20)
    imported = from_hugging_face(reference, family="led")
    spec, model = imported.spec, build_with_weights(imported.spec, imported.weights)
    assert (spec.name, spec.context_of("encoder"), spec.context_of("decoder")) == ("led", 16_384, 24)
    assert not imported.absent
    is_token = batch["decoder_document_ids"] > 0
    logits = reference(**convert_inputs("bart", batch)).logits
    assert (model.logits(batch)["lm"] - logits)[is_token].abs().max() <= 1e-5
    first, table = reference.model.encoder.embed_positions.weight[2:], imported.weights["embed.position.weight"]
    assert len(table) == 16_384
    assert table.equal(first[torch.arange(16_384) % 24])
    assert imported.weights["embed.decoder_position.weight"].equal(reference.model.decoder.embed_positions.weight[2:])
    for kind in ("weight", "bias"):
        projection = imported.weights[f"encoder.1.attention.qkv.{kind}"]
        assert imported.weights[f"encoder.1.attention.global_qkv.{kind}"].equal(projection)
    # Because of these copies, a global token changes nothing yet.
    marks = torch.zeros_like(batch["tokens"])
    marks[:, 0] = 1
    assert (model.logits(batch | {"global_tokens": marks})["lm"] - logits)[is_token].abs().max() <= 1e-5


def test_published_windows_and_positions() -> None:
    """Section 7: windows of 1,024 in the encoder only, and 16 times BART's positions."""
    spec = published_spec(CATALOGUE["led"], "large")
    encoder, decoder = spec.family.stacks.values()
    assert encoder.attention == WindowSpec(window=1024)
    assert decoder.attention == AttentionSpec()
    assert [spec.positions_of(stack) for stack in spec.family.stacks] == [16_384, 1024]


def special_tokens() -> SpecialTokens:
    """Return the ids of BART's vocabulary: `<s>`, `<pad>` and `</s>` come first."""
    return SpecialTokens(size=VOCABULARY, begin=0, pad=1, end=2, specials=frozenset(range(3)))


def pairs(*lengths: tuple[int, int], seed: int = 0) -> list[DocumentSlice]:
    """Return documents of a text and its summary, with these numbers of tokens."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(3, VOCABULARY, sum(both)).astype(np.uint16) for both in lengths]
    return [
        DocumentSlice(tokens, 4, {"parts": np.array([0, source], np.int32)})
        for tokens, (source, _) in zip(texts, lengths, strict=True)
    ]


def make_sample(objective: object, documents: list[DocumentSlice], sequence: int) -> dict[str, Tensor]:
    """Return one sample, as fields [1, ...]."""
    task = build_objective({"text-to-text": objective})
    sample = task.make_sample(documents, SampleContext(special_tokens(), np.random.default_rng(0), sequence, True))
    task.batch_spec(sequence, True).check(sample, maker=task.name)
    return {name: torch.from_numpy(array)[None] for name, array in sample.items()}


SUMMARIES = {"add_begin_token": True, "global_tokens": 1, "max_target_length": 12}


def test_summary_loss_matches_hugging_face() -> None:
    """The loss equals Hugging Face's, which derives the decoder's inputs from the labels."""
    model = tiny_model("led")
    reference = make_reference(model)
    reference.config.decoder_start_token_id = special_tokens().end
    rows = [
        make_sample(SUMMARIES | {"packed": False}, pairs(both, seed=n), 24) for n, both in enumerate([(19, 6), (12, 8)])
    ]
    batch = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    loss, count = model(batch).losses["lm"]
    assert count == 6 + 8 + 2 * 2
    output = reference(
        input_ids=batch["tokens"],
        attention_mask=(batch["document_ids"] > 0).long(),
        global_attention_mask=batch["global_tokens"],
        labels=batch["labels"],
    )
    assert abs(loss / count - output.loss) <= 1e-6
    without_global_tokens, _ = model(batch | {"global_tokens": torch.zeros_like(batch["tokens"])}).losses["lm"]
    assert abs(without_global_tokens - loss) > 1e-4, "the mark weighs"


def test_packed_documents_do_not_leak() -> None:
    """Each document of a packed sequence has its own global token, and the sum of losses is that of separate
    samples."""
    model, documents = tiny_model("led"), pairs((9, 3), (7, 4))
    packed = make_sample(SUMMARIES, documents, 24)
    assert packed["global_tokens"][0].nonzero().flatten().tolist() == [0, 11]
    separate = [model(make_sample(SUMMARIES, [document], 24)).losses["lm"] for document in documents]
    loss, count = model(packed).losses["lm"]
    assert count == sum(num_labels for _, num_labels in separate)
    torch.testing.assert_close(loss, sum(document for document, _ in separate), rtol=1e-5, atol=0)
