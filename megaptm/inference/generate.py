"""Text from a model: a decoder continues a prompt, an encoder-decoder fills holes, an encoder guesses masks, and so
does ELECTRA's generator."""

# S sequence, B batch, H heads, K head width, V vocabulary

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from megaptm.errors import UserError
from megaptm.inference.loaded_model import LoadedModel
from megaptm.layers.attention import Attend
from megaptm.layers.layer import Layer, Stack
from megaptm.objectives.objective import Prompt
from megaptm.tokenizers import Tokenizer

ASKED = {
    ("decoder",): "generate",
    ("encoder", "decoder"): "fill",
    **dict.fromkeys((("encoder",), ("generator",), ("generator", "discriminator")), "guess"),
}
"""Stacks -> what such a model can be asked for."""

NUMBERED = (
    "the prompt needs holes, numbered from 0 in their order, for the model to fill: "
    "'The <extra_id_0> sat on the <extra_id_1>.'"
)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 0.8
    """Logits are divided by it; 0 takes the likeliest token."""
    top_k: int = 50
    """Only so many of the likeliest tokens are drawn from; 0: all."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise UserError(f"top-k ({self.top_k}) must be 0 or more.")
        if self.temperature and not 1e-3 <= self.temperature <= 1e3:
            raise UserError(f"temperature ({self.temperature}) must be 0, or from 0.001 to 1000.")
        if not -(1 << 63) <= self.seed < 1 << 63:
            raise UserError(f"seed ({self.seed}) must be a number of 64 bits.")


class Draw:
    """Draws one token after another; on the CPU, so that a seed says the same thing on any device."""

    def __init__(self, sampling: Sampling, tokenizer: Tokenizer) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(sampling.seed)
        special = tokenizer.special
        # The model's table may be larger than the tokenizer's, and no text has padding in it.
        self.most = tokenizer.vocabulary
        self.never = [id_ for id_ in (special.pad, special.begin) if id_ is not None and id_ != special.end]

    def __call__(self, logits_V: Tensor) -> int:
        logits_V = logits_V[: self.most].float().cpu()
        if not logits_V.isfinite().all():
            raise UserError("the model answers with numbers that are not finite: take another checkpoint (--step).")
        logits_V[self.never] = float("-inf")
        if self.sampling.temperature == 0:
            return int(logits_V.argmax())
        if 0 < self.sampling.top_k < len(logits_V):
            logits_V[logits_V < logits_V.topk(self.sampling.top_k).values[-1]] = float("-inf")
        chances = (logits_V / self.sampling.temperature).softmax(0)
        return int(torch.multinomial(chances, 1, generator=self.generator))


def continue_text(loaded: LoadedModel, prompt: str, *, tokens: int, sampling: Sampling) -> Iterator[str]:
    """A decoder's continuation, piece by piece, until a document's end or so many tokens."""
    require(loaded, "generate")
    ids = loaded.tokenizer.encode(prompt).tolist()
    if not ids:
        raise UserError("the prompt is empty: a model continues text, so give it at least a word.")
    said, told = list(ids), loaded.tokenizer.decode(ids)
    for id_ in continue_ids(loaded, ids, tokens=tokens, draw=Draw(sampling, loaded.tokenizer)):
        said.append(id_)
        text = loaded.tokenizer.decode(said)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # bytes of a character whose rest comes with the next token
            yield text[len(told) :]
            told = text


def continue_ids(loaded: LoadedModel, ids: list[int], *, tokens: int, draw: Draw) -> Iterator[int]:
    """The same in ids. Past the model's context it goes on from the second half of what it has seen."""
    ids, end = list(ids), loaded.tokenizer.special.end
    limit = loaded.spec.longest
    decoder = loaded.model.stack("decoder")
    assert decoder is not None
    with with_cache(decoder) as memory:
        seen: list[int] = []
        for _ in range(tokens):
            if limit is not None and len(seen) + len(ids) > limit:
                ids = [*seen, *ids][-(limit // 2) :]
                seen.clear()
                memory.clear()
            batch = {
                "tokens": torch.tensor([ids], device=loaded.device),
                "positions": torch.arange(len(seen), len(seen) + len(ids), device=loaded.device)[None],
            }
            with torch.inference_mode():
                id_ = draw(loaded.model.logits(batch)["lm"][0, -1])
            if id_ == end:
                return
            yield id_
            seen += ids
            ids = [id_]


class CachedAttend(nn.Module):
    """Attention that keeps the keys and values it was given, so that each token passes through the model once."""

    def __init__(self, attend: Attend, band: int | None) -> None:
        """`band`: how many places it looks back, itself included; None: to the beginning."""
        super().__init__()
        self.attend, self.band = attend, band
        self.past: tuple[Tensor, Tensor] | None = None

    def forward(self, q_SBHK: Tensor, k_SBHK: Tensor, v_SBHK: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is None or (self.band and self.past is None), (
            "only a causal stack without a bias table can be continued token by token"
        )
        if self.past is None:
            self._keep(k_SBHK, v_SBHK)
            return self.attend(q_SBHK, k_SBHK, v_SBHK, mask)
        assert len(q_SBHK) == 1, "one new token sees all that came before; of several, each would see the later ones"
        self._keep(torch.cat([self.past[0], k_SBHK]), torch.cat([self.past[1], v_SBHK]))
        everything = torch.ones(1, 1, 1, len(self.past[0]), dtype=torch.bool, device=q_SBHK.device)
        return self.attend(q_SBHK, *self.past, everything)

    def _keep(self, k_SBHK: Tensor, v_SBHK: Tensor) -> None:
        self.past = (k_SBHK, v_SBHK) if self.band is None else (k_SBHK[-self.band :], v_SBHK[-self.band :])


class OnceMapped(nn.Module):
    """A linear map of what stays the same, such as of what an encoder gave: done once."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole
        self.found: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.found is None:
            self.found = self.whole(x)
        return self.found


@dataclass(frozen=True)
class KeyValueCache:
    """What the layers of a stack remember."""

    layers: list[CachedAttend]

    def clear(self) -> None:
        for layer in self.layers:
            layer.past = None

    def follow(self, rows_B: Tensor) -> None:
        """Go on with these rows of what was seen."""
        for layer in self.layers:
            if layer.past is not None:
                keys, values = layer.past
                layer.past = keys.index_select(1, rows_B), values.index_select(1, rows_B)


@contextmanager
def with_cache(stack: Stack) -> Iterator[KeyValueCache]:
    """Within the block the stack's self-attention remembers what it has seen, and what it attends to besides stays."""
    layers = [layer for layer in stack.values() if isinstance(layer, Layer)]
    bands = [stack.size.band_width if stack.block.at(n).attention == "banded" else None for n in stack.numbers]
    memory = KeyValueCache(
        [CachedAttend(layer.attention.attend, band) for layer, band in zip(layers, bands, strict=True)]
    )
    try:
        for layer, remember in zip(layers, memory.layers, strict=True):
            layer.attention.attend = remember  # type: ignore[assignment]  # takes and gives the same tensors
            if stack.block.cross is not None:
                layer.cross.kv = OnceMapped(layer.cross.kv)  # type: ignore[assignment]  # so does this
        yield memory
    finally:
        for layer, remember in zip(layers, memory.layers, strict=True):
            layer.attention.attend = remember.attend
            if stack.block.cross is not None and isinstance(mapped := layer.cross.kv, OnceMapped):
                layer.cross.kv = mapped.whole  # type: ignore[assignment]


def fill_holes(loaded: LoadedModel, prompt: str, *, tokens: int, sampling: Sampling) -> str:
    """The prompt with an encoder-decoder's words in the place of its sentinels (T5's `<extra_id_0>` ...);
    or all that it answers to a text, with masks (BART) or as it is."""
    return "".join(text for text, _ in fill_pieces(loaded, prompt, tokens=tokens, sampling=sampling))


def fill_pieces(loaded: LoadedModel, prompt: str, *, tokens: int, sampling: Sampling) -> list[tuple[str, bool]]:
    """The same in pieces, and of each whether the model said it."""
    require(loaded, "fill")
    special, tokenizer = loaded.tokenizer.special, loaded.tokenizer
    kind, ids = read_prompt(loaded, prompt)
    answer = answer_ids(loaded, ids, tokens=tokens, draw=Draw(sampling, tokenizer))
    if kind != "sentinels":
        return [(tokenizer.decode([*answer]), True)]
    holes = [id_ for id_ in ids if id_ in special.sentinels]
    said: list[int] = []
    for id_ in answer:
        if id_ in special.sentinels and id_ not in holes:
            break  # a hole that is not there: what follows is about nothing
        said.append(id_)
    pieces, before, shown = filled(ids, said, holes), [], ""
    found = []
    for part, is_said in pieces:  # decoded with what is before it, on which spaces depend
        before += part
        text = tokenizer.decode(before)
        found.append((text[len(shown) :], is_said))
        shown = text
    return found


def read_prompt(loaded: LoadedModel, prompt: str) -> tuple[Prompt, list[int]]:
    """Which of the prompts that its objective knows an encoder-decoder is given, and its ids."""
    special, tokenizer, prompts = loaded.tokenizer.special, loaded.tokenizer, loaded.config.task.prompts
    holes = {"masks": () if special.blank is None else (special.blank,), "sentinels": special.sentinels}
    for kind in (one for one in prompts if one != "text"):
        ids = _encode(tokenizer, prompt, holes[kind])
        found = [id_ for id_ in ids if id_ in holes[kind]]
        if kind == "sentinels" and found != [*special.sentinels[: len(found)]]:
            raise UserError(NUMBERED)
        if found:
            return kind, ids
    if "text" in prompts:
        if not (ids := tokenizer.encode(prompt).tolist()):
            raise UserError("the prompt is empty: a model answers a text, so give it at least a word.")
        return "text", ids
    if not holes[prompts[0]]:
        raise UserError(f"{loaded.tokenizer_folder} has no {prompts[0]}, so there is nothing to fill.")
    if prompts[0] == "sentinels":
        raise UserError(NUMBERED)
    mask = _name(tokenizer, *holes["masks"])
    raise UserError(f"the prompt needs a {mask} for the model to fill: 'The {mask} sat on the mat.'")


def answer_ids(loaded: LoadedModel, ids: list[int], *, tokens: int, draw: Draw) -> Iterator[int]:
    """What an encoder-decoder answers to a text, until the end or so many tokens."""
    special = loaded.tokenizer.special
    text, said, tokens = asked(loaded, ids, tokens)
    reads, says = (f"{prefix}tokens" for prefix in loaded.spec.family.prefixes.values())
    tokens_BS = torch.tensor([text], device=loaded.device)
    for _ in range(tokens):
        batch = {reads: tokens_BS, says: torch.tensor([said], device=loaded.device)}
        with torch.inference_mode():
            id_ = draw(loaded.model.logits(batch)["lm"][0, -1])
        if id_ == special.end:
            return
        yield id_
        said.append(id_)


def asked(loaded: LoadedModel, ids: list[int], tokens: int) -> tuple[list[int], list[int], int]:
    """A text as an encoder-decoder reads it, what its decoder hears before it speaks, how many tokens it may say."""
    special, longest, task = loaded.tokenizer.special, loaded.spec.longest, loaded.config.task
    text, heard = task.with_special_tokens(ids, special), special.ids_of(task.decoder_start)
    if longest is not None:
        if len(text) > longest:
            raise UserError(f"the prompt has {len(text)} tokens, the model reads {longest}: shorten it.")
        tokens = min(tokens, longest - len(heard) + 1)
    return text, heard, tokens


def filled(ids: list[int], said: list[int], holes: list[int]) -> list[tuple[list[int], bool]]:
    """`ids` with each hole replaced by what was said after its name (nothing, if it was not named), in pieces; and of
    each whether it was said."""
    fillings: dict[int, list[int]] = {hole: [] for hole in holes}
    said = said[next((at for at, id_ in enumerate(said) if id_ in fillings), len(said)) :]
    for id_ in said:
        if id_ in fillings:
            hole = id_
        else:
            fillings[hole].append(id_)
    runs = groupby(ids, key=lambda id_: id_ if id_ in fillings else None)
    return [([*run], False) if hole is None else (fillings[hole], True) for hole, run in runs]


@dataclass(frozen=True)
class Guess:
    token: str
    chance: float


def guess_masks(loaded: LoadedModel, prompt: str, *, guesses: int) -> list[list[Guess]]:
    """For each mask in the prompt, the likeliest tokens of an encoder, or a generator."""
    require(loaded, "guess")
    special, tokenizer = loaded.tokenizer.special, loaded.tokenizer
    if special.mask is None or special.cls is None or special.sep is None:
        raise UserError(f"{loaded.tokenizer_folder} has no mask, cls or sep token, so there is nothing to guess.")
    mask = _name(tokenizer, special.mask)
    ids = [special.cls, *_encode(tokenizer, prompt, (special.mask,)), special.sep]
    if special.mask not in ids:
        raise UserError(f"the prompt needs a {mask} for the model to guess: 'The {mask} sat on the mat.'")
    if loaded.spec.longest is not None and len(ids) > loaded.spec.longest:
        raise UserError(f"the prompt has {len(ids)} tokens, the model reads {loaded.spec.longest}: shorten it.")
    tokens = torch.tensor([ids], device=loaded.device)
    with torch.inference_mode():
        logits_SV = loaded.model.logits({"tokens": tokens, "segments": torch.zeros_like(tokens)})["mlm"][0]
    chances_AV = logits_SV[tokens[0] == special.mask, : tokenizer.vocabulary].float().softmax(-1)
    return [
        [Guess(_name(tokenizer, id_), chance) for chance, id_ in zip(*map(Tensor.tolist, best), strict=True)]
        for best in (row.topk(min(guesses, len(row))) for row in chances_AV)
    ]


def _encode(tokenizer: Tokenizer, text: str, wanted: tuple[int, ...]) -> list[int]:
    """Ids of a text in which the names of these special tokens mean the tokens; elsewhere text is only ever text."""
    ids = {_name(tokenizer, id_): id_ for id_ in wanted}
    # The longest first: <extra_id_1> must not be found in <extra_id_10>.
    names = "|".join(re.escape(name) for name in sorted(ids, key=len, reverse=True))
    parts = re.split(f"({names})", text) if names else [text]
    # A mask of RoBERTa's takes the space before it, as the token did that it hides.
    takes_space = {token["content"] for token in tokenizer.content.get("added_tokens", ()) if token.get("lstrip")}
    nexts = [*parts[1:], ""]
    parts = [part.rstrip() if after in takes_space else part for part, after in zip(parts, nexts, strict=True)]
    return [id_ for part in parts for id_ in ([ids[part]] if part in ids else tokenizer.encode(part).tolist())]


def _name(tokenizer: Tokenizer, id_: int) -> str:
    name = tokenizer.library.id_to_token(id_)
    return f"({id_})" if name is None else name  # a gap in the numbering


def require(loaded: LoadedModel, asked: str) -> None:
    stacks = (*loaded.spec.family.stacks,)
    if ASKED.get(stacks) != asked:
        raise UserError(
            f"{loaded.spec.name} is {' and '.join(stacks)}, which cannot {asked}: let it {ASKED.get(stacks, 'encode')}."
        )
