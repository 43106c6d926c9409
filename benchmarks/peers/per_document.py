"""One document at a time through `tokenizers`, as in Megatron-LM's tools/preprocess_data.py: JSON Lines in, one flat
file of ids and the lengths out, in several processes.

{"files": [...], "out": folder, "tokenizer": file, "workers": 2}
"""

import json
import multiprocessing
import sys
import time

import numpy as np
from tokenizers import Tokenizer


def encode(job: tuple[int, list[str], str, str]) -> int:
    number, files, out, tokenizer_file = job
    tokenizer = Tokenizer.from_file(tokenizer_file)
    lengths = []
    with open(f"{out}/{number}.bin", "wb") as ids_file:
        for file in files:
            with open(file, "rb") as lines:
                for line in lines:
                    ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
                    ids_file.write(np.array(ids, dtype="<u2").tobytes())
                    lengths.append(len(ids))
    np.array(lengths, dtype="<i4").tofile(f"{out}/{number}.idx")
    return sum(lengths)


def main() -> None:
    options = json.loads(sys.argv[1])
    workers = options["workers"]
    jobs = [
        (number, options["files"][number::workers], options["out"], options["tokenizer"]) for number in range(workers)
    ]
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        started = time.perf_counter()
        tokens = sum(pool.map(encode, jobs, chunksize=1))
        seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "tokens": tokens}))


if __name__ == "__main__":
    main()
