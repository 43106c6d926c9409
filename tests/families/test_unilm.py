"""UniLM: who sees whom in its four kinds of context, beside the authors' masks and a BERT that is given them."""

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
from megaptm.hub.config_fields import config_values
from megaptm.hub.huggingface import from_hugging_face
from megaptm.hub.tensor_rules import export_weights
from megaptm.layers.mask import self_mask
from megaptm.models import build_model
from megaptm.objectives import OBJECTIVES, SpecialTokens
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.ordered import SEGMENTS, OrderedMaskedLM
from megaptm.spec import ModelSpec
from tests.models.tiny import tiny_model, tiny_spec
from tests.parity.reference import random_reference

GOLDEN = Path(__file__).parents[1] / "golden/unilm_masks.npz"
"""Masks and segments of microsoft/unilm (unilm-v1, MIT)."""
SPECIAL = SpecialTokens(size=100, pad=96, cls=97, sep=98, mask=99, specials=frozenset({96, 97, 98, 99}))
CONTEXTS = tuple(SEGMENTS)


def sample(context: str, *documents: int, sequence: int = 24, seed: int = 0) -> dict[str, np.ndarray]:
    """A row of documents of so many tokens."""
    rng = np.random.default_rng(seed)
    objective = OrderedMaskedLM(context=context)  # type: ignore[arg-type]  # one of the four
    piece = [DocumentSlice(rng.integers(0, 96, length), slots=3) for length in documents]
    made = objective.make(piece, SampleContext(SPECIAL, rng, sequence, True))
    objective.batch(sequence, True).check(made, maker="it")
    return made


def seen(made: dict[str, np.ndarray]) -> Tensor:
    """Booleans [S, S] of a row."""
    batch = {name: torch.from_numpy(field)[None] for name, field in made.items()}
    return self_mask(batch, "", "ordered").dense[0, 0]


def test_its_weights_begin_as_berts_do(tmp_path: Path) -> None:
    """Rows of segments as the authors' code copies them: all begin as those of a first text, and 5 as of a second."""
    theirs = random_reference(tiny_spec("bert"))
    theirs.save_pretrained(tmp_path)
    found = from_hugging_face(tmp_path, family="unilm")
    assert (found.spec.name, found.absent) == ("unilm", {})
    table = theirs.bert.embeddings.token_type_embeddings.weight
    assert found.weights["embed.segment.weight"].equal(table[[0, 1, 0, 0, 0, 1]])

    model = build_model(found.spec).eval()
    model.load_state_dict(found.weights)
    made = sample("bidirectional", 9)
    batch = {name: torch.from_numpy(field)[None] for name, field in made.items()}
    with torch.no_grad():
        ours = model.logits(batch)
        said = theirs(batch["tokens"], attention_mask=batch["document_ids"], token_type_ids=batch["segments"])
    real = made["document_ids"] > 0
    assert (ours["mlm"] - said.prediction_logits)[0, real].abs().max() <= 1e-5
    assert (ours["next-sentence"] - said.seq_relationship_logits).abs().max() <= 1e-5


@pytest.mark.parametrize(("context", "theirs"), [("sequence-to-sequence", "s2s"), ("left-to-right", "l2r")])
def test_a_row_is_seen_as_the_authors_code_says(context: str, theirs: str) -> None:
    """Theirs has a source of four tokens and a target of three."""
    golden = np.load(GOLDEN)
    real = int((golden[f"train.{theirs}.own_segments.input_ids"] > 0).sum())
    for seed in range(200):  # until the border falls as theirs
        made = sample(context, 7, sequence=14, seed=seed)
        separators = np.flatnonzero(made["tokens"] == SPECIAL.sep)
        if context == "left-to-right" or separators[0] == 5:
            break
    else:
        raise AssertionError("no such border")
    length = real if context == "sequence-to-sequence" else real - 1  # one text has one separator
    expected = torch.from_numpy(golden[f"train.{theirs}.own_segments.mask"]).bool()[:length, :length]
    assert seen(made)[:length, :length].equal(expected)
    assert made["segments"][:length].tolist() == golden[f"train.{theirs}.own_segments.segment_ids"][:length].tolist()


@pytest.mark.parametrize("context", CONTEXTS)
def test_who_sees_whom(context: str) -> None:
    made = sample(context, 6, 9)
    mask, documents, segments = (
        seen(made),
        made["documents" if "documents" in made else "document_ids"],
        made["segments"],
    )
    for query in range(24):
        for key in range(24):
            if not documents[query]:
                continue
            same = documents[query] == documents[key]
            source = segments[key] == 4
            may = {
                "bidirectional": True,
                "left-to-right": key <= query,
                "right-to-left": key >= query,
                "sequence-to-sequence": source or (segments[query] == 5 and key <= query),
            }[context]
            assert bool(mask[query, key]) == (same and may)


def test_a_row_of_two_texts_is_never_too_long() -> None:
    objective, rng = OrderedMaskedLM(context="sequence-to-sequence"), np.random.default_rng(0)
    window = objective.cut(32, True)
    assert (window.stride, window.slots) == (29, 3)
    for _ in range(500):
        stream, piece = window.stride, []
        while stream > 0:
            length = int(rng.integers(1, 12))
            slots = max(0, min(3, stream - length))
            piece.append(DocumentSlice(rng.integers(0, 96, min(length, stream)), slots=slots))
            stream -= min(length, stream) + slots
        made = objective.make(piece, SampleContext(SPECIAL, rng, 32, True))
        objective.batch(32, True).check(made, maker="it")
        assert len(set(made["document_ids"]) - {0}) == len(piece)


def test_the_mixture_is_the_papers() -> None:
    objective = OBJECTIVES["unilm"]
    shares = {task.label: task.share.at(0) for task in objective.tasks}
    assert sum(shares.values()) == pytest.approx(1)
    assert [*shares.values()] == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])
    # Section 2.3 as well: one token in 80 of 100 picks, two or three that follow each other in the others.
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
    theirs = transformers.BertForPreTraining(config)
    theirs.load_state_dict(export_weights(COUNTERPART.rules, spec, weights), strict=False)
    theirs.tie_weights()
    return theirs.eval()


def differences(context: str) -> tuple[float, float]:
    """From a BERT that is given the mask: the largest of logits, and of the token table's gradient."""
    model = tiny_model("unilm")
    theirs = reference(model.spec, {name: weight.detach() for name, weight in model.named_parameters()})
    made = sample(context, 15)
    batch = {name: torch.from_numpy(field)[None] for name, field in made.items()}
    mask = torch.where(seen(made), 0.0, torch.finfo(torch.float32).min)[None, None]
    out = theirs(
        input_ids=batch["tokens"],
        token_type_ids=batch["segments"],
        position_ids=batch["positions"],
        attention_mask=mask,
    )
    real = batch["document_ids"] > 0
    logits = (model.logits(batch)["mlm"][real] - out.prediction_logits[real]).abs().max()

    labels = torch.full_like(batch["tokens"], IGNORED)
    asked = batch["labels"] != IGNORED
    labels[0, batch["masked_positions"][asked]] = batch["labels"][asked]
    expected = torch.nn.functional.cross_entropy(out.prediction_logits[0], labels[0])
    loss, count = model({name: field for name, field in batch.items() if name != "next_sentence"}).losses["mlm"]
    (ours,) = torch.autograd.grad(loss / count, model.embed.token.weight)
    (wanted,) = torch.autograd.grad(expected, theirs.bert.embeddings.word_embeddings.weight)
    return logits.item(), (ours[: model.spec.vocabulary] - wanted).abs().max().item()


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_bert_that_is_given_the_mask_says_the_same(context: str) -> None:
    assert max(differences(context)) <= 1e-5


def test_right_to_left_is_left_to_right_of_the_text_reversed() -> None:
    model = tiny_model("unilm")
    made = sample("left-to-right", 15, sequence=17)
    batch = {name: torch.from_numpy(field)[None] for name, field in made.items()}
    backward = {
        **{name: batch[name].flip(1) for name in ("tokens", "segments", "positions", "document_ids")},
        "order": torch.arange(17).flip(0)[None],
    }
    torch.testing.assert_close(model.logits(backward)["mlm"].flip(1), model.logits(batch)["mlm"], rtol=0, atol=1e-5)
