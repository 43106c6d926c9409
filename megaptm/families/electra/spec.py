"""Options of the discriminator's input (ELECTRA, arXiv:2003.10555)."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.spec import SampledInput


@dataclass(frozen=True, kw_only=True)
class GeneratorInput(SampledInput):
    """Input of ELECTRA's discriminator: text whose masked tokens are replaced by tokens sampled from a generator
    (section 2)."""

    sampler = "megaptm.families.electra.sampling:ReplacedTokenSampler"
