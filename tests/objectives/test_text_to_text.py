"""Tasks as text: samples of supervised examples, alone and mixed with span corruption."""

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.data import open_mix
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.objective import Objective, SampleContext
from megaptm.objectives.spans import SpanCorruption
from tests.data.corpora import tiny_corpus
from tests.objectives.samples import SPECIAL, split_documents
from tests.objectives.test_translation import pair

TASK = OBJECTIVES["text-to-text"]
END, PAD = SPECIAL.end, SPECIAL.pad


def epoch_samples(folder, objective: str | Objective, sequence: int = 64):
    mix = open_mix({str(folder): 1}, objective=objective, sequence=sequence, seed=0, special=SPECIAL)
    return [mix.sample(number) for number in range(mix.orders[0].per_epoch)]


def examples(sample) -> list[list[int]]:
    """Return the examples of a sample: inputs and targets without end tokens, joined."""
    sides = zip(split_documents(sample), split_documents(sample, "labels", "decoder_document_ids"), strict=True)
    return [source[:-1] + target[:-1] for source, target in sides]


def test_only_targets_are_predicted():
    example = pair(9, 5)
    sample = TASK.make_sample([example], SampleContext(SPECIAL, np.random.default_rng(0), 32, True))
    TASK.batch_spec(32, document_mask=True).check(sample, maker=TASK.name)
    source, target = np.split(example.tokens.tolist(), [9])
    assert split_documents(sample) == [[*source, END]]
    assert split_documents(sample, "labels", "decoder_document_ids") == [[*target, END]]
    assert split_documents(sample, "decoder_tokens", "decoder_document_ids") == [[PAD, *target]]
    assert (sample["labels"] != IGNORED).sum() == 6


def test_long_examples_are_truncated():
    short = build_objective({"text-to-text": {"max_target_length": 8}})
    example = pair(90, 20)
    sample = short.make_sample([example], SampleContext(SPECIAL, np.random.default_rng(0), 32, True))
    assert split_documents(sample) == [[*example.tokens[:31].tolist(), END]]
    assert split_documents(sample, "labels", "decoder_document_ids") == [[*example.tokens[90:97].tolist(), END]]


def test_packed_samples_hold_complete_examples(tmp_path):
    tiny_corpus(tmp_path, documents=300, lengths=(4, 24), parts=True)
    packed = [example for sample in epoch_samples(tmp_path, "text-to-text") for example in examples(sample)]
    assert len({*map(tuple, packed)}) == len(packed) > 295
    mix = open_mix({str(tmp_path): 1}, objective="causal-lm", sequence=64, seed=0, special=SPECIAL)
    texts = {tuple(tokens.tolist()) for tokens in mix.orders[0].corpus.documents("train")}
    assert {*map(tuple, packed)} <= texts


def test_unpacked_samples_hold_one_example(tmp_path):
    tiny_corpus(tmp_path, documents=40, lengths=(4, 200), parts=True)
    padded = epoch_samples(tmp_path, build_objective({"text-to-text": {"packed": False}}))
    assert len(padded) == 40
    assert all(sample["document_ids"].max() == 1 for sample in padded)
    with pytest.raises(UserError, match=r"fill \(1\) has no effect with packed: false"):
        build_objective({"text-to-text": {"packed": False, "fill": 1}})
    # Packed samples are never empty, even if texts are longer than several samples.
    assert all(sample["document_ids"].max() >= 1 for sample in epoch_samples(tmp_path, "text-to-text"))


def test_corpora_without_parts_use_span_corruption(tmp_path):
    tiny_corpus(tmp_path / "tasks", parts=True, seed=1)
    tiny_corpus(tmp_path / "text", documents=90)
    mix = {str(tmp_path / "tasks"): 1, str(tmp_path / "text"): 1}
    mixed = open_mix(
        mix,
        objective="text-to-text",
        sequence=64,
        seed=0,
        special=SPECIAL,
        size_exponent=1.0,
        size_limits=dict.fromkeys(mix, 60),
    )
    assert [type(source.task.objective) for source in mixed.sources] == [type(TASK), SpanCorruption]
    per_sample = [order.corpus.split("train").samples / order.per_epoch for order in mixed.orders]
    documents = np.array(mixed.quotas) * per_sample
    assert documents[1] / documents[0] == pytest.approx(60 / 40, rel=1e-3)
    short = build_objective({"text-to-text": {"max_target_length": 8}})
    with pytest.raises(
        UserError, match="have 14 positions, more than the 8 of text-to-text: raise `max_target_length`"
    ):
        open_mix(mix, objective=short, sequence=64, seed=0, special=SPECIAL)
    for number in range(40):
        sample = mixed.sample(number)
        mixed.batch_spec.check(sample, maker="mix")
        corrupted = np.isin(sample["labels"], SPECIAL.sentinels).any()
        assert corrupted == (mixed.locate(number).source == 1)
