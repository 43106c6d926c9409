"""Hugging Face's Nomic-BERT: `NomicBertForMaskedLM`."""

from dataclasses import replace

from megaptm.families.bert.huggingface import BERT
from megaptm.hub.rope import ROPE_PARAMETERS
from megaptm.hub.tensor_rules import GATE_AND_VALUE, QKV, VOCABULARY, TensorRule, weight_and_bias

EMBEDDINGS, LAYER = "nomic_bert.embeddings", "nomic_bert.layers.{n}"
HEAD = "cls.predictions"

NOMIC_BERT = replace(
    BERT,
    family="nomic-bert",
    model="NomicBertForMaskedLM",
    model_type="nomic_bert",
    fields={**BERT.fields, "head_dim": "head_width", "rope_parameters": ROPE_PARAMETERS},
    fixed={"hidden_act": "silu", "type_vocab_size": 2, "tie_word_embeddings": True},
    optional_fields=frozenset({"tie_word_embeddings"}),
    rules=(
        TensorRule("embed.token.weight", (f"{EMBEDDINGS}.word_embeddings.weight",), VOCABULARY),
        TensorRule("embed.segment.weight", (f"{EMBEDDINGS}.token_type_embeddings.weight",)),
        *weight_and_bias("embed.norm", f"{EMBEDDINGS}.LayerNorm"),
        TensorRule(
            "encoder.{n}.attention.qkv.weight", tuple(f"{LAYER}.self_attn.{name}_proj.weight" for name in "qkv"), QKV
        ),
        TensorRule("encoder.{n}.attention.output.weight", (f"{LAYER}.self_attn.o_proj.weight",)),
        *weight_and_bias("encoder.{n}.attention_norm", f"{LAYER}.post_attention_layernorm"),
        TensorRule(
            "encoder.{n}.ffn.up.weight",
            (f"{LAYER}.mlp.gate_proj.weight", f"{LAYER}.mlp.up_proj.weight"),
            GATE_AND_VALUE,
        ),
        TensorRule("encoder.{n}.ffn.down.weight", (f"{LAYER}.mlp.down_proj.weight",)),
        *weight_and_bias("encoder.{n}.ffn_norm", f"{LAYER}.post_mlp_layernorm"),
        *weight_and_bias("head.mlm.transform", f"{HEAD}.transform.dense"),
        *weight_and_bias("head.mlm.norm", f"{HEAD}.transform.layer_norm"),
        TensorRule("head.mlm.vocabulary.bias", (f"{HEAD}.bias",), VOCABULARY),
    ),
    # Names in files, which the class renames.
    joined={".attn.Wqkv": tuple(f".self_attn.{name}_proj" for name in "qkv")},
    renames={
        r"\bencoder\.layers\.": "layers.",
        r"\bemb_ln\.": "embeddings.LayerNorm.",
        r"\.attn\.out_proj\.": ".self_attn.o_proj.",
        r"\.fc11\.": ".up_proj.",
        r"\.fc12\.": ".gate_proj.",
        r"\.fc2\.": ".down_proj.",
        r"\.norm1\.": ".post_attention_layernorm.",
        r"\.norm2\.": ".post_mlp_layernorm.",
    },
    tied={
        f"{HEAD}.decoder.weight": f"{EMBEDDINGS}.word_embeddings.weight",
        f"{HEAD}.decoder.bias": f"{HEAD}.bias",
    },
    prefix="nomic_bert.",
)

COUNTERPARTS = (NOMIC_BERT,)
