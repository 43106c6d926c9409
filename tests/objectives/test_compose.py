"""Objectives composed in a config: options, questions about the masked text, shares and weights by step."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, Composed, build_objective
from megaptm.objectives.composed import objective_tasks
from megaptm.objectives.objective import GROUP_UNITS, SampleContext, SampleObjective, SentenceGroup
from tests.objectives.samples import SPECIAL, random_slice


def sentence_group(*lengths: int) -> SentenceGroup:
    """Sentences of rising token ids, so that ids show the order of sentences."""
    borders = np.cumsum((0, *lengths)) + SPECIAL.size - 500
    sentences = [np.arange(*pair) for pair in pairwise(borders)]
    return SentenceGroup(sentences, sample_other_document=lambda rng: [np.full(9, SPECIAL.size - 1)])


def test_task_without_options_equals_named_objective():
    for name in ("causal-lm", "masked-lm", "span-corruption"):
        assert build_objective({name: {}}) == build_objective({name: None}) == OBJECTIVES[name]
    assert build_objective({"masked-lm": {"hide": "whole-words"}}) == OBJECTIVES["masked-lm-whole-word"]
    assert build_objective({"masked-lm": {}, "next-sentence": {}}) == OBJECTIVES["masked-lm-next-sentence"]


def test_masking_options_set_rates():
    rng, task = (
        np.random.default_rng(0),
        build_objective({"masked-lm": {"rate": 0.4, "mask_token_prob": 0.5, "random_token_prob": 0.0}}),
    )
    masked = predicted = 0
    for seed in range(200):
        sample = task.make_sample([random_slice(126, 2, seed=seed)], SampleContext(SPECIAL, rng, 128, True))
        real = sample["labels"] != IGNORED
        shown = sample["tokens"][sample["masked_positions"][real]]
        assert set(shown[shown != sample["labels"][real]]) <= {SPECIAL.mask}
        masked, predicted = masked + (shown == SPECIAL.mask).sum(), predicted + real.sum()
    assert predicted / 200 == round(0.4 * 128)
    assert masked / predicted == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("rate", "mean"), [(0.5, 3), (0.5, 32), (0.15, 32)])
def test_samples_are_full_at_any_rate_and_span_length(rate, mean):
    task = build_objective({"span-corruption": {"rate": rate, "mean_span_length": mean}})
    raw = task.raw_length(512)
    special = replace(SPECIAL, sentinels=tuple(range(5, 305)))
    sample = task.make_sample([random_slice(raw)], SampleContext(special, np.random.default_rng(0), 512, True))
    assert sample["document_ids"].all()
    assert sample["decoder_document_ids"].all()
    assert (sample["labels"] != IGNORED).sum() == task.batch_spec(512, True).fields["labels"].shape[0]


def test_sentence_order_swaps_half_of_pairs():
    """A sample of one sentence has no label."""
    task, rng = build_objective({"masked-lm": {}, "sentence-order": {}}), np.random.default_rng(0)
    assert task.losses == {"mlm": 1.0, "sentence-order": 1.0}
    labels = []
    for _ in range(2000):
        sample = task.make_sample(sentence_group(9, 9, 9, 9), SampleContext(SPECIAL, rng, 48, True))
        text = sample["tokens"].copy()
        real = sample["labels"] != IGNORED
        text[sample["masked_positions"][real]] = sample["labels"][real]
        first, second = (text[(sample["segments"] == side) & (text > SPECIAL.sep)] for side in (0, 1))
        if sample["sentence_order"] != IGNORED:  # a shortened sample may hold one sentence
            labels.append(int(sample["sentence_order"]))
            assert (first[0] > second[0]) == labels[-1]
    assert np.mean(labels) == pytest.approx(0.5, abs=0.05)
    assert task.make_sample(sentence_group(20), SampleContext(SPECIAL, rng, 48, True))["sentence_order"] == IGNORED


def test_mixed_tasks_pad_to_shared_fields():
    task = build_objective(
        {
            "short": {"task": "span-corruption", "share": 0.5},
            "long": {"task": "span-corruption", "rate": 0.5, "mean_span_length": 8, "share": 0.5},
        }
    )
    assert isinstance(task, Composed)
    short, long = task.tasks
    batch_spec = task.batch_spec(64, True)
    rng = np.random.default_rng(0)
    for task_entry in (short, long):
        piece = [random_slice(task_entry.objective.raw_length(64))]
        sample = batch_spec.pad_sample(
            task_entry.objective.make_sample(piece, SampleContext(SPECIAL, rng, 64, True)), pad=SPECIAL.pad
        )
        batch_spec.check(sample, maker=task_entry.label)
        num_labels = (sample["labels"] != IGNORED).sum()
        assert num_labels == task_entry.objective.batch_spec(64, True).fields["labels"].shape[0]
        assert (sample["decoder_document_ids"] > 0).sum() == num_labels
    both = build_objective({"masked-lm": {"share": 1}, "words": {"task": "masked-lm", "rate": 0.3, "share": 1}})
    assert both.batch_spec(128, True).num_predicted == round(0.3 * 128)


def test_schedules_of_weights_and_shares():
    task = build_objective({"masked-lm": {"weight": {0: 1, 100: 0.5}}, "next-sentence": {"weight": 2}})
    assert [task.weights(step)["mlm"] for step in (0, 99, 100, 10**6)] == [1, 1, 0.5, 0.5]
    assert task.weights(5)["next-sentence"] == 2
    shares = {"a": {0: 1, 10: 0}, "b": 1}
    curriculum = build_objective({label: {"task": "masked-lm", "share": share} for label, share in shares.items()})
    assert isinstance(curriculum, Composed)
    assert [[part.share.at(step) for part in curriculum.tasks] for step in (9, 10)] == [[1, 1], [0, 1]]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"objective is empty"),
        ({"maskd-lm": {}}, r"objective\.maskd-lm is not a task; did you mean masked-lm\?"),
        ({"MLM": {}}, r"objective\.MLM is not a task; did you mean masked-lm\?"),
        ({"a": {"task": "spans"}}, r"objective\.a\.task \(spans\) is not a task; did you mean text-spans\?"),
        ({"words": {"taks": "masked-lm"}}, r"objective\.words: unknown option taks; did you mean task\?"),
        ({"masked-lm": {"mask_prob": 0.2}}, r"objective\.masked-lm: unknown option mask_prob; did you mean rate\?"),
        ({"masked-lm": {"rat": 0.2}}, r"objective\.masked-lm: unknown option rat; did you mean rate\?"),
        ({"masked-lm": {"rate": 2}}, r"objective\.masked-lm\.rate must be at most 0\.99, not 2"),
        ({"span-corruption": {"rate": 0.9999999999999999}}, r"rate must be at most 0\.99, not 0\.99\d+"),
        (
            {"span-corruption": {"mean_span_length": float("inf")}},
            r"objective\.span-corruption\.mean_span_length must be at most 1000000\.0, not inf",
        ),
        (
            {"denoising": {"poisson_lambda": 1e300}},
            r"objective\.denoising\.poisson_lambda must be at most 1000000\.0, not 1e\+300",
        ),
        (
            {"text-to-text": {"max_target_length": 10**30}},
            r"objective\.text-to-text\.max_target_length must be at most 10000000, not 10+",
        ),
        (
            {"masked-lm": {"hide": "spans", "length_weights": [float("inf"), 1]}},
            r"objective\.masked-lm\.length_weights\.0 must be at most 1000000\.0, not inf",
        ),
        (
            {"masked-lm": {"hide": "builtins:dict"}},
            r"objective\.masked-lm: hide: `builtins:dict` has no signature that can be inspected: wrap it in",
        ),
        (
            {"masked-lm": {"hide": "letters"}},
            r"objective\.masked-lm: hide \(letters\) is unknown; there are tokens, tokens-with-repeats,",
        ),
        (
            {"masked-lm": {"hide": "ngrams", "length_weights": []}},
            r"masked-lm\.length_weights must be 1 or more entries, not \[\]\.",
        ),
        ({"masked-lm": {"length_weights": 3}}, r"objective\.masked-lm\.length_weights must be a list, not 3\."),
        ({"masked-lm": {"rate": "0.15"}}, r"objective\.masked-lm\.rate must be a number, not '0\.15'\."),
        ({"masked-lm": {"rate": True}}, r"objective\.masked-lm\.rate must be a number, not True\."),
        ({"masked-lm": {"units": "wrds"}}, r"'phrases' or 'entities', not 'wrds'; did you mean words\?"),
        ({"masked-lm": {"share": True}}, r"objective\.masked-lm\.share must be a number, or a mapping .* not True\."),
        ({"masked-lm": {"weight": {0: "1"}}}, r"objective\.masked-lm\.weight must be a number, or a mapping"),
        (
            {"masked-lm": {"mask_token_prob": 0, "random_token_prob": 0}},
            r"objective\.masked-lm: mask_token_prob and random_token_prob are both 0",
        ),
        (
            {"masked-text": {"mask_token_prob": 0, "random_token_prob": 0}},
            r"objective\.masked-text: mask_token_prob and random_token_prob are both 0",
        ),
        (
            {"unilm": {"weight": 2}},
            r"objective\.unilm is a named mixture without options, as in objective=unilm: to change it, write",
        ),
        ({"masked-lm": {}, "nsp": {}}, r"objective\.nsp is not a task; did you mean next-sentence\?"),
        ({"masked-lm": {}, "sop": {}}, r"objective\.sop is not a task; did you mean sentence-order\?"),
        ("nsp", r"objective \(nsp\) is unknown; did you mean masked-lm-next-sentence\?"),
        ("capitalization", r"objective \(capitalization\) is the name of a task: write \{capitalization: \{\}\}\."),
        ("capitalisation", r"objective \(capitalisation\) is unknown; did you mean capitalization\?"),
        (
            "discourse",
            r"objective \(discourse\) is the name of a question: combine it with masked tokens, \{masked-lm:",
        ),
        (
            {"masked-lm": {"mask_token_prob": 0.9, "random_token_prob": 0.3}},
            r"objective\.masked-lm: mask_token_prob \(0\.9\) and random_token_prob \(0\.3\)",
        ),
        ({"masked-lm": 3}, r"objective\.masked-lm must be a mapping of options"),
        (
            {"next-sentence": {}},
            r"objective: question next-sentence needs a task that provides the text: add `masked-lm: \{\}`\.",
        ),
        (
            {"causal-lm": {}, "next-sentence": {}},
            r"objective: question next-sentence can be combined with masked-lm, not with causal-lm\.",
        ),
        (
            {"masked-lm": {}, "next-sentence": {}, "sentence-order": {}},
            r"objective: next-sentence and sentence-order each choose the second text: use only one\.",
        ),
        (
            {"masked-lm": {"length_weights": [1, 2]}},
            r"objective\.masked-lm: length_weights has no effect with hide: tokens",
        ),
        (
            {"masked-lm": {"hide": "ngrams", "length_weights": [0]}},
            r"objective\.masked-lm: length_weights \(\[0\.0\]\) are all 0",
        ),
        (
            {"masked-lm": {"similar": "words.npz"}},
            r"objective\.masked-lm: similar has no effect with show: tokens: remove it\.",
        ),
        ({"masked-lm": {}, "causal-lm": {}}, r"objective\.masked-lm needs a share"),
        (
            {"masked-lm": {}, "sentence_order": {}},
            r"objective\.sentence_order is not a task; did you mean sentence-order\?",
        ),
        ({"masked-lm": {"weight": "x"}}, r"objective\.masked-lm\.weight must be a number, or a mapping"),
        ({"masked-lm": {"hide:tokens": None}}, r"objective\.masked-lm: hide:tokens has no space after the colon:"),
        ({"a": {"task": "masked-lm", "share": {"0:1": None, 540002: None}}}, r"objective\.a\.share: 0:1 has no space"),
        (
            {"masked-lm": {"weight": {5: 1}}},
            r"objective\.masked-lm\.weight \(\{5: 1\}\) must have values from 0 to 1e\+09, and start at step 0, as",
        ),
        (
            {"a": {"task": "masked-lm", "share": 1, "weight": 2}, "b": {"task": "masked-lm", "share": 1}},
            r"objective: a and b share the loss mlm: set the same weight\.",
        ),
        (
            {"a": {"task": "masked-lm", "share": {0: 1, 9: 0}}, "b": {"task": "masked-lm", "share": {0: 1, 9: 0}}},
            r"every share is 0 at step",
        ),
        ({"masked-lm": {"share": 0}}, r"every share is 0 at step"),
        (
            {"masked-lm": {"weight": {0: 1, 9: 0}}},
            r"objective: every weight is 0 at step 9: set one above 0 for every step\.",
        ),
        ({"masked-lm": {}, "sentence-order": {"weigth": 0.5}}, r"objective\.sentence-order: unknown option weigth"),
        (
            {"masked-lm": {}, "sentence-order": {"rate": 0.5}},
            r"objective\.sentence-order: unknown option rate; the only option of a question is weight\.",
        ),
        ({"a": {"task": "next-sentence", "rate": 0.5}}, r"objective\.a: unknown option rate"),
        (
            {"masked-lm": {"question": "nextsentence"}},
            r"objective\.masked-lm\.question \(nextsentence\) is unknown; did you mean next-sentence\?",
        ),
        (
            {"causal-lm": {"question": "dialogue"}},
            r"objective: question dialogue can be combined with masked-lm, not with causal-lm\.",
        ),
        (
            {"translation-lm": {}, "next-sentence": {}},
            r"objective\.translation-lm: next-sentence cannot be combined with this task: its samples are pairs of",
        ),
        (
            {"ordered-masked-lm": {}, "sentence-reordering": {}},
            r"objective\.ordered-masked-lm: sentence-reordering cannot be combined with this task: it has segment",
        ),
        (
            {"ordered-masked-lm": {"context": "left-to-right", "question": "next-sentence"}},
            r"objective\.ordered-masked-lm: next-sentence cannot be combined with this task: its first position,",
        ),
        ({"masked-lm": {"corpora": "books"}}, r"objective\.masked-lm\.corpora must be a list of corpora"),
        ({"masked-lm": {"task_id": -1}}, r"objective\.masked-lm\.task_id \(-1\) must be an integer of 0 or more\."),
        (
            {"a": {"task": ["masked-lm"]}},
            r"objective\.a\.task \(\['masked-lm'\]\) is not a task; did you mean masked-lm\?",
        ),
        ({5: {"task": "masked-lm"}}, r"objective: 5 is not the name of a task: use a string\."),
        ({"masked-lm": {"weight": 10**400}}, r"objective\.masked-lm\.weight must be a number"),
        (
            {"masked-lm": {"weight": 1e308}},
            r"objective\.masked-lm\.weight \(1e\+308\) must have values from 0 to 1e\+09, and start at step 0, as",
        ),
        ({"masked-lm": {"hide": "math:pi"}}, r"objective\.masked-lm: hide: `math:pi` is not a function"),
        (
            {"a": {"task": "megaptm.objectives:Objective"}},
            r"objective\.a\.task: `megaptm\.objectives:Objective` cannot be created \(TypeError: Can't",
        ),
        (
            {"a": {"task": "megaptm.objectives:Composed"}},
            r"objective\.a\.task: `megaptm\.objectives:Composed` cannot be created",
        ),
        (None, r"objective must be a name, or a mapping of tasks"),
    ],
)
def test_invalid_config_is_rejected(config, message):
    with pytest.raises(UserError, match=message):
        build_objective(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"glove": {"share": 1}, "causal-lm": {"share": 1}},
            r"objective\.glove makes no text samples, and cannot be mixed with other tasks: remove the others\.",
        ),
        (
            {"glove": {"weight": 2}},
            r"objective\.glove makes no text samples, so that weight has no effect: remove it\.",
        ),
    ],
)
def test_task_without_samples_has_no_share_or_weight(config, message):
    with pytest.raises(UserError, match=message):
        build_objective(config)
    assert build_objective({"glove": {"x_max": 20}}).x_max == 20


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objective_has_only_methods_it_implements(name):
    """Only objectives that make samples have `make_sample`, only those that cut a stream have `sequence_window`."""
    objective = OBJECTIVES[name]
    makes, cuts = (hasattr(objective, method) for method in ("make_sample", "sequence_window"))
    is_single_task = bool(objective_tasks(objective) and not isinstance(objective, Composed))
    assert makes == isinstance(objective, SampleObjective) == is_single_task
    assert cuts == (makes and objective.unit not in GROUP_UNITS)
    assert not cuts or objective.sequence_window(512, True).stride > 0


def test_tasks_with_other_target_positions_share_no_batch():
    both = build_objective({"causal-lm": {"share": 1}, "masked-lm": {"share": 1}})
    with pytest.raises(UserError, match="causal-lm and masked-lm cannot share a batch"):
        both.batch_spec(64, True)


def test_options_override_those_of_a_user_objective(tmp_path, monkeypatch):
    (tmp_path / "user_tasks.py").write_text(
        "from megaptm.objectives.masked import MaskedLM\nMANY = MaskedLM(rate=0.4, mask_token_prob=1.0, "
        "random_token_prob=0.0)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    objective = build_objective({"mine": {"task": "user_tasks:MANY", "rate": 0.3}})
    assert (objective.rate, objective.mask_token_prob, objective.random_token_prob) == (0.3, 1.0, 0.0)


def test_supervised_objectives():
    """Labels of supervised objectives come from annotators or pairs, not from the text itself."""
    assert {name for name, objective in OBJECTIVES.items() if objective.is_supervised} == {
        "translation",
        "translation-lm",
        "text-to-text",
        *("image-labels", "image-text", "image-text-masked-lm", "image-text-matching"),
        *("masked-regions", "masked-regions-class", "masked-regions-distribution", "uniter"),
        *("image-text-spans", "image-text-fragments", "cross-modal-contrast"),
        *("masked-areas", "masked-areas-class", "masked-areas-distribution", "unimo"),
    }
    mixture = {"words": {"task": "masked-lm", "share": 0.5}, "clicks": {"task": "relevance", "share": 0.5}}
    assert build_objective(mixture).is_supervised
    assert not build_objective({"masked-lm": {}, "sentence-order": {}}).is_supervised
