"""Hugging Face's DistilBERT, `DistilBertForMaskedLM`, and TinyBERT, a small `BertForPreTraining`."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT
from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import QKV, VOCABULARY, TensorRule, weight_and_bias

LAYER = "distilbert.transformer.layer.{n}"

DISTILBERT = Counterpart(
    family="distilbert",
    model="DistilBertForMaskedLM",
    fields={
        "n_layers": "layers",
        "dim": "width",
        "n_heads": "heads",
        "hidden_dim": "ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    fixed={"activation": "gelu", "tie_word_embeddings": True},
    rules=(
        TensorRule("embed.token.weight", ("distilbert.embeddings.word_embeddings.weight",), VOCABULARY),
        TensorRule("embed.position.weight", ("distilbert.embeddings.position_embeddings.weight",)),
        *weight_and_bias("embed.norm", "distilbert.embeddings.LayerNorm"),
        *weight_and_bias(
            "encoder.{n}.attention.qkv",
            *(f"{LAYER}.attention.{name}_lin" for name in "qkv"),
            weight=QKV,
            bias=QKV,
        ),
        *weight_and_bias("encoder.{n}.attention.output", f"{LAYER}.attention.out_lin"),
        *weight_and_bias("encoder.{n}.attention_norm", f"{LAYER}.sa_layer_norm"),
        *weight_and_bias("encoder.{n}.ffn.up", f"{LAYER}.ffn.lin1"),
        *weight_and_bias("encoder.{n}.ffn.down", f"{LAYER}.ffn.lin2"),
        *weight_and_bias("encoder.{n}.ffn_norm", f"{LAYER}.output_layer_norm"),
        *weight_and_bias("head.mlm.transform", "vocab_transform"),
        *weight_and_bias("head.mlm.norm", "vocab_layer_norm"),
        TensorRule("head.mlm.vocabulary.bias", ("vocab_projector.bias",), VOCABULARY),
    ),
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    prefix="distilbert.",
    special_ids={"pad_token_id": 0},
)

TINYBERT = replace(BERT, family="tinybert", model_type="bert")

COUNTERPARTS = (DISTILBERT, TINYBERT)
