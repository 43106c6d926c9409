"""What a prompt becomes is what rows of training hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, build_objective
from megaptm.objectives.objective import SampleContext
from tests.objectives.samples import SPECIAL, random_slice, split_documents

ANSWERED = [name for name, task in OBJECTIVES.items() if "decoder_" in task.batch(64, document_mask=False).streams]


@pytest.mark.parametrize("name", ANSWERED)
def test_a_prompt_stands_among_the_special_tokens_of_training(name: str) -> None:
    task, text = OBJECTIVES[name], random_slice(20, 2)
    places = {kind: np.array([0, 9], np.int32) for kind in task.annotations}
    sample = task.make([replace(text, annotations=places)], SampleContext(SPECIAL, np.random.default_rng(0), 64, True))
    around = task.add_special_tokens([-1], SPECIAL)
    before, after = around[: around.index(-1)], around[around.index(-1) + 1 :]
    (read,), (heard,) = split_documents(sample), split_documents(sample, "decoder_tokens", "decoder_document_ids")
    assert (read[: len(before)], read[-len(after) :]) == (before, after)
    start = SPECIAL.ids_of(task.decoder_start)
    assert heard[: len(start)] == start
    # What is heard after the first token is what was to be said; the first word to say is none of these.
    labels = sample["labels"][sample["labels"] != IGNORED].tolist()
    assert labels[: len(start) - 1] == start[1:]
    assert labels[len(start) - 1] not in start


def test_several_tasks_can_be_asked_as_each_of_them() -> None:
    said = {"text-to-text": {"share": 0.5}, "masked-text": {"share": 0.5}}
    assert build_objective(said).prompts == ("text", "sentinels", "masks")


def test_a_text_that_nothing_hides_in_is_asked_as_it_is() -> None:
    assert build_objective({"denoising": {"infill_rate": 0, "mask_rate": 0.2}}).prompts == ("masks",)
    assert build_objective({"denoising": {"infill_rate": 0, "permute_rate": 1}}).prompts == ("text",)


def test_a_token_that_the_tokenizer_lacks_is_named() -> None:
    with pytest.raises(UserError, match="the tokenizer has no `begin` token"):
        OBJECTIVES["denoising"].add_special_tokens([5], replace(SPECIAL, begin=None))


def test_the_task_of_a_prompt_is_the_first_that_knows_it() -> None:
    several = build_objective({"denoising": {"share": 1}, "span-corruption": {"share": 1}, "prefix-lm": {"share": 1}})
    named = {kind: several.task_for_prompt(kind).name for kind in ("masks", "sentinels", "text")}
    assert named == {"masks": "denoising", "sentinels": "span-corruption", "text": "prefix-lm"}
    alone = OBJECTIVES["causal-lm"]
    assert alone.task_for_prompt("masks") is alone
