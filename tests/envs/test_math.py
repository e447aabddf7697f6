"""Mathematics graded: the hand-made cases, the workers and what kills them, and the environment."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.envs import BrokenData, Split, env_class
from inwit.envs.math import Allowed, Grader, GradingFailed, Math, final_answer
from inwit.envs.math.grading import same_at_sight
from inwit.envs.math.texts import balanced, plain, short, tidy, wordy
from inwit.envs.math.workers import Pool
from inwit.rows import Grade


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    made = Grader(seconds=3)
    yield made
    made.close()


# ---------------------------------------------------------------------- finding the answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{3}.", "3"),
        (r"first \boxed{3}, no: \boxed{4}", "4"),
        (r"\boxed{4} is what we wanted, not 5", "4"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{x \text{ if } \{1\} }", r"x \text{ if } \{1\}"),
        (r"\boxed {7}", "7"),
        (r"\boxed 2$", "2"),
        (r"\fbox{8} and \framebox{9}", "9"),
        (r"\boxed{3} and then \boxed{4", "3"),
        (r"{ a stray brace \boxed{4}", "4"),
        ("so the sum is 18\n#### 18", "18"),
        ("**Answer:** $5$.", "5"),
        ("Answer: 42", "42"),
        ("The final answer is $x = 5$, as was to be shown.\nThat is all.", "x = 5"),
        ("Answer: 3\nNo, wait.\nAnswer: 4", "4"),
        ("first\n17", "17"),
        ("", ""),
        ("\n \n", ""),
    ],
)
def test_an_attempt_states_one_answer(text, answer):
    assert final_answer(text) == answer


def test_a_box_within_a_box_is_no_other_answer():
    assert short(final_answer(r"\boxed{\boxed{4}}")) == "4"


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 150_000,
        "{" * 1_000_000,
        "answer: " * 130_000,
        "$" * 1_000_000,
        r"\boxed{" + "9" * 1_000_000 + "}",
        r"\text " * 200_000,
        "\\" * 1_000_001,
        "Answer:" + " " * 1_000_000 + "\n",
        "answer" + " " * 1_000_000,
        r"\boxed" + " " * 1_000_000,
    ],
    ids=lambda text: repr(text[:8]),
)
def test_a_megabyte_is_no_trouble(text, grader):
    answer = final_answer(text)
    assert isinstance(short(answer), str)
    assert not grader.grade("7", answer)


@pytest.mark.parametrize(
    "text",
    [
        "1" + "/  " * 600 + "!",
        "1" + r"\text{a}  ^2  " * 140 + "!",
        "1 " + "ab" * 900 + "!",
        "1 " * 900 + "!",
        "1" + " " * 1900 + "!",
        "," * 1900 + "!",
        ", " * 900 + "!",
        r"\frac" + " " * 1900 + "!",
        "1,234" * 380 + "!",
        r"\mbox" * 300 + "!",
        "." * 1900 + "!",
        "{" * 900 + "}" * 900,
        r"\overline{1}" * 150,
    ],
    ids=lambda text: repr(text[:12]),
)
@pytest.mark.timeout(60)
def test_reading_at_sight_never_takes_long(text):
    """It runs in the caller's process, where there is no deadline."""
    for _ in range(20):
        short(text)
        final_answer(f"Answer: {text}")
        wordy(text)
        same_at_sight("7", text, Allowed())


@given(st.text("\\{}()[]boxed, 0123.^_-$%abtex\n", max_size=60))
@settings(deadline=None, max_examples=300)
def test_nothing_that_a_policy_writes_breaks_the_reading(text):
    answer = final_answer(text)
    assert isinstance(short(answer), str)
    assert isinstance(balanced(tidy(answer)), bool)
    plain(tidy(answer))


# ---------------------------------------------------------------------- equal, and not

CASES = r"""
\frac{1}{2} == 0.5
\frac{1}{2} == 1/2
\frac{1}{2} == \dfrac{1}{2}
\frac{1}{2} == \frac12
-\frac{1}{2} == \frac{-1}{2}
\frac{1}{3} == 0.333333
\frac{1}{3} != 0.33
0.\overline{3} == \frac13
2\frac{1}{3} == \frac{7}{3}
\frac{7}{3} == 2 1/3
1,234 == 1234
1234 == 1{,}234
10,\!000 == 10000
1 234 567 == 1234567
7 == 7.0000000001
7 != 7.0001
025 == 25
\$18 == 18
18 == \$18.00
18 == $18
50\% == 50
0.5 == 50\%
50\% != 5\%
0.56 = 56\% == 0.56
5 == x = 5
x = 5 == 5
x=5 != y=5
\angle BEA=90 == 90
y = 2x+3 == 2x+3
y = 2x+3 == y=3+2x
f(x)=2x == 2x
5 == 5\text{ cm}
5 == 5 \text{ cm}^2
5 == 5 cm
42 == 42 apples
6\pi == 6\pi \text{ cm}^2
\frac{3}{4}\pi\text{ inches} == \frac{3\pi}{4}
90^\circ == 90
90 == 90^{\circ}
90 == 90°
-5 == −5
(0,1) == (0, 1)
(0,1) != [0,1]
[0,1) != (0,1]
[0,1) == [0, 1)
(0,4] == t \in (0,4]
(1,2) == 1 < x < 2
[1,2] != 1 < x < 2
(-\infty,0)\cup(1,2) == (1,2) \cup (-\infty, 0)
(-\infty,0)\cup(1,2) != (-\infty,0)\cup(1,2]
(-\infty,\infty) == \mathbb{R}
\infty == infinity
-\infty != \infty
\{1,2,3\} == \{3, 2, 1\}
1,2,3 == 3, 1, 2
1,2,3 == \{1,2,3\}
1,2,3 != 1,2
1,2,3 != 1,2,3,4
1,2 == 1 \text{ and } 2
1,2 == x=1 or x=2
3 != 3 or 4
\emptyset == \varnothing
(1,2) != (2,1)
(1,2) == \left(1, 2\right)
(3,\frac{\pi}{2}) == (3, \pi/2)
(1,2),(3,4) == (3,4), (1,2)
(1,2),(3,4) != (2,1),(3,4)
f(x)=x,f(x)=-x == f(x) = -x, f(x) = x
\begin{pmatrix} 1 \\ 2 \end{pmatrix} == \begin{pmatrix}1\\2\end{pmatrix}
\begin{pmatrix} 1 & 2 \\ 3 & 1/2 \end{pmatrix} == \begin{bmatrix}1&2\\3&\frac12\end{bmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} != \begin{pmatrix}2\\1\end{pmatrix}
\text{no solution} == No solution.
\text{no solution} != 0
\text{Monday} == monday
\text{Monday} != Tuesday
\text{two lines} == two lines
\text{even} != \text{odd}
\text{(A)} == A
A == \textbf{(A)}
\text{(A)} != B
\text{A,B} == B, A
\text{A,B,C} != A,B
\text{June 20} != \text{June 21}
\text{4:30 p.m.} == 4:30 pm
\text{4:30 p.m.} != 4:45 pm
1011_2 == 1011_{2}
1011_2 == 1011
1011_2 != 1011_3
1011_2 != 1101_2
\pm 2 == 2, -2
1,-1,7,-7 == \pm 1, \pm 7
3 \pm 2\sqrt{2} == 3+2\sqrt2, 3-2\sqrt{2}
3 \pm 2\sqrt{2} != 3+2\sqrt2
x^2+2x+1 == (x+1)^2
x^2+2x+1 != x^2+2x+2
\sqrt{8} == 2\sqrt{2}
\frac{\sqrt{3}}{3} == \frac{1}{\sqrt{3}}
\sqrt{2} == 1.41421356
\sqrt{2} != 1.41
2^{4181} != 32
2^{2005} != 2^{2005}+1
2^{10} == 1024
10! == 3628800
\binom{5}{2} == 10
\log_2 8 == 3
1+2i == 2i+1
1+2i != 1-2i
1e-8 != 2e-8
1.07e16 == 1.07 \times 10^{16}
\sin^2 t == 1-\cos^2 t
\frac{1}{3} E_{1} == E_1/3
\frac{1}{3} E_{1}+\frac{2}{3} E_{2} != \frac{2}{3} E_{1}+\frac{2}{3} E_{2}
\frac23 == \frac23 \approx 0.67
0.67 == \frac23 \approx 0.67
\frac23 != 0.5 \approx \frac23
x \le 3 == 3 \ge x
1:2 != 2:1
3 != 3x
12 != 12, 13
5 == \(5\)
5 == **5**
5 != \frac{}{}
5 != \boxed{
5 != {{{
"""


@pytest.mark.parametrize("case", CASES.strip().splitlines())
def test_answers_are_compared_as_mathematics(case, grader):
    right = " == " in case
    gold, answer = case.split(" == " if right else " != ")
    assert grader.grade(gold, answer) is right
    assert grader.grade(gold, gold)


@pytest.mark.parametrize("gold", ["5", "0", r"\text{Monday}", "x", "(0,1)", r"\emptyset"])
@pytest.mark.parametrize("answer", ["", " ", "$$", r"\boxed{}", "{}", "\x00", "\ud800", "?"])
def test_an_empty_answer_is_wrong(gold, answer, grader):
    assert not grader.grade(gold, answer)


def test_a_tolerance_can_be_allowed(grader):
    assert not grader.grade("4.2", "4.25")
    assert grader.grade("4.2", r"4.25\%", Allowed(absolute=0.1))
    assert not grader.grade("4.2", "4.35", Allowed(absolute=0.1))
    assert grader.grade("1.6e5", "161000", Allowed(relative=0.01))
    assert not grader.grade("1.6e5", "162000", Allowed(relative=0.01))
    assert grader.grade(r"\sqrt{2}", "1.41", Allowed(relative=0.01))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\boxed{\frac12}", "Answer: 0.5"),
        (r"\boxed{1{,}234}", "#### 1234"),
        (r"\boxed{\text{(A)}}", r"\boxed{\textbf{(a)}}"),
        (r"\boxed{\left( 3, \dfrac{\pi}{2} \right)}", r"\boxed{(3,\frac{\pi}{2})}"),
    ],
)
def test_votes_count_equal_answers_together(one, other):
    assert short(final_answer(one)) == short(final_answer(other))
    assert short(final_answer(one)) != short("7")


# ---------------------------------------------------------------------- what costs too much

HANGING = (r"9^{9^{9^{9}}}", r"10^{10^{10}}", r"10^{100000}!")


@pytest.mark.parametrize(
    "answer",
    [
        *HANGING,
        "(" * 900 + "1" + ")" * 900,
        r"\frac{1}{" * 150 + "2" + "}" * 150,
        r"\sqrt{" * 300 + "2" + "}" * 300,
        "9" * 1_000_000,
        r"\sum_{k=1}^{10000000} \frac{1}{k^2}",
    ],
    ids=lambda answer: answer[:12],
)
def test_an_answer_that_cannot_be_read_is_wrong(answer):
    grader = Grader(seconds=1, workers=1)
    assert not grader.grade("5x", answer)
    assert grader.grade("x^2+2x+1", "(x+1)^2")
    grader.close()


def test_other_gradings_go_on_meanwhile():
    """Two workers; two answers hang, and what was queued behind them is graded, too."""
    grader = Grader(seconds=2, workers=2)
    asked = [("5x", answer) for answer in HANGING[:2]]
    asked += [(f"(x+{i})^2", f"x^2+{2 * i}x+{i * i}") for i in range(1, 60)]
    Random(0).shuffle(asked)

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(grader.agrade(*pair) for pair in asked))

    assert asyncio.run(all_of_them()) == [answer not in HANGING for _, answer in asked]
    grader.close()


def test_verdicts_are_the_same_from_any_thread(grader):
    asked = [(f"(y+{i})^2", f"y^2+{2 * i}y+{i * i + (i % 2)}") for i in range(1, 40)]
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda pair: grader.grade(*pair), asked * 3))
    assert verdicts == [i % 2 == 0 for i in range(1, 40)] * 3


def _graded_in_child(grader: Grader) -> None:
    right = grader.grade("(z+1)^2", "z^2+2z+1") and grader.grade("(z+3)^2", "z^2+6z+9")
    os._exit(0 if right else 1)


def test_a_forked_process_has_workers_of_its_own(grader):
    assert grader.grade("(z+1)^2", "z^2+2z+1")
    child = multiprocessing.get_context("fork").Process(target=_graded_in_child, args=(grader,))
    child.start()
    child.join(120)
    assert child.exitcode == 0
    assert grader.grade("(z+2)^2", "z^2+4z+4")


def test_a_grader_that_breaks_gives_no_verdict():
    """Too little memory to import anything: not the answer's fault, so no grade at all."""
    grader = Grader(memory=24 * 2**20, workers=1)
    with pytest.raises(GradingFailed):
        grader.grade("x+1", "1+x+0")
    with pytest.raises(GradingFailed):
        asyncio.run(grader.agrade("x+1", "1+x+0"))
    grader.close()


# ---------------------------------------------------------------------- workers


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool("builtins:eval", seconds=1, memory=2**28, workers=2)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        ("1 + 1", "done"),
        ("sum(i for i in iter(int, 1))", "late"),
        ("len(str(9**9**9**9))", "late"),
        ("'x' * 10**11", "memory"),
        ("__import__('os').kill(__import__('os').getpid(), 9)", "memory"),
        ("__import__('os').abort()", "memory"),
        ("1 / 0", "broken"),
        ("object()", "broken"),
        ("exec('raise SystemExit')", "broken"),
        ("__import__('os')._exit(3)", "broken"),
        ("__import__('os').kill(__import__('os').getpid(), 11)", "broken"),
    ],
)
def test_a_job_costs_itself_alone(job, kind, pool):
    before, outcome, after = [pool.submit(each) for each in ("2 + 2", job, "3 + 3")]
    assert outcome.result(120).kind == kind
    assert (before.result(120).value, after.result(120).value) == (4, 6)
    assert pool.submit("'still ' + 'there'").result(120).value == "still there"


def test_what_a_library_prints_is_no_reply(pool):
    assert pool.submit("print('{}') or 7").result(120).value == 7


def test_a_job_that_only_waits_is_ended_and_blamed_on_nobody():
    pool = Pool("builtins:eval", seconds=0.2, workers=1)
    outcome = pool.submit("__import__('time').sleep(1000)").result(120)
    assert outcome.kind == "broken"
    assert "busy" in outcome.why
    pool.close()


def test_a_stopped_worker_is_replaced():
    pool = Pool("builtins:eval", seconds=0.2, workers=1)
    stop = "__import__('os').kill(__import__('os').getpid(), 19)"
    assert pool.submit(stop).result(120).kind == "broken"
    assert pool.submit("5").result(120).value == 5
    pool.close()


def test_a_worker_that_was_killed_while_it_waited_costs_no_job():
    pool = Pool("builtins:eval", workers=1)
    worker = pool.submit("__import__('os').getpid()").result(120).value
    os.kill(worker, signal.SIGKILL)
    while _runs(worker):
        time.sleep(0.01)
    assert pool.submit("5").result(120).value == 5
    pool.close()


@pytest.mark.parametrize("target", ["inwit.no_such_module:f", "builtins:no_such_function"])
def test_a_target_that_is_not_there_is_named(target):
    pool = Pool(target, workers=1)
    outcome = pool.submit(1).result(120)
    assert outcome.kind == "broken"
    assert "no_such" in outcome.why
    pool.close()


def test_a_closed_pool_starts_anew():
    pool = Pool("builtins:eval", workers=2)
    assert [pool.submit(f"{i}").result(120).value for i in range(5)] == list(range(5))
    before = threading.active_count()
    pool.close()
    assert threading.active_count() < before
    assert pool.submit("6").result(120).value == 6
    pool.close()


def test_workers_import_no_torch():
    pool = Pool("builtins:eval", workers=1)
    modules = "__import__('sys').modules"
    loaded = f"__import__('inwit.envs.math.grading') and 'torch' in {modules}"
    assert pool.submit(loaded).result(120).value is False
    pool.close()


def test_workers_end_with_the_parent_even_while_they_hang():
    script = """
        import time
        from inwit.envs.math.workers import Pool
        pool = Pool("builtins:eval", seconds=600, workers=1)
        print(pool.submit("__import__('os').getpid()").result().value, flush=True)
        pool.submit("sum(i for i in iter(int, 1))")
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert _runs(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    limit = time.monotonic() + 60
    while _runs(worker) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# ---------------------------------------------------------------------- the environment


def write(folder: Path, *records: object) -> Path:
    file = folder / "problems.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def only(file: Path, **changes: object):
    env = Math.of(file=file, dev=0, test=0, **changes)
    [task] = env.tasks(Split.TRAIN)
    return env, task


def grade_of(env: Math, task, text: str) -> Grade:
    step = asyncio.run(env.open(task).step(text))
    assert step.result is not None
    assert step.result.reward == float(step.result.grade is Grade.RIGHT)
    return step.result.grade


def test_math_is_found_by_name():
    assert env_class("math") is Math


def test_an_attempt_is_graded(tmp_path):
    env, task = only(write(tmp_path, {"problem": "half of 1?", "answer": r"\frac12"}))
    assert grade_of(env, task, r"Half of it: \boxed{0.5}") is Grade.RIGHT
    assert grade_of(env, task, r"\boxed{0.5} or \boxed{2}") is Grade.WRONG
    assert grade_of(env, task, env.written(task.reference)) is Grade.RIGHT
    assert grade_of(env, task, "") is Grade.WRONG
    assert env.answer_of(task, r"\boxed{\dfrac{1}{2}}") == env.answer_of(task, "Answer: 0.5")


@pytest.mark.parametrize(
    ("record", "question", "gold"),
    [
        ({"problem": "p", "answer": "5"}, "p", "5"),
        ({"question": "q", "answer": 5}, "q", "5"),
        ({"problem": "p", "question": "q", "answer": 27.0}, "p", "27"),
        ({"question": "q", "answer": 2.5}, "q", "2.5"),
        ({"question": "q", "final_answer": ["$1$,$2$"], "context": None}, "q", "$1$,$2$"),
        ({"question": "q", "final_answer": ["1", "2"], "context": "c"}, "c\n\nq", "1, 2"),
        ({"question": "q", "answers": ["7"]}, "q", "7"),
        ({"problem": "p", "solution": r"so \boxed{1} or rather \boxed{2}"}, "p", "2"),
    ],
)
def test_columns_are_found(record, question, gold, tmp_path):
    _, task = only(write(tmp_path, record))
    assert (task.question, task.reference) == (question, gold)


def test_an_answer_that_is_a_solution_with_a_mark_is_both(tmp_path):
    """GSM8K on the hub: taken whole, its gold would be one that nobody's answer can equal."""
    file = tmp_path / "hub.jsonl"
    whole = "She sold 48/2 = <<48/2=24>>24.\n#### 1,024"
    file.write_text(json.dumps({"question": "How many?", "answer": whole}), encoding="utf-8")
    [task] = Math.of(file=file, dev=0, test=0).tasks(Split.TRAIN)
    assert task.reference == "1,024"
    assert task.data["solution"] == whole


def test_columns_can_be_named(tmp_path):
    record = {"ask": "a", "gold": "1", "how": ["one", "two"], "slip": "2", "answer": "9"}
    env, task = only(
        write(tmp_path, record), question="ask", answer="gold", solution="how", wrong="slip"
    )
    assert (task.question, task.reference) == ("a", "1")
    assert task.data["solution"] == "one\n\nThe answer is $\\boxed{1}$."
    assert env.wrong_answer(task) == "2"
    assert env.makes_demonstrations


@pytest.mark.parametrize("solution", [r"thus \boxed{4}", "2 + 2 = <<2+2=4>>4\n#### 4"])
def test_a_solution_that_states_its_answer_is_left_as_it_is(solution, tmp_path):
    env, task = only(write(tmp_path, {"question": "2 + 2", "answer": "4", "solution": solution}))
    assert task.data == {"solution": solution}
    assert grade_of(env, task, solution) is Grade.RIGHT


def test_the_datas_own_tolerance_counts(tmp_path):
    env, task = only(write(tmp_path, {"question": "q", "final_answer": ["4.2"], "error": "1e-1"}))
    assert grade_of(env, task, r"\boxed{4.28}") is Grade.RIGHT
    assert grade_of(env, task, r"\boxed{4.31}") is Grade.WRONG
    env, task = only(write(tmp_path, {"question": "q", "answer": "200"}), tolerance=0.01)
    assert grade_of(env, task, r"\boxed{201.9}") is Grade.RIGHT
    assert grade_of(env, task, r"\boxed{202.1}") is Grade.WRONG


@pytest.mark.parametrize(
    ("record", "kind", "says"),
    [
        ({"question": "q", "answer": ""}, "gold_unparsable", "empty"),
        ({"question": "q", "answer": "$ $"}, "gold_unparsable", "empty"),
        ({"question": "q", "answer": r"\frac{1}{"}, "gold_unparsable", "brackets"),
        ({"question": "q", "answer": "x" * 3000}, "gold_unparsable", "characters"),
        ({"question": "q"}, "unreadable", "no column 'answer'"),
        ({"question": "q", "answer": None}, "unreadable", "null"),
        ({"question": "q", "answer": []}, "unreadable", "[]"),
        ({"answer": "5"}, "unreadable", "no column 'problem'"),
        ({"question": " ", "answer": "5"}, "unreadable", "empty question"),
        ({"question": "q", "answer": "5", "error": "much"}, "unreadable", "'error'"),
    ],
)
def test_a_broken_problem_is_named_when_it_is_read(record, kind, says, tmp_path):
    file = write(tmp_path, {"question": "fine", "answer": "1"}, record)
    with pytest.raises(BrokenData) as caught:
        Math.of(file=file)
    [fault] = caught.value.faults
    assert fault.kind == kind
    assert says in fault.why
    assert fault.where == f"{file}, line 2"
    assert [task.question for task in caught.value.tasks] == ["fine"]


@pytest.mark.parametrize(
    "gold", ["[0,1)", r"\text{Monday}", "(A)", "no solution", "np.arcsin(10/13)", r"05\!:\!00"]
)
def test_a_gold_need_not_be_a_formula(gold, tmp_path):
    env, task = only(write(tmp_path, {"question": "q", "answer": gold}))
    assert grade_of(env, task, env.written(gold)) is Grade.RIGHT
    assert grade_of(env, task, r"\boxed{17}") is Grade.WRONG


def test_an_empty_box_of_math_is_mended(tmp_path):
    record = {
        "problem": "You are given a sequence of $58$ terms; each term has the form $P+n$ where",
        "solution": r"Therefore $P+n$ is not prime for any $n$, so the answer is $\boxed{}$.",
        "answer": "",
    }
    env, task = only(write(tmp_path, record))
    assert task.reference == "0"
    assert grade_of(env, task, task.data["solution"]) is Grade.RIGHT


@pytest.mark.parametrize("name", ["solver", "again", "given", "refine", "repair", "revision"])
def test_prompts_ask_for_a_box(name):
    assert Math.prompts is not None
    assert r"\boxed{}" in (Math.prompts / f"{name}.txt").read_text(encoding="utf-8")
