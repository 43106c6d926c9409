"""Hugging Face's UniLM: `BertForPreTraining`, from which it is initialized (arXiv:1905.03197, 2.4). It lacks UniLM's
masks and segments, so trained models cannot be exported."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT
from megaptm.hub.tensor_rules import Conversion

# As in the released code: a single text read in either direction starts with BERT's first segment, and the pair of
# sequence-to-sequence with those of a BERT pair.
FROM_BERT = (0, 1, 0, 0, 0, 1)
SEGMENTS = Conversion(lambda w, spec: [w[:2].clone()], lambda ws, spec: ws[0][[*FROM_BERT]])

UNILM = replace(
    BERT,
    family="unilm",
    model_type="bert",
    import_only=True,
    rules=tuple(replace(rule, form=SEGMENTS) if rule.name == "embed.segment.weight" else rule for rule in BERT.rules),
)

COUNTERPARTS = (UNILM,)
