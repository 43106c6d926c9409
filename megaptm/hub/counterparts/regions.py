"""Counterparts of region models: `BertForPreTraining` and `RobertaForMaskedLM`, from which UNITER (arXiv:1909.11740)
and UNIMO (arXiv:2012.15409) are initialized."""

from dataclasses import replace

from megaptm.hub.counterparts.bert import BERT, MASKED, encoder
from megaptm.hub.counterparts.roberta import ROBERTA
from megaptm.hub.tensor_rules import Form, TensorRule, pair

ASK_OF_REGIONS = (
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
    rows=(
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
        *ASK_OF_REGIONS,
    ),
    unused=("cls.seq_relationship.",),
)

# Every token of a RoBERTa adds the single row of its segment table. Regions have no segment, so this row is added to
# positions instead.
WITH_SEGMENT = Form(lambda w, spec: [w, w[:1].clone()], lambda ws, spec: ws[0] + ws[1])
PLACES, SEGMENT = (f"roberta.embeddings.{name}_embeddings.weight" for name in ("position", "token_type"))
UNIMO = replace(
    ROBERTA,
    family="unimo",
    model_type="roberta",
    import_only=True,
    rows=(
        *(
            replace(row, hf_names=(PLACES, SEGMENT), form=WITH_SEGMENT) if row.name == "embed.position.weight" else row
            for row in ROBERTA.rows
            if row.name != "embed.segment.weight"
        ),
        *(rule for name in ("project", "box", "norm") for rule in pair(f"embed.region.{name}")),
        *ASK_OF_REGIONS,
    ),
)
