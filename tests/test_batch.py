"""A sample with fewer fields than its batch: padding where a model reads, nothing asked where it is asked."""

import numpy as np
import pytest

from megaptm.batch import IGNORED, INPUT_FIELDS, BatchSpec, Field, fields

READS = ("tokens", "segments", "positions", "document_ids", "order", "global_tokens")
SPEC = BatchSpec(
    {"": 4, "right_": 4},
    fields((4,), *READS, *(f"right_{name}" for name in READS), "labels", "masked_positions")
    | {"uniforms": Field((4,), "float32")}
    | fields((4,), "span_left", "span_right", "span_offset")
    | fields((), "task_ids", "reset_state", "backward")
    | dict.fromkeys(("sentence_order", "count_of_tokens", "next_sentence"), Field(())),
)


@pytest.mark.parametrize("label", ["sentence_order", "count_of_tokens", "next_sentence"])
def test_a_label_that_is_absent_is_not_asked_whatever_it_is_called(label):
    assert SPEC.pad_sample({}, pad=9)[label] == IGNORED


@pytest.mark.parametrize("prefix", ["", "right_"])
def test_what_a_model_reads_is_padding(prefix):
    made = SPEC.pad_sample({f"{prefix}tokens": np.array([5, 6])}, pad=9)
    assert made[f"{prefix}tokens"].tolist() == [5, 6, 9, 9]
    assert made[f"{prefix}document_ids"].tolist() == [1, 1, 0, 0]
    assert made[f"{prefix}positions"].tolist() == [0, 1, 2, 3]
    assert made[f"{prefix}segments"].tolist() == made[f"{prefix}order"].tolist() == [0, 0, 0, 0]
    assert made["masked_positions"].tolist() == made["uniforms"].tolist() == [0, 0, 0, 0]
    assert made["task_ids"] == made["reset_state"] == made["backward"] == 0
    assert made["labels"].tolist() == [IGNORED] * 4
    assert set(INPUT_FIELDS) <= SPEC.fields.keys()


def test_shorter_rows_of_a_vocabulary_without_padding_are_padded_too():
    wanted = BatchSpec({"": 6}, fields((6,), "tokens", "labels"))
    wide = wanted.pad_sample({"tokens": np.arange(1, 4), "labels": np.arange(1, 4)}, pad=None)
    assert wide["tokens"].tolist() == [1, 2, 3, 0, 0, 0]
    assert wide["labels"].tolist() == [1, 2, 3, *[IGNORED] * 3]
