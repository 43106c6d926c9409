"""Hugging Face's BERT: `BertForPreTraining`."""

from megaptm.hub.counterpart import Counterpart
from megaptm.hub.tensor_rules import QKV, VOCABULARY, TensorRule, weight_and_bias


def encoder_rules(prefix: str) -> tuple[TensorRule, ...]:
    """Return all tensor rules except heads, for a model whose encoder is BERT's under another name."""
    layer = f"{prefix}.encoder.layer.{{n}}"
    attention = tuple(f"{layer}.attention.self.{name}" for name in ("query", "key", "value"))
    return (
        TensorRule("embed.token.weight", (f"{prefix}.embeddings.word_embeddings.weight",), VOCABULARY),
        TensorRule("embed.position.weight", (f"{prefix}.embeddings.position_embeddings.weight",)),
        TensorRule("embed.segment.weight", (f"{prefix}.embeddings.token_type_embeddings.weight",)),
        *weight_and_bias("embed.norm", f"{prefix}.embeddings.LayerNorm"),
        *weight_and_bias("encoder.{n}.attention.qkv", *attention, weight=QKV, bias=QKV),
        *weight_and_bias("encoder.{n}.attention.output", f"{layer}.attention.output.dense"),
        *weight_and_bias("encoder.{n}.attention_norm", f"{layer}.attention.output.LayerNorm"),
        *weight_and_bias("encoder.{n}.ffn.up", f"{layer}.intermediate.dense"),
        *weight_and_bias("encoder.{n}.ffn.down", f"{layer}.output.dense"),
        *weight_and_bias("encoder.{n}.ffn_norm", f"{layer}.output.LayerNorm"),
    )


MASKED = (
    *weight_and_bias("head.mlm.transform", "cls.predictions.transform.dense"),
    *weight_and_bias("head.mlm.norm", "cls.predictions.transform.LayerNorm"),
    TensorRule("head.mlm.vocabulary.bias", ("cls.predictions.bias",), VOCABULARY),
)


def pretraining_rules(prefix: str, classifier: str) -> tuple[TensorRule, ...]:
    """Return all tensor rules of a model with BERT's masked-token head and classifier of two texts. `classifier`: name
    of the classifier's head in megaptm."""
    return (
        *encoder_rules(prefix),
        *MASKED,
        *weight_and_bias(f"head.{classifier}.pooler", f"{prefix}.pooler.dense"),
        *weight_and_bias(f"head.{classifier}.classify", "cls.seq_relationship"),
    )


BERT = Counterpart(
    family="bert",
    model="BertForPreTraining",
    fields={
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "intermediate_size": "ffn",
        "vocab_size": "vocabulary",
        "max_position_embeddings": "context",
        "layer_norm_eps": "norm_eps",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    fixed={
        "hidden_act": "gelu",
        "type_vocab_size": 2,
        "is_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    rules=pretraining_rules("bert", "next-sentence"),
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    prefix="bert.",
    special_ids={"pad_token_id": 0},
)

COUNTERPARTS = (BERT,)
