"""A file in the folder of an unfinished build is used only if every byte of it is what the build wrote."""

import hashlib
import json
import os
import re
from dataclasses import dataclass, replace

import pytest

from data_pipeline.corpus import output
from data_pipeline.corpus.build import build_corpus
from data_pipeline.corpus.work import JobRunner
from data_pipeline.corpus.workers import InProcess
from data_pipeline.deduplicate import Deduplicate, NearDuplicateOptions, ParagraphOptions
from data_pipeline.progress import StageProgress
from tests.data_pipeline.corpus.test_build import files_of


class CutOff(BaseException):
    """Interrupted just before the corpus appeared."""

    def __init__(self, work: JobRunner):
        self.work = work


@pytest.fixture
def unfinished(recipe, tmp_path, monkeypatch):
    """Runs all of the build except the last step; returns the files of the corpus, and what the build read of the
    previous one."""
    uncut = replace(
        recipe, deduplicate=Deduplicate(paragraphs=ParagraphOptions(), near=NearDuplicateOptions(threshold=0.5))
    )

    def publish(self, work):
        raise CutOff(work)

    monkeypatch.setattr(output.LocalOutput, "publish", publish)
    monkeypatch.setattr(output, "MIN_STORED_SECONDS", 0.0)

    def build() -> tuple[dict[str, bytes], JobRunner]:
        with pytest.raises(CutOff) as end:
            build_corpus(uncut, tmp_path / "corpus", workers=0)
        return files_of(tmp_path / "corpus.building" / "corpus"), end.value.work

    return build


# The build itself writes these each time before it reads them.
WRITTEN_AGAIN = re.compile(r"tokenizer/.*|equal/[0-9a-f]+\.(parts\.json|equal\.npy|connected\.npy)")


def test_changed_files_of_unfinished_build_are_rewritten(unfinished, tmp_path):
    expected, _ = unfinished()
    scratch = tmp_path / "corpus.building" / "scratch"
    files = {
        path.relative_to(scratch).as_posix(): path
        for path in scratch.rglob("*")
        if path.is_file() and path.stat().st_size
    }
    results = {name for name in files if name.startswith("finished/")}
    for subset in (files.keys() - results, results):
        for name in subset:
            content = bytearray(files[name].read_bytes())
            content[len(content) // 2] ^= 1
            files[name].write_bytes(content)
        again, work = unfinished()
        assert again == expected
        assert set(work.damaged) == {name for name in subset if not WRITTEN_AGAIN.fullmatch(name)}
        notes = json.loads((tmp_path / "corpus.building" / "corpus" / "report.json").read_text())["notes"]
        assert [note for note in notes if f"{len(work.damaged)} files of an unfinished build had changed" in note]


def test_only_damaged_jobs_run_again(unfinished, tmp_path):
    expected, _ = unfinished()
    scratch = tmp_path / "corpus.building" / "scratch"
    gone, short = next(scratch.glob("parts/*.jsonl")), next(scratch.glob("shards/*.tar"))
    gone.unlink()
    os.truncate(short, 512)
    again, work = unfinished()
    assert again == expected
    assert work.damaged == [path.relative_to(scratch).as_posix() for path in (gone, short)]
    assert work.reused_jobs == len(list(scratch.glob("finished/*/*"))) - 2


@dataclass(frozen=True)
class Job:
    log: str


@dataclass(frozen=True)
class Result:
    number: int


def work_done(job: Job) -> Result:
    with open(job.log, "a") as log:
        log.write("done\n")
    return Result(1)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"cos\nsystem\n(S'touch owned'\ntR.", b'{"sha256":"", "job":{}}', b"\x80\x04" + bytes(200)]
)
def test_foreign_result_is_not_loaded(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        work = JobRunner(tmp_path / "scratch", InProcess(), StageProgress(None))
        assert work.run("work", work_done, [Job(str(tmp_path / "log"))]) == [Result(1)]
        [retained] = (tmp_path / "scratch" / "finished" / "work").iterdir()
        retained.write_bytes(content)
    assert (tmp_path / "log").read_text().count("done") == 2
    assert not (tmp_path / "owned").exists()


FILES_WITHOUT_HASH = '"files":{"a":7},"result":{"number":1}'


def test_result_of_wrong_type_is_not_loaded(tmp_path):
    job = Job(str(tmp_path / "log"))
    JobRunner(tmp_path, InProcess(), StageProgress(None)).run("work", work_done, [job])
    [retained] = (tmp_path / "finished" / "work").iterdir()
    valid_prefix = '"files":{},"result":'
    for inner in (
        *(valid_prefix + invalid for invalid in ('{"number":"1"}', '{"number":null}', "[]", "{}")),
        FILES_WITHOUT_HASH,
    ):
        inner = f"{{{inner}}}".encode()
        retained.write_bytes(b'{"sha256":"%s","job":%s}' % (hashlib.sha256(inner).hexdigest().encode(), inner))
        again = JobRunner(tmp_path, InProcess(), StageProgress(None))
        assert again.run("work", work_done, [job]) == [Result(1)]
        assert again.damaged == [retained.relative_to(tmp_path).as_posix()]


def test_unreadable_result_runs_job_again(tmp_path):
    job = Job(str(tmp_path / "log"))
    JobRunner(tmp_path, InProcess(), StageProgress(None)).run("work", work_done, [job])
    [retained] = (tmp_path / "finished" / "work").iterdir()
    retained.unlink()
    retained.symlink_to(retained.name)  # ELOOP, for any user
    for damaged in ([retained.relative_to(tmp_path).as_posix()], []):
        again = JobRunner(tmp_path, InProcess(), StageProgress(None))
        assert again.run("work", work_done, [job]) == [Result(1)]
        assert again.damaged == damaged
