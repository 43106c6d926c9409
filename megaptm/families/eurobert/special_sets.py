"""Special tokens of EuroBERT's tokenizer, which is that of Llama 3 with a mask: the end of a text also pads."""

from megaptm.tokenizers.special_sets import SpecialSet

BEGIN, END, MASK = "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"
SPECIALS = {
    "eurobert": SpecialSet(
        last=(BEGIN, END, MASK),
        roles={"begin": BEGIN, "cls": BEGIN, "end": END, "sep": END, "pad": END, "mask": MASK},
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} {BEGIN} $B {END}",
    )
}
