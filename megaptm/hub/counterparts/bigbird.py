"""`BigBirdForMaskedLM`. It draws other blocks than we do, and in eval mode none: of rows of more than (5 + 2 x random
blocks) x block tokens it says other things than the same weights say here."""

from megaptm.hub.counterparts.bert import BERT, MASKED, encoder
from megaptm.hub.counterparts.counterpart import Counterpart

BIGBIRD = Counterpart(
    family="bigbird",
    model="BigBirdForMaskedLM",
    model_type="big_bird",
    numbers={**BERT.numbers, "block_size": "block", "num_random_blocks": "random_blocks"},
    fixed={
        **BERT.fixed,
        "hidden_act": "gelu_new",
        "attention_type": "block_sparse",
        "use_bias": True,
        "rescale_embeddings": False,
    },
    rows=(*encoder("bert"), *MASKED),
    tied=BERT.tied,
    prefix="bert.",
    special={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    # Its class has a pooler, which its own loss does not read.
    zeros=lambda spec: {"bert.pooler.weight": (spec.width, spec.width), "bert.pooler.bias": (spec.width,)},
    unused=("bert.pooler.",),
)
