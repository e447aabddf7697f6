"""`inwit check-data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from inwit.cli.common import Json, Set, app, err, out, print_json

Column = typer.Option(help="Its column, if the environment would look for another.")
SAYS = {
    "gold": "right answers graded right",
    "solution": "reference solutions graded right",
    "foreign": "other tasks' answers graded wrong",
    "wrong": "given wrong answers graded wrong",
}


@app.command()
def check_data(
    env: Annotated[str, typer.Argument(help="The environment that would read it.")],
    file: Annotated[str, typer.Argument(help="JSON Lines, or hf:owner/name/config@split.")],
    question: Annotated[str | None, Column] = None,
    answer: Annotated[str | None, Column] = None,
    solution: Annotated[str | None, Column] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another file, whose questions should not be in this one.")
    ] = None,
    first: Annotated[int, typer.Option(min=0, help="Offenders shown of each kind.")] = 3,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Check a file of tasks before it is trained on: can it be read, and is it graded as it says?

    Every right answer and reference solution is graded, every other task's answer too, and programs
    are run. Exits with 1 where something is off. Other settings of the environment: --set
    env.key=value.

    [bold]inwit check-data math train.jsonl --against test.jsonl[/]
    """
    from inwit.console import Asked
    from inwit.envs import FileSettings, env_class
    from inwit.envs.checking import check_data as check
    from inwit.envs.checking import file_env
    from inwit.recipe import override, settings_of

    kind = file_env(env, env_class(env))
    columns = {"question": question, "answer": answer, "solution": solution}
    data: dict[str, Any] = {
        "env": {"file": file} | {k: v for k, v in columns.items() if v is not None}
    }
    for text in set_ or []:
        override(data, text)
    settings = settings_of(kind.Settings, data["env"], "env", "check-data")
    assert isinstance(settings, FileSettings)
    with Asked(err, f"checking {Path(file).name}", "graded") as asked:
        report = check(env, kind, settings, against, asked.tell)
    if json_:
        print_json(report.as_dict())
    else:
        _show(report, first)
    if report.off:
        raise typer.Exit(1)


def _show(report: Any, first: int) -> None:
    table = Table("check", "of", "ok", "share", title=f"{report.file}: {report.n} records")
    broken = report.unreadable + report.gold_unparsable
    rows = [("readable, with a usable answer", report.n, report.n - broken)]
    rows += [(SAYS[check], tried.n, tried.ok) for check, tried in report.tried.items()]
    for says, n, ok in rows:
        table.add_row(says, str(n), str(ok), f"{ok / n:.1%}" if n else "")
    out.print(table)
    notes = {
        "unreadable": report.unreadable,
        "with an answer that cannot be graded": report.gold_unparsable,
        "grader errors": report.errors,
        "questions asked again": report.duplicates,
        "asked again with another answer": report.conflicting,
        "questions that are in the other file, too": report.overlap,
    }
    for says, n in notes.items():
        if n:
            out.print(f"{n} {says}", highlight=False)
    shown: dict[str, int] = {}
    for offender in report.offenders:
        shown[offender.check] = shown.get(offender.check, 0) + 1
        if shown[offender.check] <= first:
            out.print(
                f"  {offender.check}  {offender.id}: {offender.why}", markup=False, highlight=False
            )
    out.print(f"{report.seconds:.1f} s", highlight=False)
    verdict = f"[red]off: {', '.join(report.off)}[/]" if report.off else "[green]nothing is off[/]"
    out.print(verdict)
