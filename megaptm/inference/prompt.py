"""Preparation of prompts: texts in the form of training, and the kind of a prompt."""

# S sequence, B batch

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from megaptm.config.uses import Use, list_uses
from megaptm.errors import UserError
from megaptm.inference.trained_model import TrainedModel
from megaptm.objectives.objective import Prompt
from megaptm.tokenizers import Tokenizer

HOLES_MESSAGE = (
    "the prompt needs holes for the model to fill, numbered from 0 in their order: "
    "'The <extra_id_0> sat on the <extra_id_1>.'"
)


def model_uses(loaded: TrainedModel) -> tuple[Use, ...]:
    """Return the uses of the model that prompts allow, the default first."""
    return list_uses(loaded.spec, loaded.prompts)


def require_use(loaded: TrainedModel, use: Use) -> None:
    """Raise UserError if the model does not support this use of a prompt."""
    if not loaded.spec.family.reads_text:
        raise UserError(f"{loaded.spec.name} does not start from a text and cannot {use}: use `megaptm evaluate`.")
    if use not in (supported := model_uses(loaded)):
        stacks, other = " and ".join(loaded.spec.family.stacks), " or ".join(supported or ("encode",))
        how = "" if supported else " (`megaptm.load(RUN).encode(texts)` in Python)"
        raise UserError(f"{loaded.spec.name} ({stacks}) cannot {use}: use {other}{how}.")


def select_use(loaded: TrainedModel, prompt: str) -> Use:
    """Return the use for a prompt: fill if it has holes that the objective knows, else the default one."""
    supported = model_uses(loaded) or ("guess",)
    if "generate" in supported and "fill" in supported:
        return "generate" if read_prompt(loaded, prompt)[0] == "text" else "fill"
    return supported[0]


def generating_stack(loaded: TrainedModel) -> str:
    """Return the stack of a model that generates tokens."""
    return loaded.spec.head_inputs("lm")[0].stack


def text_batch(loaded: TrainedModel, rows: Sequence[list[int]]) -> dict[str, Tensor]:
    """Return a batch of texts for a model: input fields of the first stack [B, S], and fields with one value per sample
    [B]. `rows`: ids of each text with special tokens."""
    task, family = loaded.config.built_objective, loaded.spec.family
    longest = max(map(len, rows))

    def pad_columns(columns: Sequence[Sequence[int] | np.ndarray]) -> Tensor:
        return torch.tensor([[*column, *[0] * (longest - len(column))] for column in columns])

    task_fields = [task.text_fields(len(row)) for row in rows]
    fields = {"tokens": pad_columns(rows)}
    needed = {
        "segments": family.segments > 0,
        "order": family.first_block.ordered,
        "global_tokens": any("global_tokens" in values for values in task_fields),
    }
    for name in (name for name, is_needed in needed.items() if is_needed):
        fields[name] = pad_columns(
            [values.get(name, np.zeros(len(row), int)) for values, row in zip(task_fields, rows, strict=True)]
        )
    for name in (name for record in family.inputs for name in record.sample_fields):
        fields[name] = torch.tensor([int(values.get(name, 0)) for values in task_fields])
    if any(len(row) < longest for row in rows):
        fields["document_ids"] = pad_columns([[1] * len(row) for row in rows])
    return {name: field.to(loaded.device) for name, field in fields.items()}


def prompt_ids(loaded: TrainedModel, prompt: str) -> list[int]:
    """Return the ids of a prompt of plain text."""
    ids: list[int] = loaded.tokenizer.encode(prompt).tolist()
    if not ids:
        raise UserError("the prompt is empty: give at least one word.")
    return ids


def read_prompt(loaded: TrainedModel, prompt: str) -> tuple[Prompt, list[int]]:
    """Read a prompt: return its kind among those that the model accepts, and its ids."""
    special, tokenizer, prompts = loaded.tokenizer.special, loaded.tokenizer, loaded.prompts
    holes = {
        "masks": () if special.mask_or_sentinel is None else (special.mask_or_sentinel,),
        "sentinels": special.sentinels,
    }
    for kind in (prompt_kind for prompt_kind in prompts if prompt_kind != "text"):
        ids = encode_prompt(tokenizer, prompt, holes[kind])
        present = [id_ for id_ in ids if id_ in holes[kind]]
        if kind == "sentinels" and present != [*special.sentinels[: len(present)]]:
            raise UserError(HOLES_MESSAGE)
        if present:
            return kind, ids
    if "text" in prompts or not prompts:
        return "text", prompt_ids(loaded, prompt)
    if not holes[prompts[0]]:
        raise UserError(
            f"the tokenizer {loaded.tokenizer_folder} has no {prompts[0]}, which a prompt for this model contains: "
            "use the tokenizer that the model was trained with."
        )
    if prompts[0] == "sentinels":
        raise UserError(HOLES_MESSAGE)
    mask = tokenizer.name(*holes["masks"])
    raise UserError(f"the prompt needs a {mask} for the model to fill: 'The {mask} sat on the mat.'")


def prepare_prompt(loaded: TrainedModel, kind: Prompt, ids: list[int], tokens: int) -> tuple[list[int], list[int], int]:
    """Prepare a prompt for generation: return encoder ids, initial decoder ids, and the largest number of output
    tokens. A decoder alone starts with the whole prompt."""
    special, longest, stack = loaded.tokenizer.special, loaded.spec.max_text_length, generating_stack(loaded)
    task = loaded.config.built_objective.task_for_prompt(kind)
    text = task.add_special_tokens(ids, special)
    is_decoder_only = loaded.spec.family.stacks[stack].cross is None
    decoder_ids = text if is_decoder_only else special.ids_of(task.decoder_start)
    if longest is not None:
        if len(text) > longest:
            raise UserError(
                f"the prompt has {len(text)} tokens, more than the {longest} that the model reads: shorten it."
            )
        tokens = min(tokens, loaded.spec.context_of(stack) - len(decoder_ids) + 1)
    return text, decoder_ids, tokens


def encode_prompt(tokenizer: Tokenizer, text: str, special_ids: tuple[int, ...]) -> list[int]:
    """Return the ids of a prompt, in which names of `special_ids` such as `<mask>` stand for these tokens."""
    ids = {tokenizer.name(id_): id_ for id_ in special_ids}
    # Longest first: <extra_id_1> must not match in <extra_id_10>.
    names = "|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True))
    parts = re.split(f"({names})", text) if names else [text]
    # RoBERTa's mask token absorbs the space before it, as the masked token did.
    takes_space = {token["content"] for token in tokenizer.content.get("added_tokens", ()) if token.get("lstrip")}
    nexts = [*parts[1:], ""]
    first, *parts = (part.rstrip() if after in takes_space else part for part, after in zip(parts, nexts, strict=True))
    encoded = [[ids[part]] if part in ids else tokenizer.encode_continuation(part).tolist() for part in parts]
    return [*tokenizer.encode(first).tolist(), *chain(*encoded)]
