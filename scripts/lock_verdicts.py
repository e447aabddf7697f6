"""Does a model of the lock know a right answer from a wrong one, and does its second answer say so?

    python scripts/lock_verdicts.py runs/study-lock/seed-*/warm

For each run (or model folder): the mean probability of `no`, as a critic and at the beginning of a
second answer, after the right chain and after the true chain of the wrong key. On dev, 512 locks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from inwit.envs import Split
from inwit.envs.lock import Lock, LockSettings
from inwit.envs.lock.env import NO

CUES = {"critic": "Check:", "second answer": "Again: Check:"}


@torch.no_grad()
def verdicts(folder: Path) -> dict[str, dict[str, float]]:
    """Mean p(no) by who is asked, after right and wrong answers."""
    path = folder / "model" if (folder / "model").is_dir() else folder
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    no = tokenizer.convert_tokens_to_ids(NO)
    tasks = Lock(LockSettings()).tasks(Split.DEV)
    found: dict[str, dict[str, float]] = {}
    for who, cue in CUES.items():
        for kind in ("right", "wrong"):
            answers = [t.reference if kind == "right" else t.data["wrong"] for t in tasks]
            texts = [f"{t.question} Try: {a} . {cue}" for t, a in zip(tasks, answers, strict=True)]
            ids = torch.tensor(tokenizer(texts, add_special_tokens=False)["input_ids"])
            probabilities = model(ids).logits[:, -1].softmax(-1)[:, no]
            found.setdefault(who, {})[kind] = float(probabilities.mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs or models")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {str(run): verdicts(run) for run in args.runs}
    if args.json:
        print(json.dumps(found, indent=2))
        return
    for run, by in found.items():
        for who, p in by.items():
            print(
                f"{run}  {who:13}  p(no | right) {p['right']:.3f}  p(no | wrong) {p['wrong']:.3f}"
            )


if __name__ == "__main__":
    main()
