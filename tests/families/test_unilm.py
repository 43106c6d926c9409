"""UniLM: attention masks of its four contexts, compared with the released code and with a BERT that is given the
mask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.families.bert import BERT
from megaptm.families.bert.huggingface import BERT as COUNTERPART
from megaptm.families.unilm.objectives import SEGMENTS, OrderedMaskedLM
from megaptm.hub.config_fields import config_values
from megaptm.hub.huggingface import from_hugging_face
from megaptm.hub.tensor_rules import export_weights
from megaptm.layers.mask import self_mask
from megaptm.models.model import Model
from megaptm.objectives import OBJECTIVES, SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.spec import ModelSpec
from tests.models.tiny import tiny_model, tiny_spec
from tests.parity.reference import make_random_reference

GOLDEN = Path(__file__).parents[1] / "golden/unilm_masks.npz"
"""Masks and segments of microsoft/unilm (unilm-v1, MIT)."""
SPECIAL = SpecialTokens(size=100, pad=96, cls=97, sep=98, mask=99, specials=frozenset({96, 97, 98, 99}))
CONTEXTS = tuple(SEGMENTS)


def sample(context: str, *documents: int, sequence: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    """Return a sample of documents with these numbers of tokens."""
    rng = np.random.default_rng(seed)
    objective = OrderedMaskedLM(context=context)  # type: ignore[arg-type]  # one of the four
    slices = [DocumentSlice(rng.integers(0, 96, length), slots=3) for length in documents]
    arrays = objective.make_sample(slices, SampleContext(SPECIAL, rng, sequence, True))
    objective.batch_spec(sequence, True).check(arrays, maker="it")
    return arrays


def attention_mask(arrays: dict[str, np.ndarray]) -> Tensor:
    """Return the attention mask [S, S] of a sample."""
    batch = {name: torch.from_numpy(field)[None] for name, field in arrays.items()}
    return self_mask(batch, "", "ordered").dense[0, 0]


def test_import_from_bert(tmp_path: Path) -> None:
    """Segment embeddings are copied as in the released code: id 1 and id 5 from BERT's second segment, the others from
    its first."""
    reference = make_random_reference(tiny_spec("bert"))
    reference.save_pretrained(tmp_path)
    imported = from_hugging_face(tmp_path, family="unilm")
    assert (imported.spec.name, imported.absent) == ("unilm", {})
    table = reference.bert.embeddings.token_type_embeddings.weight
    assert imported.weights["embed.segment.weight"].equal(table[[0, 1, 0, 0, 0, 1]])

    model = Model(imported.spec).eval()
    model.load_state_dict(imported.weights)
    arrays = sample("bidirectional", 9)
    batch = {name: torch.from_numpy(field)[None] for name, field in arrays.items()}
    with torch.no_grad():
        logits = model.logits(batch)
        expected = reference(batch["tokens"], attention_mask=batch["document_ids"], token_type_ids=batch["segments"])
    is_token = arrays["document_ids"] > 0
    assert (logits["mlm"] - expected.prediction_logits)[0, is_token].abs().max() <= 1e-5
    assert (logits["next-sentence"] - expected.seq_relationship_logits).abs().max() <= 1e-5


@pytest.mark.parametrize(("context", "golden_name"), [("sequence-to-sequence", "s2s"), ("left-to-right", "l2r")])
def test_mask_equals_the_released_code(context: str, golden_name: str) -> None:
    """The released code's sample has a source of four tokens and a target of three."""
    golden = np.load(GOLDEN)
    golden_length = int((golden[f"train.{golden_name}.own_segments.input_ids"] > 0).sum())
    for seed in range(200):  # until the target starts at the same position
        arrays = sample(context, 7, sequence=14, seed=seed)
        separators = np.flatnonzero(arrays["tokens"] == SPECIAL.sep)
        if context == "left-to-right" or separators[0] == 5:
            break
    else:
        raise AssertionError("no such border")
    length = golden_length if context == "sequence-to-sequence" else golden_length - 1  # one text has one separator
    expected = torch.from_numpy(golden[f"train.{golden_name}.own_segments.mask"]).bool()[:length, :length]
    assert attention_mask(arrays)[:length, :length].equal(expected)
    assert (
        arrays["segments"][:length].tolist()
        == golden[f"train.{golden_name}.own_segments.segment_ids"][:length].tolist()
    )


@pytest.mark.parametrize("context", CONTEXTS)
def test_mask_by_context(context: str) -> None:
    arrays = sample(context, 6, 9)
    mask, documents, segments = (
        attention_mask(arrays),
        arrays["documents" if "documents" in arrays else "document_ids"],
        arrays["segments"],
    )
    for query in range(24):
        for key in range(24):
            if not documents[query]:
                continue
            same = documents[query] == documents[key]
            source = segments[key] == 4
            is_allowed = {
                "bidirectional": True,
                "left-to-right": key <= query,
                "right-to-left": key >= query,
                "sequence-to-sequence": source or (segments[query] == 5 and key <= query),
            }[context]
            assert bool(mask[query, key]) == (same and is_allowed)


def test_samples_fit_the_sequence() -> None:
    objective, rng = OrderedMaskedLM(context="sequence-to-sequence"), np.random.default_rng(0)
    window = objective.sequence_window(32, True)
    assert (window.stride, window.slots) == (29, 3)
    for _ in range(500):
        stream, documents = window.stride, []
        while stream > 0:
            length = int(rng.integers(1, 12))
            slots = max(0, min(3, stream - length))
            documents.append(DocumentSlice(rng.integers(0, 96, min(length, stream)), slots=slots))
            stream -= min(length, stream) + slots
        arrays = objective.make_sample(documents, SampleContext(SPECIAL, rng, 32, True))
        objective.batch_spec(32, True).check(arrays, maker="it")
        assert len(set(arrays["document_ids"]) - {0}) == len(documents)


def test_mixture_of_the_paper() -> None:
    objective = OBJECTIVES["unilm"]
    shares = {task.label: task.share.at(0) for task in objective.tasks}
    assert sum(shares.values()) == pytest.approx(1)
    assert [*shares.values()] == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])
    # Section 2.3 as well: 80% of picks are one token, the others two or three consecutive ones.
    masked = [objective.tasks[0].objective.masked, *(task.objective for task in objective.tasks[1:])]
    assert {(task.hide, task.length_weights, task.rate) for task in masked} == {("token-ngrams", (0.8, 0.1, 0.1), 0.15)}
    assert {(task.show, task.mask_token_prob, task.random_token_prob, task.annotations) for task in masked} == {
        ("tokens", 0.8, 0.1, ())
    }
    assert tuple(task.context for task in masked) == ("bidirectional", "sequence-to-sequence", *CONTEXTS[1:3])
    assert {name for task in objective.tasks[1:] for name in task.objective.losses} == {"mlm"}
    assert set(objective.tasks[0].objective.losses) == {"mlm", "next-sentence"}


def reference(model_spec: ModelSpec, weights: dict[str, Tensor]) -> transformers.PreTrainedModel:
    spec = replace(model_spec, family=BERT)
    config = transformers.BertConfig(**config_values(COUNTERPART, spec) | {"type_vocab_size": 6})
    config._attn_implementation = "eager"
    model = transformers.BertForPreTraining(config)
    model.load_state_dict(export_weights(COUNTERPART.rules, spec, weights), strict=False)
    model.tie_weights()
    return model.eval()


def differences(context: str) -> tuple[float, float]:
    """Return the largest difference of logits, and of the gradient of the token table, from a BERT that is given the
    mask."""
    model = tiny_model("unilm")
    bert = reference(model.spec, {name: weight.detach() for name, weight in model.named_parameters()})
    arrays = sample(context, 15)
    batch = {name: torch.from_numpy(field)[None] for name, field in arrays.items()}
    mask = torch.where(attention_mask(arrays), 0.0, torch.finfo(torch.float32).min)[None, None]
    out = bert(
        input_ids=batch["tokens"],
        token_type_ids=batch["segments"],
        position_ids=batch["positions"],
        attention_mask=mask,
    )
    is_token = batch["document_ids"] > 0
    logits = (model.logits(batch)["mlm"][is_token] - out.prediction_logits[is_token]).abs().max()

    labels = torch.full_like(batch["tokens"], IGNORED)
    is_label = batch["labels"] != IGNORED
    labels[0, batch["masked_positions"][is_label]] = batch["labels"][is_label]
    expected = torch.nn.functional.cross_entropy(out.prediction_logits[0], labels[0])
    loss, count = model({name: field for name, field in batch.items() if name != "next_sentence"}).losses["mlm"]
    (gradient,) = torch.autograd.grad(loss / count, model.embed.token.weight)
    (expected_gradient,) = torch.autograd.grad(expected, bert.bert.embeddings.word_embeddings.weight)
    return logits.item(), (gradient[: model.spec.vocabulary] - expected_gradient).abs().max().item()


@pytest.mark.parametrize("context", CONTEXTS)
def test_equals_bert_with_the_mask(context: str) -> None:
    assert max(differences(context)) <= 1e-5


def test_right_to_left_is_reversed_left_to_right() -> None:
    model = tiny_model("unilm")
    arrays = sample("left-to-right", 15, sequence=17)
    batch = {name: torch.from_numpy(field)[None] for name, field in arrays.items()}
    backward = {
        **{name: batch[name].flip(1) for name in ("tokens", "segments", "positions", "document_ids")},
        "order": torch.arange(17).flip(0)[None],
    }
    torch.testing.assert_close(model.logits(backward)["mlm"].flip(1), model.logits(batch)["mlm"], rtol=0, atol=1e-5)
