"""Generated tokens match full forward passes and follow the sampling options."""

import re
from itertools import islice

import pytest
import torch
from click.testing import CliRunner

from megaptm.commands.generate import generate_command as command
from megaptm.errors import UserError, printable
from megaptm.inference.generate import (
    Sampler,
    Sampling,
    continue_ids,
    continue_text,
    enable_key_value_cache,
    generate_ids,
    insert_fillings,
    predict_masks,
)
from megaptm.inference.loaded_model import load_model
from megaptm.inference.prompt import read_prompt
from megaptm.tokenizers import load_tokenizer as tokenizer_at
from tests.models.tiny import tiny_batch, tiny_model
from tests.train.runs import build, save_untrained, sharpen, write_text

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return family -> run folder."""
    folder = tmp_path_factory.mktemp("runs")
    text = write_text(folder / "tales")
    return {
        family: save_untrained(family, folder / f"{family}-run", build(text, folder / family, family))[0]
        for family in ("gpt2", "bert", "electra", "t5", "bart", "transformer")
    }


@pytest.fixture(scope="module")
def trained_for(runs, tmp_path_factory):
    """Return a function that opens an untrained run of T5 with the given objective."""
    opened_runs = {}

    def of(objective):
        if objective not in opened_runs:
            folder, corpus = tmp_path_factory.mktemp("t5") / "run", (runs["t5"] / "tokenizer").resolve().parent
            opened_runs[objective] = load_sharpened(save_untrained("t5", folder, corpus, f"objective={objective}")[0])
        return opened_runs[objective]

    return of


@pytest.fixture
def gpt(runs):
    return load_sharpened(runs["gpt2"])


def load_sharpened(run):
    trained = load_model(run)
    sharpen(trained.model)
    return trained


def full_pass(trained, ids):
    """Return the logits [S, V] of a forward pass over all ids."""
    tokens = torch.tensor([ids], device=trained.device)
    return trained.model.logits({"tokens": tokens})["lm"][0]


def test_key_value_cache_gives_the_logits_of_a_full_pass(gpt):
    ids = gpt.tokenizer.encode("The cat saw the hat by the window. The dog").tolist()
    expected = full_pass(gpt, ids)
    with enable_key_value_cache(gpt.model.decoder) as cache:
        for _ in range(2):  # the second time with a cleared cache
            steps = [gpt.model.logits({"tokens": torch.tensor([ids[:4]])})["lm"][0]]
            for position in range(4, len(ids)):
                batch = {"tokens": torch.tensor([[ids[position]]]), "positions": torch.tensor([[position]])}
                steps.append(gpt.model.logits(batch)["lm"][0])
            torch.testing.assert_close(torch.cat(steps), expected, rtol=1e-4, atol=1e-4)
            cache.clear()
    assert "Cached" not in repr(gpt.model)


@pytest.mark.parametrize(("family", "shapes"), [("palm", [(12, 1, 16)] * 2), ("gpt3-banded", [(12, 4, 8), (5, 4, 8)])])
def test_key_value_cache_is_no_longer_than_needed(family, shapes):
    """PaLM has one key-value head. A banded layer caches only the positions of its band."""
    model, tokens = tiny_model(family), tiny_batch(family, rows=1)["tokens"]
    expected = model.logits({"tokens": tokens})["lm"][0]
    with enable_key_value_cache(model.decoder) as cache:
        steps = [model.logits({"tokens": tokens[:, :7]})["lm"][0]]
        for position in range(7, 12):
            batch = {"tokens": tokens[:, position : position + 1], "positions": torch.tensor([[position]])}
            steps.append(model.logits(batch)["lm"][0])
        torch.testing.assert_close(torch.cat(steps), expected, rtol=1e-4, atol=1e-4)
        keys = [layer.keys_values[0] for layer in cache.layers]
        assert [(len(key), *key.shape[2:]) for key in keys] == shapes


def test_greedy_continuation_matches_full_passes(gpt):
    ids = gpt.tokenizer.encode("The cat").tolist()
    output = list(continue_ids(gpt, ids, tokens=40, sampler=Sampler(GREEDY, gpt.tokenizer)))
    assert len(set(output)) > 3
    prefixes = [ids + output[:index] for index in range(len(output))]
    assert output == [int(full_pass(gpt, prefix)[-1, : gpt.tokenizer.vocabulary].argmax()) for prefix in prefixes]


def test_generation_beyond_context_continues_from_its_second_half(gpt):
    ids = gpt.tokenizer.encode("The cat").tolist()
    limit = gpt.spec.context
    output = list(continue_ids(gpt, ids, tokens=limit + 20, sampler=Sampler(GREEDY, gpt.tokenizer)))
    assert len(output) == limit + 20
    text = [*ids, *output]
    window = text[limit + 1 - limit // 2 : limit + 1]  # used when the text is first longer than the context, by one
    assert text[limit + 1] == int(full_pass(gpt, window)[-1, : gpt.tokenizer.vocabulary].argmax())


def test_long_prompt_is_truncated_at_its_start(gpt):
    ids = gpt.tokenizer.encode("The cat saw the dog. " * 40).tolist()
    assert len(ids) > gpt.spec.context
    (output,) = continue_ids(gpt, ids, tokens=1, sampler=Sampler(GREEDY, gpt.tokenizer))
    window = ids[-(gpt.spec.context // 2) :]
    assert output == int(full_pass(gpt, window)[-1, : gpt.tokenizer.vocabulary].argmax())


def test_document_end_stops_generation(gpt):
    ids = gpt.tokenizer.encode("The cat").tolist()
    output = list(continue_ids(gpt, ids, tokens=10, sampler=Sampler(GREEDY, gpt.tokenizer)))
    special, end = gpt.tokenizer.special, output[3]
    gpt.tokenizer.__dict__["special"] = type(special)(size=special.size, end=end)
    shorter = list(continue_ids(gpt, ids, tokens=10, sampler=Sampler(GREEDY, gpt.tokenizer)))
    assert shorter == output[: output.index(end)]


def test_seed_determines_generated_text(gpt):
    def generate(seed):
        return "".join(continue_text(gpt, "The cat", tokens=30, sampling=Sampling(seed=seed, temperature=2.0)))

    assert generate(1) == generate(1)
    assert generate(1) != generate(2)


def test_streamed_text_joins_to_the_decoded_text(gpt):
    sampling = Sampling(seed=5, temperature=3.0, top_k=0)  # random enough to generate incomplete characters
    ids = gpt.tokenizer.encode("The cat").tolist()
    all_ids = [*ids, *continue_ids(gpt, ids, tokens=60, sampler=Sampler(sampling, gpt.tokenizer))]
    pieces = list(continue_text(gpt, "The cat", tokens=60, sampling=sampling))
    assert gpt.tokenizer.decode(all_ids).rstrip("\N{REPLACEMENT CHARACTER}").startswith("The cat" + "".join(pieces))
    assert len(pieces) > 5


def test_top_k_tokens_are_sampled_by_probability(gpt):
    sampler = Sampler(Sampling(temperature=0.5, top_k=2), gpt.tokenizer)
    logits = torch.zeros(gpt.spec.vocabulary)
    logits[7], logits[9] = 2.0, 1.5
    samples = [sampler(logits.clone()) for _ in range(2000)]
    assert set(samples) == {7, 9}
    expected = 1 / (1 + torch.tensor(-(2.0 - 1.5) / 0.5).exp().item())
    assert samples.count(7) / 2000 == pytest.approx(expected, abs=0.04)


def test_ids_outside_the_tokenizer_are_not_sampled(gpt):
    logits = torch.zeros(gpt.tokenizer.vocabulary + 5)
    logits[gpt.tokenizer.vocabulary :] = 100.0
    sampler = Sampler(Sampling(top_k=0), gpt.tokenizer)
    assert max(sampler(logits.clone()) for _ in range(200)) < gpt.tokenizer.vocabulary


def test_fillings_are_inserted_at_their_holes():
    text = [5, 100, 6, 101, 7]

    def ids(output):
        return [id_ for part, _ in insert_fillings(text, output, [100, 101]) for id_ in part]

    assert insert_fillings(text, [100, 1, 2, 101, 3], [100, 101])[:3] == [([5], False), ([1, 2], True), ([6], False)]
    assert ids([100, 1, 2, 101, 3]) == [5, 1, 2, 6, 3, 7]
    assert ids([9, 9, 101, 3, 100, 1]) == [5, 1, 6, 3, 7]
    assert ids([100, 1]) == [5, 1, 6, 7]
    assert ids([9]) == [5, 6, 7]


def output_by_full_passes(loaded, encoder_ids, decoder_start, tokens):
    """Return the greedy output of an encoder-decoder, by a forward pass over all ids for each token."""
    special, vocabulary, output = loaded.tokenizer.special, loaded.tokenizer.vocabulary, []
    while len(output) < tokens:
        batch = {"tokens": torch.tensor([encoder_ids]), "decoder_tokens": torch.tensor([[*decoder_start, *output]])}
        logits = loaded.model.logits(batch)["lm"][0, -1, :vocabulary]
        logits[[id_ for id_ in (special.pad, special.begin) if id_ is not None]] = float("-inf")
        if (id_ := int(logits.argmax())) == special.end:
            break
        output.append(id_)
    return output


def test_prompt_is_prepared_as_in_training(runs, trained_for):
    """T5's prompts have numbered holes, BART's have masks and start tokens, and a translator's are plain text."""
    t5, bart, translator = (load_sharpened(runs[family]) for family in ("t5", "bart", "transformer"))
    tasks = trained_for("text-to-text")
    masked = trained_for("bert-style")

    def ids(loaded, text):
        return loaded.tokenizer.encode(text).tolist()

    def pad_end(loaded):
        return loaded.tokenizer.special.pad, loaded.tokenizer.special.end

    (pad, end), hole = pad_end(t5), t5.tokenizer.special.sentinels[0]
    with_hole = [*ids(t5, "The"), hole, *ids(t5, "saw"), end]
    special = bart.tokenizer.special
    begin, mask, bart_end = special.begin, special.mask, special.end
    cases = [
        (t5, "The <extra_id_0> saw", with_hole, [pad]),
        (bart, "The<mask> saw", [begin, *ids(bart, "The"), mask, *ids(bart, " saw"), bart_end], [bart_end, begin]),
        (translator, "The cat", [*ids(translator, "The cat"), pad_end(translator)[1]], [pad_end(translator)[0]]),
        (tasks, "The cat", [*ids(tasks, "The cat"), end], [pad]),
        (tasks, "The <extra_id_0> saw", with_hole, [pad]),  # plain text is trained with corrupted spans
        (masked, "<extra_id_0> saw <extra_id_0>", [hole, *ids(masked, "saw"), hole, end], [pad]),
    ]
    for loaded, prompt, encoder_ids, decoder_start in cases:
        kind, prompt_ids = read_prompt(loaded, prompt)
        output = list(generate_ids(loaded, prompt_ids, kind=kind, tokens=12, sampler=Sampler(GREEDY, loaded.tokenizer)))
        assert output, prompt
        assert output == output_by_full_passes(loaded, encoder_ids, decoder_start, 12), prompt
        if kind != "sentinels":
            assert loaded.fill(prompt, tokens=12, temperature=0) == loaded.tokenizer.decode(output)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_mask_predictions_match_a_full_pass(runs, family):
    bert = load_sharpened(runs[family])
    special, tokenizer = bert.tokenizer.special, bert.tokenizer
    first, second = predict_masks(bert, "The [MASK] saw the [MASK].", guesses=3)
    words = [tokenizer.encode(part).tolist() for part in ("The", "saw the", ".")]
    ids = [special.cls, *words[0], special.mask, *words[1], special.mask, *words[2], special.sep]
    row = {"tokens": torch.tensor([ids]), "segments": torch.zeros(1, len(ids), dtype=torch.int64)}
    probabilities = bert.model.logits(row)["mlm"][0, ids.index(special.mask), : tokenizer.vocabulary].softmax(0)
    assert [prediction.probability for prediction in first] == pytest.approx(
        probabilities.topk(3).values.tolist(), rel=1e-4
    )
    assert first[0].token == tokenizer.library.id_to_token(int(probabilities.argmax()))
    assert first != second


@pytest.mark.parametrize(
    ("family", "prompt", "message"),
    [
        ("gpt2", "", "the prompt is empty"),
        ("t5", "The cat", "the prompt needs holes"),
        ("t5", "The <extra_id_1>", "the prompt needs holes"),
        ("bart", "The cat", "the prompt needs a <mask> for the model to fill"),
        ("transformer", "", "the prompt is empty"),
        ("bert", "The cat", r"the prompt needs a \[MASK\]"),
        ("bert", "[MASK]" * 200, "the prompt has 202 tokens, more than the 128 that the model reads"),
    ],
)
def test_unsuitable_prompt_is_an_error(runs, family, prompt, message):
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(command, [str(runs[family]), "--prompt", prompt], catch_exceptions=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 1e-320}, r"temperature \(1e-320\) must be 0, or from 0\.001 to 1000"),
        ({"temperature": float("nan")}, r"temperature \(nan\) must be 0, or"),
        ({"temperature": 1e308}, r"temperature \(1e\+308\) must be 0, or"),
        ({"top_k": -1}, r"top-k \(-1\) must be 0 or more"),
        ({"seed": 10**30}, r"seed \(10+\) must be a 64-bit integer"),
    ],
)
def test_invalid_sampling_is_an_error(options, message):
    with pytest.raises(UserError, match=message):
        Sampling(**options)


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_text_with_a_surrogate_is_an_error(runs, family):
    tokenizer = tokenizer_at(runs[family] / "tokenizer")
    for encode in (tokenizer.encode_batch, tokenizer.encode_batch_with_ends):
        with pytest.raises(
            UserError, match=r"a text contains '\\udcff': half of a character, or a byte that is not UTF-8"
        ):
            encode(["whole", "The \udcff cat"])


def test_generate_command_output(runs):
    def run(family, *arguments):
        result = CliRunner().invoke(command, [str(runs[family]), "--prompt", *arguments], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    trained = load_model(runs["gpt2"])
    continuation = "".join(islice(continue_text(trained, "The cat", tokens=9, sampling=Sampling(seed=4)), 9))
    assert run("gpt2", "The cat", "--tokens", "9", "--seed", "4") == printable(f"The cat{continuation}\n")
    assert run("t5", "The <extra_id_0> saw", "--tokens", "5", "--greedy").startswith("The")
    t5_command = [command, [str(runs["t5"]), "--prompt", "The <extra_id_0> saw", "--tokens", "5", "--greedy"]]
    in_color = CliRunner().invoke(*t5_command, color=True, catch_exceptions=False).output
    assert re.fullmatch(r"The(\x1b\[1m.*\x1b\[0m)? ?saw\n", in_color)
    assert re.sub(r"\x1b\[\dm", "", in_color) == CliRunner().invoke(*t5_command, catch_exceptions=False).output
    assert run("bart", "The<mask> saw", "--tokens", "5", "--greedy").strip()
    assert run("transformer", "The cat", "--tokens", "5") == run("transformer", "The cat", "--tokens", "5", "--beams=4")
    assert run("bert", "The [MASK] saw", "--guesses", "2").splitlines()[1].split() == [
        "mask",
        "guess",
        "1",
        "guess",
        "2",
    ]


def test_run_without_checkpoint_is_an_error(runs, tmp_path):
    (tmp_path / "config.yaml").write_text((runs["gpt2"] / "config.yaml").read_text())
    with pytest.raises(UserError, match="has no checkpoint yet"):
        CliRunner().invoke(command, [str(tmp_path), "--prompt", "The"], catch_exceptions=False)
