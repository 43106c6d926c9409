"""Fields that a sample lacks become padding if they are inputs, and ignored labels if they are labels."""

import numpy as np
import pytest

from megaptm.batch import IGNORED, INPUT_FIELDS, BatchField, BatchSpec, batch_fields

READS = ("tokens", "segments", "positions", "document_ids", "order", "global_tokens")
SPEC = BatchSpec(
    {"": 4, "right_": 4},
    batch_fields((4,), *READS, *(f"right_{name}" for name in READS), "labels", "masked_positions")
    | {"uniforms": BatchField((4,), "float32")}
    | batch_fields((4,), "span_left", "span_right", "span_offset")
    | batch_fields((), "reset_state", "backward")
    | {"task_ids": BatchField((), is_input=True)}
    | dict.fromkeys(("sentence_order", "count_of_tokens", "next_sentence"), BatchField(())),
)


@pytest.mark.parametrize("label", ["sentence_order", "count_of_tokens", "next_sentence"])
def test_absent_labels_are_ignored(label):
    assert SPEC.pad_sample({}, pad=9)[label] == IGNORED


@pytest.mark.parametrize("prefix", ["", "right_"])
def test_absent_inputs_are_padding(prefix):
    sample = SPEC.pad_sample({f"{prefix}tokens": np.array([5, 6])}, pad=9)
    assert sample[f"{prefix}tokens"].tolist() == [5, 6, 9, 9]
    assert sample[f"{prefix}document_ids"].tolist() == [1, 1, 0, 0]
    assert sample[f"{prefix}positions"].tolist() == [0, 1, 2, 3]
    assert sample[f"{prefix}segments"].tolist() == sample[f"{prefix}order"].tolist() == [0, 0, 0, 0]
    assert sample["masked_positions"].tolist() == sample["uniforms"].tolist() == [0, 0, 0, 0]
    assert sample["task_ids"] == sample["reset_state"] == sample["backward"] == 0
    assert sample["labels"].tolist() == [IGNORED] * 4
    assert set(INPUT_FIELDS) <= SPEC.fields.keys()


def test_padding_without_a_padding_token():
    spec = BatchSpec({"": 6}, batch_fields((6,), "tokens", "labels"))
    sample = spec.pad_sample({"tokens": np.arange(1, 4), "labels": np.arange(1, 4)}, pad=None)
    assert sample["tokens"].tolist() == [1, 2, 3, 0, 0, 0]
    assert sample["labels"].tolist() == [1, 2, 3, *[IGNORED] * 3]
