"""megaptm's tokenizer alone: texts in memory to ids in memory, in several processes. Arguments as for
per_document.py."""

import json
import multiprocessing
import sys
import time

from megaptm.tokenizers import load_tokenizer

BATCH = 1000


def read(file: str) -> list[str]:
    with open(file, "rb") as lines:
        return [json.loads(line)["text"] for line in lines]


def encode(job: tuple[list[str], str]) -> tuple[int, float]:
    files, folder = job
    tokenizer = load_tokenizer(folder)
    texts = [text for file in files for text in read(file)]
    tokenizer.encode("once, to be ready")
    started = time.perf_counter()
    tokens = sum(sum(map(len, tokenizer.encode_batch(texts[at : at + BATCH]))) for at in range(0, len(texts), BATCH))
    return tokens, time.perf_counter() - started


def main() -> None:
    options = json.loads(sys.argv[1])
    workers = options["workers"]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        done = pool.map(
            encode, [(options["files"][n::workers], options["folder"]) for n in range(workers)], chunksize=1
        )
    print(json.dumps({"tokens": sum(tokens for tokens, _ in done), "seconds": max(seconds for _, seconds in done)}))


if __name__ == "__main__":
    main()
