"""Objectives composed in a config: options, a question about the same text, shares and weights by step."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.objectives import OBJECTIVES, Composed, build_objective
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.objective import GROUP_UNITS, SampleContext, SampleObjective, SentenceGroup
from tests.objectives.rows import SPECIAL, part


def chunk(*lengths: int) -> SentenceGroup:
    """Sentences of rising tokens: what follows what can be read off them."""
    borders = np.cumsum((0, *lengths)) + SPECIAL.size - 500
    sentences = [np.arange(*pair) for pair in pairwise(borders)]
    return SentenceGroup(sentences, sample_other_document=lambda rng: [np.full(9, SPECIAL.size - 1)])


def test_a_task_without_options_is_the_one_of_its_name():
    for name in ("causal-lm", "masked-lm", "span-corruption"):
        assert build_objective({name: {}}) == build_objective({name: None}) == OBJECTIVES[name]
    assert build_objective({"masked-lm": {"hide": "whole-words"}}) == OBJECTIVES["masked-lm-whole-word"]
    assert build_objective({"masked-lm": {}, "next-sentence": {}}) == OBJECTIVES["masked-lm-next-sentence"]


def test_options_are_what_the_samples_show():
    rng, task = (
        np.random.default_rng(0),
        build_objective({"masked-lm": {"rate": 0.4, "mask_token_prob": 0.5, "random_token_prob": 0.0}}),
    )
    hidden = asked = 0
    for seed in range(200):
        sample = task.make([part(126, 2, seed=seed)], SampleContext(SPECIAL, rng, 128, True))
        real = sample["labels"] != IGNORED
        shown = sample["tokens"][sample["masked_positions"][real]]
        assert set(shown[shown != sample["labels"][real]]) <= {SPECIAL.mask}
        hidden, asked = hidden + (shown == SPECIAL.mask).sum(), asked + real.sum()
    assert asked / 200 == round(0.4 * 128)
    assert hidden / asked == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("rate", "mean"), [(0.5, 3), (0.5, 32), (0.15, 32)])
def test_rows_of_other_spans_are_as_full(rate, mean):
    task = build_objective({"span-corruption": {"rate": rate, "mean_span_length": mean}})
    raw = task.raw_length(512)
    special = replace(SPECIAL, sentinels=tuple(range(5, 305)))
    sample = task.make([part(raw)], SampleContext(special, np.random.default_rng(0), 512, True))
    assert sample["document_ids"].all()
    assert sample["decoder_document_ids"].all()
    assert (sample["labels"] != IGNORED).sum() == task.batch(512, True).fields["labels"].shape[0]


def test_texts_are_in_their_order_half_of_the_time_and_one_sentence_is_not_asked_about():
    task, rng = build_objective({"masked-lm": {}, "sentence-order": {}}), np.random.default_rng(0)
    assert task.losses == {"mlm": 1.0, "sentence-order": 1.0}
    labels = []
    for _ in range(2000):
        sample = task.make(chunk(9, 9, 9, 9), SampleContext(SPECIAL, rng, 48, True))
        text = sample["tokens"].copy()
        real = sample["labels"] != IGNORED
        text[sample["masked_positions"][real]] = sample["labels"][real]
        first, second = (text[(sample["segments"] == side) & (text > SPECIAL.sep)] for side in (0, 1))
        if sample["sentence_order"] != IGNORED:  # a row that was made short may hold one sentence
            labels.append(int(sample["sentence_order"]))
            assert (first[0] > second[0]) == labels[-1]
    assert np.mean(labels) == pytest.approx(0.5, abs=0.05)
    assert task.make(chunk(20), SampleContext(SPECIAL, rng, 48, True))["sentence_order"] == IGNORED


def test_samples_of_several_tasks_have_the_fields_of_all_and_no_answer_that_is_not_asked():
    task = build_objective(
        {
            "short": {"task": "span-corruption", "share": 0.5},
            "long": {"task": "span-corruption", "rate": 0.5, "mean_span_length": 8, "share": 0.5},
        }
    )
    assert isinstance(task, Composed)
    short, long = task.tasks
    wanted = task.batch(64, True)
    rng = np.random.default_rng(0)
    for one in (short, long):
        piece = [part(one.objective.raw_length(64))]
        sample = wanted.pad_sample(one.objective.make(piece, SampleContext(SPECIAL, rng, 64, True)), pad=SPECIAL.pad)
        wanted.check(sample, maker=one.label)
        said = len(one.objective.batch(64, True).fields["labels"].shape) and (sample["labels"] != IGNORED).sum()
        assert said == one.objective.batch(64, True).fields["labels"].shape[0]
        assert (sample["decoder_document_ids"] > 0).sum() == said
    both = build_objective({"masked-lm": {"share": 1}, "words": {"task": "masked-lm", "rate": 0.3, "share": 1}})
    assert both.batch(128, True).num_predicted == round(0.3 * 128)


def test_weights_and_shares_change_at_their_steps():
    task = build_objective({"masked-lm": {"weight": {0: 1, 100: 0.5}}, "next-sentence": {"weight": 2}})
    assert [task.weights(step)["mlm"] for step in (0, 99, 100, 10**6)] == [1, 1, 0.5, 0.5]
    assert task.weights(5)["next-sentence"] == 2
    shares = {"a": {0: 1, 10: 0}, "b": 1}
    curriculum = build_objective({label: {"task": "masked-lm", "share": share} for label, share in shares.items()})
    assert isinstance(curriculum, Composed)
    assert [[part.share.at(step) for part in curriculum.tasks] for step in (9, 10)] == [[1, 1], [0, 1]]


@pytest.mark.parametrize(
    ("said", "sentence"),
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
            r"objective: question next-sentence needs a task that makes its text: add `masked-lm: \{\}`\.",
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
            r"objective\.translation-lm: next-sentence cannot be combined with it: its samples are pairs of",
        ),
        (
            {"ordered-masked-lm": {}, "sentence-reordering": {}},
            r"objective\.ordered-masked-lm: sentence-reordering cannot be combined with it: it has segment",
        ),
        (
            {"ordered-masked-lm": {"context": "left-to-right", "question": "next-sentence"}},
            r"objective\.ordered-masked-lm: next-sentence cannot be combined with it: its first position,",
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
def test_a_mistake_is_one_sentence_that_names_the_key(said, sentence):
    with pytest.raises(UserError, match=sentence):
        build_objective(said)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            {"glove": {"share": 1}, "causal-lm": {"share": 1}},
            r"objective\.glove makes no text samples, and cannot be mixed with other tasks: remove them\.",
        ),
        (
            {"glove": {"weight": 2}},
            r"objective\.glove makes no text samples, so that weight has no effect: remove it\.",
        ),
    ],
)
def test_what_makes_no_samples_has_no_share_of_them(said, sentence):
    with pytest.raises(UserError, match=sentence):
        build_objective(said)
    assert build_objective({"glove": {"x_max": 20}}).x_max == 20


def test_no_objective_has_a_method_that_it_cannot_answer():
    """Who makes samples says how, who cuts a stream says how, and nobody else is asked."""
    for name, one in OBJECTIVES.items():
        makes, cuts = (hasattr(one, method) for method in ("make", "cut"))
        assert makes == isinstance(one, SampleObjective) == bool(tasks_of(one) and not isinstance(one, Composed)), name
        assert cuts == (makes and one.unit not in GROUP_UNITS), name
        if cuts:
            assert one.cut(512, True).stride > 0, name


def test_tasks_that_ask_at_other_places_share_no_batch():
    both = build_objective({"causal-lm": {"share": 1}, "masked-lm": {"share": 1}})
    with pytest.raises(UserError, match="causal-lm and masked-lm cannot share a batch"):
        both.batch(64, True)


def test_the_options_of_an_objective_of_ones_own_are_kept_and_may_be_changed(tmp_path, monkeypatch):
    (tmp_path / "tasks_of_mine.py").write_text(
        "from megaptm.objectives.masked import MaskedLM\nMANY = MaskedLM(rate=0.4, mask_token_prob=1.0, "
        "random_token_prob=0.0)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = build_objective({"mine": {"task": "tasks_of_mine:MANY", "rate": 0.3}})
    assert (found.rate, found.mask_token_prob, found.random_token_prob) == (0.3, 1.0, 0.0)


def test_what_somebody_had_to_say_is_supervised_and_what_stands_in_the_text_is_not():
    assert {name for name, one in OBJECTIVES.items() if one.is_supervised} == {
        "translation",
        "translation-lm",
        "text-to-text",
        *("image-labels", "image-text", "image-text-masked-lm", "image-text-matching"),
        *("masked-regions", "masked-regions-class", "masked-regions-distribution", "uniter"),
        *("image-text-spans", "image-text-fragments", "cross-modal-contrast"),
        *("masked-areas", "masked-areas-class", "masked-areas-distribution", "unimo"),
    }
    halves = {"words": {"task": "masked-lm", "share": 0.5}, "clicks": {"task": "relevance", "share": 0.5}}
    assert build_objective(halves).is_supervised
    assert not build_objective({"masked-lm": {}, "sentence-order": {}}).is_supervised
