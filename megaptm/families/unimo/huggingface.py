"""Counterpart of UNIMO (arXiv:2012.15409): `RobertaForMaskedLM`, from which it is initialized."""

from dataclasses import replace

from megaptm.families.roberta.huggingface import ROBERTA
from megaptm.families.uniter.huggingface import ASK_OF_REGIONS
from megaptm.hub.tensor_rules import Form, pair

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

COUNTERPARTS = (UNIMO,)
