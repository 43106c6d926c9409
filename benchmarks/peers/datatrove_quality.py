"""datatrove's filters by a model of fastText, and its sizes of clusters, on JSON Lines files, in one process.

{"kind": "score", "files": folder, "model": file, "label": name, "threshold": 0.5}; kind may be `language`
or, with the folder "out", `clusters`
"""

import glob
import json
import sys
import time


def read(folder: str, characters: int | None = None) -> list:
    from datatrove.data import Document

    lines = []
    for path in sorted(glob.glob(f"{folder}/*.jsonl")):
        with open(path, encoding="utf-8") as file:
            lines += file.readlines()
    return [Document(text=json.loads(line)["text"][:characters], id=str(number)) for number, line in enumerate(lines)]


def make_filter(options: dict):
    if options["kind"] == "score":
        from datatrove.pipeline.filters import FastTextClassifierFilter

        keep = [(options["label"], options["threshold"])]
        return FastTextClassifierFilter(
            options["model"], keep_labels=keep, save_labels_in_metadata=False, newline_replacement=" "
        )
    from datatrove.pipeline.filters import LanguageFilter
    from datatrove.utils.lid import FT176LID

    FT176LID.MODEL_URL = options["model"]
    return LanguageFilter(["en"], options["threshold"], backend="ft176")


def run_filter(options: dict) -> dict:
    documents = read(options["files"], options.get("characters"))
    chosen = make_filter(options)
    list(chosen.run(iter(documents[:1])))
    started = time.process_time()
    retained = [int(document.id) for document in chosen.run(iter(documents))]
    return {"seconds": time.process_time() - started, "retained": retained}


def run_clusters(options: dict) -> dict:
    from collections import Counter

    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.dedup.minhash import MinhashConfig

    out, config, documents = options["out"], MinhashConfig(), read(options["files"])
    started = time.process_time()
    list(MinhashDedupSignature(f"{out}/signatures", config).run(iter(documents)) or ())
    for bucket in range(config.num_buckets):
        MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets", config=config).run(
            None, rank=bucket, world_size=config.num_buckets
        )
    MinhashDedupCluster(f"{out}/buckets", f"{out}/removed", config, save_cluster_size=True).run(None)
    retained = MinhashDedupFilter(f"{out}/removed", load_cluster_sizes=True).run(iter(documents))
    sizes = Counter(int(document.metadata.get("minhash_cluster_size", 1)) for document in retained)
    seconds = time.process_time() - started
    return {"seconds": seconds, "sizes": [sizes.get(size, 0) for size in range(max(sizes) + 1)]}


def main() -> None:
    options = json.loads(sys.argv[1])
    print(json.dumps(run_clusters(options) if options["kind"] == "clusters" else run_filter(options)))


if __name__ == "__main__":
    main()
