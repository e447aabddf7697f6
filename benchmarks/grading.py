"""How many answers of mathematics are graded a minute, each pair for the first time.

    python -m benchmarks.grading FILE... [--workers 2] [--limit 10000]

Every gold is graded in two writings, and the golds of the next problems as wrong answers to it; no
pair occurs twice. Prints JSON: n, how many of them went to a worker, how many are right, seconds of
wall time, gradings a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

from inwit.envs.base import Task
from inwit.envs.math import Grader, Math, MathSettings, final_answer
from inwit.envs.math.grading import Allowed, same_at_sight

AT_ONCE = 256


def pairs(tasks: Sequence[Task], limit: int) -> list[tuple[str, str]]:
    """(gold, attempt): two writings of the right answer, and wrong answers from further and further
    away, until there are enough. No pair occurs twice."""
    found: dict[tuple[str, str], None] = {}
    for away in range(len(tasks)):
        for i, task in enumerate(tasks):
            answer = tasks[(i + away) % len(tasks)].reference
            for written in (answer, answer.replace("\\frac", "\\dfrac").replace(" ", "  ")):
                found[task.reference, f"So it is $\\boxed{{{written}}}$."] = None
            if len(found) >= limit:
                return list(found)[:limit]
    return list(found)


async def grade_all(grader: Grader, planned: Sequence[tuple[str, str]]) -> int:
    """How many are right."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(gold: str, text: str) -> bool:
        async with gate:
            return await grader.agrade(gold, final_answer(text))

    return sum(await asyncio.gather(*(one(*pair) for pair in planned)))


def measure(files: Sequence[Path], limit: int, workers: int | None) -> dict[str, float]:
    grader = Grader(workers=workers)
    tasks = Math.read(MathSettings(file=tuple(files)), files)
    planned = pairs(tasks, limit)
    parsed = sum(
        same_at_sight(gold, final_answer(text), Allowed()) is None for gold, text in planned
    )
    begun = time.perf_counter()
    right = asyncio.run(grade_all(grader, planned))
    seconds = time.perf_counter() - begun
    grader.close()
    return {
        "n": len(planned),
        "by_worker": parsed,
        "right": right,
        "seconds": round(seconds, 2),
        "gradings_a_minute": round(60 * len(planned) / seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--limit", type=int, default=10_000)
    parser.add_argument("--workers", type=int)
    told = parser.parse_args()
    print(json.dumps(measure(told.files, told.limit, told.workers)))


if __name__ == "__main__":
    main()
