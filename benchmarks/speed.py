"""How fast is a GRPO step of inwit beside TRL's, and beside what this machine can multiply?

    make bench                                   # every case: more than an hour on two cores
    make bench-quick                             # the 3.2M case alone: minutes
    python -m benchmarks.speed --list
    python -m benchmarks.speed --case smollm2 --case tiny

For each case three processes take turns, one step at a time, so that all see the same machine and
none disturbs another: inwit, TRL's GRPOTrainer (in benchmarks/.venv-trl, from `make bench-peer`),
and one that measures how fast this machine multiplies matrices at the case's shapes. The first step
warms up; medians are taken over the others. A case counts only if both sides sampled and trained
exactly the same number of tokens under the same prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from benchmarks.cases import CASES, QUICK, Case, chosen
from benchmarks.results import FEWEST, Record, UnequalWork, record_of, table, write
from benchmarks.wire import Job, Step
from benchmarks.workers import ROOT, Worker, WorkerFailed

PEER = ROOT / "benchmarks" / ".venv-trl" / "bin" / "python"
OUT = ROOT / "benchmarks" / "results" / "latest.json"
DEADLINE = 1800.0
"""Seconds after which a worker that says nothing is given up."""

progress = Console(stderr=True, highlight=False)


def job_of(case: Case, steps: int) -> Job:
    from benchmarks.models import model_folder, prompts  # they take seconds to import

    folder = model_folder(case.model)
    return Job(
        folder=str(folder),
        texts=prompts(folder, case.prompts, case.prompt_tokens, case.common_tokens),
        group=case.group,
        prompt_tokens=case.prompt_tokens,
        completion_tokens=case.completion_tokens,
        threads=case.threads,
        steps=steps,
        options={"rows_at_once": case.trl_rows},
    )


def measure(case: Case, count: int, deadline: float) -> Record:
    """Run a case: a warm-up and `count` steps of each side, in turns.

    Raises WorkerFailed or UnequalWork.
    """
    load = os.getloadavg()[0]
    job = job_of(case, count + 1)
    ours = Path(sys.executable)
    with ExitStack() as stack:
        workers = {}
        for name, python in (("inwit", ours), ("trl", PEER), ("limit", ours)):
            module = f"benchmarks.{name}_worker"
            worker = Worker(name, python, module, job, deadline)
            workers[name] = stack.enter_context(worker)
        if workers["inwit"].ready.prompts != workers["trl"].ready.prompts:
            raise UnequalWork(f"the two sides read other prompts in {case.name}")
        steps = take_turns(workers, count)
    versions = {name: worker.ready.versions for name, worker in workers.items()}
    return record_of(case, steps, versions, load)


def take_turns(workers: dict[str, Worker], count: int) -> dict[str, list[Step]]:
    """A step of each worker, `count` + 1 times, in an order that turns round every time."""
    steps: dict[str, list[Step]] = {name: [] for name in workers}
    for number in range(count + 1):
        order = list(workers) if number % 2 == 0 else list(reversed(workers))
        progress.print(f"  {'warm-up' if number == 0 else f'step {number}/{count}'}:", end="")
        for name in order:
            step = workers[name].step()
            steps[name].append(step)
            progress.print(f"  {name} {step.total:.2f} s", end="")
        progress.print()
    return steps


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--case", action="append", default=[], help="only this case; may be repeated")
    made.add_argument("--quick", action="store_true", help=f"only the case {QUICK}")
    made.add_argument("--list", action="store_true", help="list the cases and stop")
    made.add_argument(
        "--steps",
        type=int,
        default=FEWEST,
        help=f"steps after the warm-up; a result of fewer than {FEWEST} is shown, not written "
        "(default: %(default)s)",
    )
    made.add_argument(
        "--out",
        type=Path,
        default=OUT,
        help="where records go, after each case; others in it stay (default: %(default)s)",
    )
    made.add_argument("--json", action="store_true", help="print records instead of a table")
    made.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE,
        help="seconds one step may take (default: %(default)s)",
    )
    return made


def run(cases: list[Case], args: argparse.Namespace) -> list[Record]:
    records = []
    for case in cases:
        progress.print(f"{case.name}: {case.describe()}")
        record = measure(case, args.steps, args.deadline)
        records.append(record)
        if args.steps >= FEWEST:
            write(record, args.out)
    return records


def main() -> int:
    cli = parser()
    args = cli.parse_args()
    try:
        cases = chosen(args.case, args.quick)
    except ValueError as error:
        cli.error(str(error))
    if args.list:
        for case in cases:
            print(f"{case.name:22} {case.model:14} {case.describe()}")
        return 0
    if args.steps < 1:
        cli.error("--steps must be at least 1")
    if not PEER.exists():
        cli.error(f"TRL has no virtual environment at {PEER.parent.parent}: run `make bench-peer`")
    if args.steps >= FEWEST and len(cases) == len(CASES):
        args.out.unlink(missing_ok=True)  # a whole run leaves nothing of an older one
    try:
        records = run(cases, args)
    except (WorkerFailed, UnequalWork) as error:
        progress.print(str(error), markup=False)
        return 1
    if args.json:
        print(json.dumps(records, indent=1))
    else:
        Console(width=120).print(table(records))
    if args.steps < FEWEST:
        progress.print(f"Fewer than {FEWEST} steps: nothing was written.")
    else:
        progress.print(f"Written to {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
