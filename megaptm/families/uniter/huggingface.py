"""Counterpart of UNITER (arXiv:1909.11740): `BertForPreTraining`, from which it is initialized."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT, MASKED, encoder
from megaptm.hub.tensor_rules import TensorRule, pair

REGION_HEADS = (
    *pair("head.mrfr.transform"),
    *pair("head.mrfr.norm"),
    TensorRule("head.mrfr.bias", ()),
    *pair("head.mrc-kl.transform"),
    *pair("head.mrc-kl.norm"),
    *pair("head.mrc-kl.classify"),
)
"""Rules of heads that predict masked regions. Neither BERT nor RoBERTa has them, so they are initialized, like
everything that reads regions."""

# As in the released code, BERT's pooler and classifier of two texts become those of image-text matching. The second row
# of its segments is that of regions.
UNITER = replace(
    BERT,
    family="uniter",
    model_type="bert",
    import_only=True,
    rules=(
        *encoder("bert"),
        *MASKED,
        *pair("head.itm.pooler", "bert.pooler.dense"),
        *pair("head.itm.classify"),
        *(
            rule
            for name in ("project", "project_norm", "box", "box_norm", "norm")
            for rule in pair(f"embed.region.{name}")
        ),
        TensorRule("embed.region.mask.weight", ()),
        *REGION_HEADS,
    ),
    unused_prefixes=("cls.seq_relationship.",),
)

COUNTERPARTS = (UNITER,)
