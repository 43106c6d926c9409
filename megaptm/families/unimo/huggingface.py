"""Hugging Face's UNIMO (arXiv:2012.15409): `RobertaForMaskedLM`, from which it is initialized."""

from dataclasses import replace

from megaptm.families.roberta.huggingface import ROBERTA
from megaptm.families.uniter.huggingface import REGION_HEADS, REGION_HOOKS
from megaptm.hub.tensor_rules import Conversion, weight_and_bias

# Every token of a RoBERTa adds the single row of its segment table. Regions have no segment, so this row is added to
# positions instead.
WITH_SEGMENT = Conversion(lambda w, spec: [w, w[:1].clone()], lambda ws, spec: ws[0] + ws[1])
POSITIONS, SEGMENT = (f"roberta.embeddings.{name}_embeddings.weight" for name in ("position", "token_type"))
UNIMO = replace(
    ROBERTA,
    family="unimo",
    model_type="roberta",
    import_only=True,
    rules=(
        *(
            replace(rule, hf_names=(POSITIONS, SEGMENT), form=WITH_SEGMENT)
            if rule.name == "embed.position.weight"
            else rule
            for rule in ROBERTA.rules
            if rule.name != "embed.segment.weight"
        ),
        *(rule for name in ("project", "box", "norm") for rule in weight_and_bias(f"embed.region.{name}")),
        *REGION_HEADS,
    ),
    **REGION_HOOKS,
)

COUNTERPARTS = (UNIMO,)
