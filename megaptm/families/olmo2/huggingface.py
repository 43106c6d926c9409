"""Hugging Face's OLMo 2: `Olmo2ForCausalLM`."""

from dataclasses import replace

from megaptm.families.llama.huggingface import ATTENTION_RULES, FFN_RULES, LAYER, LLAMA, MODEL_RULES
from megaptm.families.qwen3.huggingface import NORM_RULES as HEAD_NORM_RULES
from megaptm.hub.tensor_rules import TensorRule

NORM_RULES = (
    TensorRule("decoder.{n}.attention_norm.weight", (f"{LAYER}.post_attention_layernorm.weight",)),
    TensorRule("decoder.{n}.ffn_norm.weight", (f"{LAYER}.post_feedforward_layernorm.weight",)),
)

OLMO2 = replace(
    LLAMA,
    family="olmo2",
    model="Olmo2ForCausalLM",
    fixed={"hidden_act": "silu", "attention_bias": False},
    rules=(*MODEL_RULES, *NORM_RULES, *ATTENTION_RULES, *HEAD_NORM_RULES, *FFN_RULES),
    special_ids={"eos_token_id": 100_257, "pad_token_id": 100_277},
)

COUNTERPARTS = (OLMO2,)
