"""The catalogue of families by name: text families, recurrent families (data parallelism only), families that read
images, and word vectors (no layers)."""

from megaptm.errors import UserError
from megaptm.families.albert import ALBERT
from megaptm.families.bart import BART
from megaptm.families.bert import BERT
from megaptm.families.bigbird import BIGBIRD
from megaptm.families.deberta import DEBERTA, DEBERTA_V2, DEBERTA_V3
from megaptm.families.distilbert import DISTILBERT, TINYBERT
from megaptm.families.electra import ELECTRA
from megaptm.families.ernie import ERNIE, ERNIE_2
from megaptm.families.gpt import GPT1, GPT2, GPT3, GPT3_BANDED
from megaptm.families.led import LED
from megaptm.families.longformer import LONGFORMER
from megaptm.families.macbert import MACBERT
from megaptm.families.own import refuse_broken
from megaptm.families.palm import PALM
from megaptm.families.recurrent import RECURRENT
from megaptm.families.reformer import REFORMER, REFORMER_NOVEL
from megaptm.families.roberta import ROBERTA
from megaptm.families.spanbert import SPANBERT
from megaptm.families.t5 import MT5, T5, T5_V1_1
from megaptm.families.transformer import TRANSFORMER
from megaptm.families.transformer_xl import TRANSFORMER_XL, TRANSFORMER_XL_BYTES
from megaptm.families.unilm import UNILM
from megaptm.families.vision import VISION
from megaptm.families.words import WORDS, WordFamily
from megaptm.families.xlnet import XLNET
from megaptm.plugins import is_plugin, load_plugin
from megaptm.spec import Family

CATALOGUE: dict[str, Family] = {
    family.name: family
    for family in (
        TRANSFORMER,
        GPT1,
        GPT2,
        GPT3,
        GPT3_BANDED,
        PALM,
        BERT,
        ROBERTA,
        ALBERT,
        SPANBERT,
        MACBERT,
        DEBERTA,
        DEBERTA_V2,
        DEBERTA_V3,
        ELECTRA,
        ERNIE,
        ERNIE_2,
        T5,
        T5_V1_1,
        MT5,
        BART,
        TRANSFORMER_XL,
        TRANSFORMER_XL_BYTES,
        XLNET,
        UNILM,
        DISTILBERT,
        TINYBERT,
        LONGFORMER,
        LED,
        BIGBIRD,
        REFORMER,
        REFORMER_NOVEL,
    )
}

FAMILIES: dict[str, Family | WordFamily] = {**CATALOGUE, **RECURRENT, **VISION, **WORDS}
"""All families, in the order in which they are listed."""


def find_family(name: str) -> Family | WordFamily | None:
    """Return a built-in family, or the user's own, `package.module:NAME`; None if the name is unknown.

    Raises UserError if the user's own family cannot be loaded.
    """
    if not is_plugin(name):
        return FAMILIES.get(name)
    found = load_plugin(name, "model.family", "family")
    if not isinstance(found, Family | WordFamily):
        raise UserError(f"model.family: `{name}` is not a `megaptm.spec.Family`: correct the name.")
    refuse_broken(found, name)
    return found
