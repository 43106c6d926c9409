"""Hugging Face's BigBird: `BigBirdForMaskedLM`. It samples other random blocks than megaptm, and none in eval mode: for
sequences longer than (5 + 2 x random blocks) x block tokens, outputs of the same weights differ."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT, MASKED, encoder_rules
from megaptm.families.roberta.huggingface import ROBERTA
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import Conversion

BIGBIRD = Counterpart(
    family="bigbird",
    model="BigBirdForMaskedLM",
    model_type="big_bird",
    fields={**BERT.fields, "block_size": "block_size", "num_random_blocks": "num_random_blocks"},
    fixed={
        **BERT.fixed,
        "hidden_act": "gelu_new",
        "attention_type": "block_sparse",
        "use_bias": True,
        "rescale_embeddings": False,
    },
    rules=(*encoder_rules("bert"), *MASKED),
    tied=BERT.tied,
    prefix="bert.",
    special_ids={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    # Its class has a pooler that its own loss does not read.
    unused_prefixes=("bert.pooler.",),
)

# Appendix E.1 of the paper: initialized from RoBERTa, whose positions are repeated as needed. The norms' eps and the
# activation are BigBird's from then on.
SHARED_SEGMENT = Conversion(lambda w, spec: [w[:1].clone()], lambda ws, spec: ws[0].repeat(spec.family.segments, 1))
FROM_ROBERTA = replace(
    ROBERTA,
    family="bigbird",
    model_type="roberta",
    import_only=True,
    fields={field: name for field, name in ROBERTA.fields.items() if name not in ("positions", "norm_eps")},
    rules=tuple(
        replace(rule, form=SHARED_SEGMENT) if rule.name == "embed.segment.weight" else rule for rule in ROBERTA.rules
    ),
    repeated_table="roberta.embeddings.position_embeddings.weight",
    repeated_from_row=2,
    positions_after_pad=False,
)

COUNTERPARTS = (BIGBIRD, FROM_ROBERTA)
