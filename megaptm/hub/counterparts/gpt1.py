"""Counterpart of GPT: `OpenAIGPTLMHeadModel`."""

from megaptm.hub.counterparts.counterpart import Counterpart
from megaptm.hub.counterparts.gpt2 import LAYER
from megaptm.hub.tensor_rules import VOCABULARY, TensorRule

GPT1 = Counterpart(
    family="gpt1",
    model="OpenAIGPTLMHeadModel",
    model_type="openai-gpt",
    fields={
        "n_layer": "layers",
        "n_embd": "width",
        "n_head": "heads",
        "vocab_size": "vocabulary",
        "n_positions": "context",
        "layer_norm_epsilon": "norm_eps",
        "resid_pdrop": "dropout",
        "embd_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
    },
    fixed={"afn": "gelu", "tie_word_embeddings": True},
    rows=(
        TensorRule("embed.token.weight", ("transformer.tokens_embed.weight",), VOCABULARY),
        TensorRule("embed.position.weight", ("transformer.positions_embed.weight",)),
        *LAYER,
    ),
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    prefix="transformer.",
)
