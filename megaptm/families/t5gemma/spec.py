"""Token table of T5Gemma's encoder."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.spec import InputSpec


@dataclass(frozen=True, kw_only=True)
class EncoderTokenInput(InputSpec):
    """Token table that only the encoder reads. The decoder's input and output share the common token table."""

    name = "encoder_token"
    module = "megaptm.models.embed:own_token_table"
    stack = "encoder"
