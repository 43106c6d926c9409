"""`BertForPreTraining` and `RobertaForMaskedLM`, from which the families begin that read regions of images behind a
text: UNITER (arXiv:1909.11740) and UNIMO (arXiv:2012.15409)."""

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
"""Heads that ask for hidden regions. Like all that reads regions neither BERT nor RoBERTa has them: they begin anew."""

# BERT's pooler, of its question about two texts, is that of the question whether a text and an image match, as in the
# released code. The second row of its segments is that of regions.
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

# Every token of a RoBERTa adds the one row of its segments, which regions have not: it is added to places instead.
WITH_SEGMENT = Form(lambda w, spec: [w, w[:1].clone()], lambda ws, spec: ws[0] + ws[1])
PLACES, SEGMENT = (f"roberta.embeddings.{name}_embeddings.weight" for name in ("position", "token_type"))
UNIMO = replace(
    ROBERTA,
    family="unimo",
    model_type="roberta",
    import_only=True,
    rows=(
        *(
            replace(row, theirs=(PLACES, SEGMENT), form=WITH_SEGMENT) if row.ours == "embed.position.weight" else row
            for row in ROBERTA.rows
            if row.ours != "embed.segment.weight"
        ),
        *(rule for name in ("project", "box", "norm") for rule in pair(f"embed.region.{name}")),
        *ASK_OF_REGIONS,
    ),
)
