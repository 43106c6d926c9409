"""Preparation of prompts: texts in the form of training, and the kind of a prompt."""

# S sequence, B batch

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from megaptm.config.uses import Use, uses
from megaptm.errors import UserError
from megaptm.inference.loaded_model import LoadedModel
from megaptm.objectives.objective import Prompt
from megaptm.tokenizers import Tokenizer

NUMBERED = (
    "the prompt needs holes, numbered from 0 in their order, for the model to fill: "
    "'The <extra_id_0> sat on the <extra_id_1>.'"
)


def uses_of(loaded: LoadedModel) -> tuple[Use, ...]:
    """Return the uses of the model, the default first."""
    return uses(loaded.spec, loaded.prompts)


def require(loaded: LoadedModel, way: Use) -> None:
    """Raise UserError if the model does not support this use."""
    if loaded.spec.family.reads_images:
        raise UserError(f"{loaded.spec.name} reads images, and cannot {way}: `megaptm evaluate` says how well it does.")
    if way not in (found := uses_of(loaded)):
        stacks, other = " and ".join(loaded.spec.family.stacks), " or ".join(found or ("encode",))
        how = "" if found else " (`megaptm.load(RUN).encode(texts)` in Python)"
        raise UserError(f"{loaded.spec.name} is {stacks}, which cannot {way}: let it {other}{how}.")


def use_of(loaded: LoadedModel, prompt: str) -> Use:
    """Return the use for a prompt: fill if it has holes that the objective knows, else the default one."""
    found = uses_of(loaded) or ("guess",)
    if "generate" in found and "fill" in found:
        return "generate" if read_prompt(loaded, prompt)[0] == "text" else "fill"
    return found[0]


def stack_of_words(loaded: LoadedModel) -> str:
    """Return the stack that generates tokens."""
    return loaded.spec.readings("lm")[0].stack


def fields_of_texts(loaded: LoadedModel, rows: Sequence[list[int]]) -> dict[str, Tensor]:
    """Return the input fields [B, S] of the first stack, and `task_ids` [B]; `rows`: ids with special tokens."""
    task, inputs = loaded.config.built_objective, loaded.spec.family.inputs
    longest = max(map(len, rows))

    def padded(columns: Sequence[Sequence[int] | np.ndarray]) -> Tensor:
        return torch.tensor([[*column, *[0] * (longest - len(column))] for column in columns])

    told = [task.text_fields(len(row)) for row in rows]
    fields = {"tokens": padded(rows)}
    read = {
        "segments": "segment" in inputs,
        "order": loaded.spec.family.first_block.ordered,
        "global_tokens": any("global_tokens" in one for one in told),
    }
    for name in (name for name, reads in read.items() if reads):
        fields[name] = padded([one.get(name, np.zeros(len(row), int)) for one, row in zip(told, rows, strict=True)])
    if "task" in inputs:
        fields["task_ids"] = torch.tensor([int(one.get("task_ids", 0)) for one in told])
    if any(len(row) < longest for row in rows):
        fields["document_ids"] = padded([[1] * len(row) for row in rows])
    return {name: field.to(loaded.device) for name, field in fields.items()}


def text_ids(loaded: LoadedModel, prompt: str) -> list[int]:
    """Return the ids of a prompt of plain text."""
    ids: list[int] = loaded.tokenizer.encode(prompt).tolist()
    if not ids:
        raise UserError("the prompt is empty: a model goes on from a text, or answers it, so give it at least a word.")
    return ids


def read_prompt(loaded: LoadedModel, prompt: str) -> tuple[Prompt, list[int]]:
    """Return the kind of a prompt among those that the model accepts, and its ids."""
    special, tokenizer, prompts = loaded.tokenizer.special, loaded.tokenizer, loaded.prompts
    holes = {"masks": () if special.blank is None else (special.blank,), "sentinels": special.sentinels}
    for kind in (one for one in prompts if one != "text"):
        ids = ids_with(tokenizer, prompt, holes[kind])
        found = [id_ for id_ in ids if id_ in holes[kind]]
        if kind == "sentinels" and found != [*special.sentinels[: len(found)]]:
            raise UserError(NUMBERED)
        if found:
            return kind, ids
    if "text" in prompts or not prompts:
        return "text", text_ids(loaded, prompt)
    if not holes[prompts[0]]:
        raise UserError(f"{loaded.tokenizer_folder} has no {prompts[0]}, so there is nothing to fill.")
    if prompts[0] == "sentinels":
        raise UserError(NUMBERED)
    mask = tokenizer.name(*holes["masks"])
    raise UserError(f"the prompt needs a {mask} for the model to fill: 'The {mask} sat on the mat.'")


def prepare_prompt(loaded: LoadedModel, kind: Prompt, ids: list[int], tokens: int) -> tuple[list[int], list[int], int]:
    """Return encoder ids, initial decoder ids, and the largest number of output tokens. A decoder alone starts with the
    whole prompt."""
    special, longest, stack = loaded.tokenizer.special, loaded.spec.longest, stack_of_words(loaded)
    task = loaded.config.built_objective.of_prompt(kind)
    text = task.with_special_tokens(ids, special)
    alone = loaded.spec.family.stacks[stack].cross is None
    decoder_ids = text if alone else special.ids_of(task.decoder_start)
    if longest is not None:
        if len(text) > longest:
            raise UserError(f"the prompt has {len(text)} tokens, the model reads {longest}: shorten it.")
        tokens = min(tokens, loaded.spec.context_of(stack) - len(decoder_ids) + 1)
    return text, decoder_ids, tokens


def ids_with(tokenizer: Tokenizer, text: str, wanted: tuple[int, ...]) -> list[int]:
    """Return the ids of a text in which names of these special tokens stand for the tokens; all else is plain text."""
    ids = {tokenizer.name(id_): id_ for id_ in wanted}
    # Longest first: <extra_id_1> must not match in <extra_id_10>.
    names = "|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True))
    parts = re.split(f"({names})", text) if names else [text]
    # RoBERTa's mask token absorbs the space before it, as the masked token did.
    takes_space = {token["content"] for token in tokenizer.content.get("added_tokens", ()) if token.get("lstrip")}
    nexts = [*parts[1:], ""]
    parts = [part.rstrip() if after in takes_space else part for part, after in zip(parts, nexts, strict=True)]
    return [id_ for part in parts for id_ in ([ids[part]] if part in ids else tokenizer.encode(part).tolist())]
