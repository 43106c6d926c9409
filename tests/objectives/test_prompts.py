"""Prompts get the special tokens that samples of training have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.objective import SampleContext, SampleObjective
from tests.objectives.samples import SPECIAL, random_slice, split_documents

ENCODER_DECODERS = [
    name
    for name, task in OBJECTIVES.items()
    if isinstance(task, SampleObjective) and "decoder_" in task.batch_spec(64, document_mask=False).streams
]


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_prompt_has_the_special_tokens_of_training(name: str) -> None:
    task, text = OBJECTIVES[name], random_slice(20, 2)
    annotations = {kind: np.array([0, 9], np.int32) for kind in task.annotations}
    sample = task.make_sample(
        [replace(text, annotations=annotations)], SampleContext(SPECIAL, np.random.default_rng(0), 64, True)
    )
    around = task.add_special_tokens([-1], SPECIAL)
    before, after = around[: around.index(-1)], around[around.index(-1) + 1 :]
    (inputs,), (decoder_inputs,) = (
        split_documents(sample),
        split_documents(sample, "decoder_tokens", "decoder_document_ids"),
    )
    assert inputs[: len(before)] == before
    assert inputs[-len(after) :] == after
    start = SPECIAL.ids_of(task.decoder_start)
    assert decoder_inputs[: len(start)] == start
    # The first labels repeat the start tokens; the label after them is the first generated token.
    labels = sample["labels"][sample["labels"] != IGNORED].tolist()
    assert labels[: len(start) - 1] == start[1:]
    assert labels[len(start) - 1] not in start


def test_mixture_has_the_prompts_of_its_tasks() -> None:
    config = {"text-to-text": {"share": 0.5}, "masked-text": {"share": 0.5}}
    assert build_objective(config).prompts == ("text", "sentinels", "masks")


def test_prompt_kind_depends_on_the_noises() -> None:
    assert build_objective({"denoising": {"infill_rate": 0, "mask_rate": 0.2}}).prompts == ("masks",)
    assert build_objective({"denoising": {"infill_rate": 0, "permute_rate": 1}}).prompts == ("text",)


def test_missing_token_is_named() -> None:
    with pytest.raises(UserError, match="the tokenizer has no `begin` token"):
        OBJECTIVES["denoising"].add_special_tokens([5], replace(SPECIAL, begin=None))


def test_prompt_goes_to_the_first_task_of_its_kind() -> None:
    mixture = build_objective({"denoising": {"share": 1}, "span-corruption": {"share": 1}, "prefix-lm": {"share": 1}})
    names = {kind: mixture.task_for_prompt(kind).name for kind in ("masks", "sentinels", "text")}
    assert names == {"masks": "denoising", "sentinels": "span-corruption", "text": "prefix-lm"}
    single = OBJECTIVES["causal-lm"]
    assert single.task_for_prompt("masks") is single
