"""How many of the passages that a question needs the index of `search_qa` finds. Prints JSON.

    python -m benchmarks.recall --data ../shared/data

The query is the question as it stands. All passages of all files are searched together. `found` is
the share of supporting paragraphs among the first k results, over all questions; `all` the share of
questions of which every supporting paragraph is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inwit.envs import Record
from inwit.envs.records import read_records
from inwit.envs.search import Index, passages_of, read_corpus

SETS = {
    "hotpotqa": "hotpotqa/hotpotqa_dev_distractor_sample.jsonl",
    "musique": "musique/musique_ans_dev_sample.jsonl",
    "2wiki_eval": "2wikimultihopqa/2wiki_eval_sample164.jsonl",
    "2wiki_train": "2wikimultihopqa/2wiki_train_sample500.jsonl",
}
CORPUS = (*SETS.values(), "2wikimultihopqa/2wiki_corpus_6119.jsonl")
KS = (1, 3, 5, 10)


def index_of(data: Path, cache: Path | None = None) -> Index:
    """Of every passage of the question sets, and of 2Wiki's corpus."""
    return Index(read_corpus(data / name for name in CORPUS), cache)


def supporting(fields: Mapping[str, Any]) -> set[tuple[str, str]]:
    """The keys of a question's supporting paragraphs: marked themselves (MuSiQue), or by title."""
    titles = {title for title, _ in fields.get("supporting_facts", ())}
    both = zip(passages_of(fields), fields["paragraphs"], strict=True)
    return {p.key for p, raw in both if raw.get("is_supporting") or raw["title"] in titles}


def recall(index: Index, file: Path) -> dict[str, Any]:
    """Of one set, at each k of KS."""
    found, whole, golds, questions = dict.fromkeys(KS, 0), dict.fromkeys(KS, 0), 0, 0
    for record in read_records(file):
        assert isinstance(record, Record), record.why
        gold = supporting(record.fields)
        got = [passage.key for passage in index.search(record.fields["question"], max(KS))]
        golds, questions = golds + len(gold), questions + 1
        for k in KS:
            hits = len(gold.intersection(got[:k]))
            found[k] += hits
            whole[k] += hits == len(gold)
    return {
        "questions": questions,
        "supporting": golds,
        "found": {k: round(n / golds, 3) for k, n in found.items()},
        "all": {k: round(n / questions, 3) for k, n in whole.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("INWIT_DATA", "../shared/data")
    parser.add_argument("--data", type=Path, default=Path(default), help="folder of the sets")
    data: Path = parser.parse_args().data
    index = index_of(data)
    sets = {name: recall(index, data / file) for name, file in SETS.items()}
    json.dump({"passages": len(index.passages), "sets": sets}, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
