"""Programs a second through the sandbox: `python -m benchmarks.programs mbpp_974.jsonl`.

Reference programs are graded as answers are; loading the file is not timed. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import Counter
from pathlib import Path

from benchmarks.results import machine
from inwit.envs.code import Code, Kind


async def measure(env: Code, n: int) -> dict[str, object]:
    """Wall time over n programs, whose tasks are taken in turn."""
    tasks = [t for t in Code.read(env.settings, env.settings.files) if "solution" in t.data]
    chosen = [tasks[i % len(tasks)] for i in range(n)]
    start = time.monotonic()
    found = await asyncio.gather(
        *(env.outcome(task, env.written(task.data["solution"])) for task in chosen)
    )
    wall = time.monotonic() - start
    taken = sorted(outcome.seconds for outcome in found)
    return {
        "programs": n,
        "passed": sum(outcome.kind is Kind.PASSED for outcome in found),
        "kinds": dict(Counter(outcome.kind for outcome in found)),
        "wall_seconds": wall,
        "programs_per_second": n / wall,
        "seconds_each": {"median": taken[n // 2], "most": taken[-1]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="a file that the environment code reads")
    parser.add_argument("-n", type=int, default=200, help="programs")
    parser.add_argument("--at-once", type=int, default=0, help="0: one for each processor")
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "rlimits"])
    asked = parser.parse_args()
    env = Code.of(file=asked.file, at_once=asked.at_once, sandbox=asked.sandbox)
    found = {"sandbox": asked.sandbox, "at_once": asked.at_once or os.cpu_count()}
    found |= asyncio.run(measure(env, asked.n)) | {"machine": machine()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
