"""Our tokenizer alone: texts in memory to ids in memory, in so many processes. Arguments as for per_document.py."""

import json
import multiprocessing
import sys
import time

from megaptm.tokenizers import load

BATCH = 1000


def read(file: str) -> list[str]:
    with open(file, "rb") as lines:
        return [json.loads(line)["text"] for line in lines]


def encode(job: tuple[list[str], str]) -> tuple[int, float]:
    files, folder = job
    tokenizer = load(folder)
    texts = [text for file in files for text in read(file)]
    tokenizer.encode("once, to be ready")
    begun = time.perf_counter()
    tokens = sum(sum(map(len, tokenizer.encode_batch(texts[at : at + BATCH]))) for at in range(0, len(texts), BATCH))
    return tokens, time.perf_counter() - begun


def main() -> None:
    given = json.loads(sys.argv[1])
    workers = given["workers"]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        done = pool.map(encode, [(given["files"][n::workers], given["folder"]) for n in range(workers)], chunksize=1)
    print(json.dumps({"tokens": sum(tokens for tokens, _ in done), "seconds": max(seconds for _, seconds in done)}))


if __name__ == "__main__":
    main()
