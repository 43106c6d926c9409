"""`BertForPreTraining`, from which UniLM begins (arXiv:1905.03197, 2.4). Theirs has no masks as UniLM's, nor as many
segments: what has been trained here is none of their models."""

from dataclasses import replace

from megaptm.hub.counterparts.bert import BERT
from megaptm.hub.tensor_rules import Form

# The released code's: one text read to either side begins as a first one, and the pair from sequence to sequence as any
# pair.
FROM_BERT = (0, 1, 0, 0, 0, 1)
SEGMENTS = Form(lambda w, spec: [w[:2].clone()], lambda ws, spec: ws[0][[*FROM_BERT]])

UNILM = replace(
    BERT,
    family="unilm",
    model_type="bert",
    import_only=True,
    rows=tuple(replace(row, form=SEGMENTS) if row.ours == "embed.segment.weight" else row for row in BERT.rows),
)
