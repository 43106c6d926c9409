"""`BertForPreTraining`, whose question about pairs is here whether they are in their order."""

from dataclasses import replace

from megaptm.hub.counterparts.bert import BERT, pretraining

MACBERT = replace(BERT, family="macbert", model_type="bert", rows=pretraining("bert", "sentence-order"))
