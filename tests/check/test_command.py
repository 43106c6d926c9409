"""Output of `megaptm check`."""

from click.testing import CliRunner

from megaptm.__main__ import main


def printed(*words):
    done = CliRunner().invoke(main, ["check", *words], env={"COLUMNS": "200", "PATH": "/nonexistent"})
    return done.exit_code, [line.rstrip() for line in done.stdout.splitlines()]


def test_output_has_marks_topics_and_counts(bench):
    (bench.run).write_text("")
    code, lines = printed(*bench.words("optimizer.warmup_steps=20", "--only=config", "--only=memory", "--only=folder"))
    assert code == 2
    assert lines[0].startswith("✓ config     gpt2/custom, ")
    assert lines[1].startswith("!            optimizer.warmup_steps (20) is not less than")
    assert lines[2].startswith("? memory     unknown whether a rank fits on its device: name a machine with --machine.")
    assert lines[3].startswith("✗ folder     run (")
    assert lines[-1] == "1 fault, 1 warning, 1 unknown, 1 ok."


def test_unknown_topic_lists_known_topics(bench):
    code, lines = printed(*bench.words("--only=date"))
    assert code == 2
    assert lines[0].startswith("✗ topic      --only date: no such topic; choose from config, processes, memory")


def test_missing_config_file_is_one_fault():
    code, lines = printed("nowhere.yaml")
    assert code == 2
    assert (
        lines[0]
        == "✗ config     nowhere.yaml: no such config file; give the path of a YAML file, or a name such as gpt2/tiny."
    )
    assert lines[-1] == "1 fault."
