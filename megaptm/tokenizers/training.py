"""Learn a vocabulary from text, with the special tokens of a published tokenizer.

The same texts give the same vocabulary and ids on any machine and with any number of threads, so that building a corpus
is reproducible.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

from megaptm.errors import UserError, nearest_name_advice
from megaptm.tokenizers.kinds import KINDS, TokenizerKind, VocabularyRequest
from megaptm.tokenizers.special import CONFIG_KEYS
from megaptm.tokenizers.special_sets import SPECIALS, SpecialSet
from megaptm.tokenizers.tokenizer import GENERAL_CLASS, Tokenizer


def train_tokenizer_on_texts(
    kind: str,
    texts: Iterable[str],
    *,
    vocabulary: int,
    specials: str | None = None,
    lowercase: bool | None = None,
    sentinels: int | None = None,
    digits: bool | None = None,
) -> Tokenizer:
    """Train a tokenizer with at most `vocabulary` ids, including special tokens; fewer for a small text.

    - `specials`: one of `SPECIALS`.
    - `sentinels`: number of sentinels (T5 has 100).
    - `lowercase`: fold case and accents.
    - `digits`: make each digit a token.

    Defaults are those of the kind and of the special tokens.
    """
    check_tokenizer_options(kind, specials, lowercase, sentinels, digits)
    texts = iter(texts)
    first = next((text for text in texts if text.strip()), None)
    if first is None:
        raise UserError("there is no text to train a tokenizer on: give a source with at least one non-empty document.")
    texts = itertools.chain([first], texts)
    algorithm = KINDS[kind]
    special_set = SPECIALS[specials or algorithm.specials]
    num_sentinels = special_set.sentinels if sentinels is None else sentinels
    request = VocabularyRequest(
        vocabulary=vocabulary,
        first=special_set.first,
        last=(*special_set.last, *(f"<extra_id_{index}>" for index in reversed(range(num_sentinels)))),
        unknown=special_set.roles.get("unknown"),
        lowercase=bool(algorithm.lowercase if lowercase is None else lowercase),
        digits=bool(digits),
    )
    library = algorithm.train(texts, request)
    return _with_specials(library, special_set, algorithm, request)


def check_tokenizer_options(
    kind: str, specials: str | None, lowercase: bool | None, sentinels: int | None, digits: bool | None
) -> None:
    """Raise `UserError` if the options of training a tokenizer are incompatible."""
    if kind not in KINDS:
        raise UserError(f"kind ({kind}) is not known; {nearest_name_advice(kind, KINDS)}")
    if specials is not None and specials not in SPECIALS:
        raise UserError(f"specials ({specials}) is not known; {nearest_name_advice(specials, SPECIALS)}")
    if KINDS[kind].needs_unknown and specials is not None and "unknown" not in SPECIALS[specials].roles:
        usable = ", ".join(name for name, value in SPECIALS.items() if "unknown" in value.roles)
        raise UserError(f"specials ({specials}) has no unknown token, which kind {kind} needs: use one of {usable}.")
    if lowercase is not None and KINDS[kind].lowercase is None:
        usable = ", ".join(name for name, value in KINDS.items() if value.lowercase is not None)
        raise UserError(f"kind {kind} has no option lowercase, because it never changes text: use one of {usable}.")
    if digits is not None and not KINDS[kind].splits_digits:
        usable = ", ".join(name for name, value in KINDS.items() if value.splits_digits)
        raise UserError(f"kind {kind} has no option digits: use one of {usable}.")
    if sentinels is not None and sentinels < 0:
        raise UserError(f"sentinels must be 0 or more, not {sentinels}.")


def _with_specials(library: Any, special_set: SpecialSet, kind: TokenizerKind, request: VocabularyRequest) -> Tokenizer:
    """Return a `Tokenizer` from a trained tokenizer of the library, with special tokens and post-processor."""
    from tokenizers import AddedToken

    for name in (*request.first, *request.last):
        # A mask replaces a token, so it includes the space before it if tokens do.
        is_mask = name == special_set.roles.get("mask")
        library.add_special_tokens(
            [AddedToken(name, lstrip=is_mask and kind.includes_spaces, normalized=False, special=True)]
        )
    if special_set.single is not None:
        library.post_processor = _make_post_processor(library, special_set)
    config: dict[str, Any] = {CONFIG_KEYS[role]: name for role, name in special_set.roles.items()}
    if special_set.pair is not None and ":1" in special_set.pair:
        # Otherwise transformers would drop the segment ids.
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if kind.lowercase is not None:
        config |= {"do_lower_case": request.lowercase, "keep_accents": not request.lowercase}
    if special_set.sentinels:
        config["extra_ids"] = sum(name.startswith("<extra_id_") for name in request.last)
    # GENERAL_CLASS, because family classes rebuild components from the config.
    return Tokenizer(
        json.loads(library.to_str()),
        {"tokenizer_class": GENERAL_CLASS, "clean_up_tokenization_spaces": False, **config},
    )


def _make_post_processor(library: Any, special_set: SpecialSet) -> Any:
    """Return the post-processor of a trained tokenizer: the library's, then one that adds the special tokens around
    texts."""
    from tokenizers import processors

    names = [
        name
        for name in dict.fromkeys(special_set.roles.values())
        if name in f"{special_set.single} {special_set.pair}".split()
    ]
    template = processors.TemplateProcessing(
        single=special_set.single,
        pair=special_set.pair,
        special_tokens=[(name, library.token_to_id(name)) for name in names],
    )
    if library.post_processor is None:
        return template
    # As in RoBERTa and BART, offsets of tokens exclude the space before a word.
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
