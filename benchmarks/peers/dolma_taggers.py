"""Dolma's taggers on a JSON Lines file, in one process, each with the CPU seconds of its best round.

{"file": file, "taggers": ["gopher_v1"], "rounds": 3}
"""

import json
import sys
import time


def main() -> None:
    import dolma.taggers  # noqa: F401  registers the taggers
    from dolma.core.data_types import Document
    from dolma.core.registry import TaggerRegistry

    options = json.loads(sys.argv[1])
    with open(options["file"], encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    documents = [Document(source="", version=None, id=str(number), text=text) for number, text in enumerate(texts)]
    seconds = {}
    for name in options["taggers"]:
        tagger = TaggerRegistry.get(name)()
        tagger.predict(documents[0])  # reads its lists
        rounds = []
        for _ in range(options["rounds"]):
            started = time.process_time()
            for document in documents:
                tagger.predict(document)
            rounds.append(time.process_time() - started)
        seconds[name] = min(rounds)
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
