"""Programs as tasks: what is read, asked, taken out of an answer, and said of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from inwit.envs import BrokenData, Split
from inwit.envs.code import Code, Kind, Outcome, code_in, fenced, result_of
from inwit.envs.code.programs import LONGEST, needs, same_program
from inwit.rows import Grade

ADD = {
    "task_id": 700,
    "text": "Write a function that adds ‘two’ numbers.",
    "code": "import math\r\ndef add(a, b):\r\n\treturn a + b",
    "test_list": ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"],
    "test_setup_code": "",
}
SQUARE = {
    "task_id": "HumanEval/900",
    "prompt": "from typing import List\n\ndef one():\n    return 1\n\n\n"
    "def square(xs: List[int]) -> List[int]:\n"
    '    """ Squares.\n    >>> square([2])\n    [4]\n    """\n',
    "entry_point": "square",
    "canonical_solution": "    return [x * x for x in xs]\n",
    "test": "def check(candidate):\n    assert candidate([2, 3]) == [4, 9]\n",
}
MEND = {
    "id": "mbpp_701_1",
    "task_id": 701,
    "prompt": "Double a number.",
    "signature_prompt": "def double(x):\n",
    "entry_point": "double",
    "wrong_code": "def double(x):\n    return x * 3",
    "test_list": ["assert double(2) == 4"],
    "multipl_e_test": "",
}


def write(folder: Path, *records: object) -> Path:
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def make(folder: Path, *records: object, **settings: Any) -> Code:
    """The texts here are ours: the sandbox has tests of its own."""
    return Code.of(file=write(folder, *records), **({"sandbox": "rlimits"} | settings))


def task_of(env: Code) -> Any:
    return next(task for split in Split for task in env.tasks(split))


def graded(env: Code, answer: str) -> Any:
    return asyncio.run(env.graded(task_of(env), answer))


# ---------------------------------------------------------------------- records


def test_files_are_known_by_their_columns(tmp_path):
    env = make(tmp_path, ADD, SQUARE, MEND, dev=0, test=0)
    tasks = {task.id: task for task in env.tasks(Split.TRAIN)}
    assert set(tasks) == {"mbpp/700", "HumanEval/900", "mbpp_701_1"}
    assert tasks["mbpp/700"].data["solution"] == "import math\ndef add(a, b):\n\treturn a + b"
    assert tasks["HumanEval/900"].data["solution"].endswith("    return [x * x for x in xs]\n")
    assert tasks["mbpp_701_1"].data["wrong"] == MEND["wrong_code"]
    assert "solution" not in tasks["mbpp_701_1"].data
    entries = {task.data["entry"] for task in tasks.values()}
    assert entries == {"add", "square", "double"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"test_list": []}, "no tests"),
        ({"test_list": ["assert add(1,"]}, "not Python"),
        ({"code": "def add(a, b) return"}, "not Python"),
        ({"code": 7}, "holds no text"),
        ({"test_list": [7]}, "no list of texts"),
        ({"test_list": ["assert 1 == 1"]}, "calls nothing"),
        ({"text": None}, "the column 'text' holds null"),
    ],
)
def test_a_broken_record_is_named_with_its_line(changes, why, tmp_path):
    with pytest.raises(BrokenData, match=rf"line 2: .*{why}"):
        make(tmp_path, ADD, ADD | {"task_id": 701} | changes)


def test_mbpp_is_split_as_its_authors_split_it_and_its_examples_are_left_out(tmp_path):
    ids = (1, 10, 11, 510, 511, 600, 601, 974)
    records = [ADD | {"task_id": i, "text": f"Task {i}."} for i in ids]
    env = make(tmp_path, *records)
    found = {split: [task.data["mbpp"] for task in env.tasks(split)] for split in Split}
    assert found == {Split.TEST: [11, 510], Split.DEV: [511, 600], Split.TRAIN: [601, 974]}
    shares = make(tmp_path, *records, official=False, dev=0, test=0)
    assert len(shares.tasks(Split.TRAIN)) == len(ids)


# ---------------------------------------------------------------------- questions


@pytest.mark.parametrize(
    ("shown", "present", "absent"),
    [
        ("none", ["Define `add(a, b)`."], ["assert"]),
        ("example", ["assert add(1, 2) == 3"], ["assert add(-1, 1)", "Define"]),
        ("all", ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"], ["Define"]),
    ],
)
def test_a_question_shows_the_tests_that_it_is_to_show(shown, present, absent, tmp_path):
    question = task_of(make(tmp_path, ADD, shown=shown)).question
    assert question.startswith("Write a function that adds ‘two’ numbers.")
    assert all(text in question for text in present)
    assert not any(text in question for text in absent)


def test_a_function_to_be_completed_is_shown_as_it_is_and_its_check_only_if_asked(tmp_path):
    question = task_of(make(tmp_path, SQUARE)).question
    assert SQUARE["prompt"].rstrip() in question and "check" not in question
    assert "def check" in task_of(make(tmp_path, SQUARE, shown="all")).question


def test_where_the_tests_call_another_name_the_question_names_that_one(tmp_path):
    record = MEND | {"test_list": ["assert Double_It(2) == 4"]}
    assert "Define `Double_It`." in task_of(make(tmp_path, record, shown="none")).question


# ---------------------------------------------------------------------- programs in answers

F = "def f(x):\n    return x"
G = "def g(x):\n    return x"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (f"```python\n{F}\n```", F),
        (f"So:\n```py\n{F}\n```\nDone.", F),
        (f"~~~\n{F}\n~~~", F),
        (f"````python\n{F}\n```\n````", F + "\n```"),
        (f"```python\n{F}", F),
        (f"```Python title=x\n{F}\n```", F),
        (f"```\n{F}\n```".replace("\n", "\r\n"), F),
        ("1. Write\n   ```python\n   def f(x):\n       return x\n   ```\n", F),
        (f"```python\n{F}\n```\nTest it:\n```python\nprint(f(1))\n```", F),
        (f"```python\n{F}\n```\n```python\n{F}  # mended\n```", F + "  # mended"),
        (f"```python\n{F}\n```\n```text\ndef f\n```", F),
        (f"```python\n{G}\n```\n```\n1\n```", G),
        (f"```text\nno\n```\n```\n{G}\n```", G),
        (F, F),
        (f"Here it is:\n{F}\n\nThis returns x, as asked.", F),
        (f"import math\n{F}", f"import math\n{F}"),
        ("def f(x):\n\treturn 'é'  # ‘quoted’", "def f(x):\n\treturn 'é'  # ‘quoted’"),
        ("```python\nf = lambda x: x\n```", "f = lambda x: x"),
        ("```text\nno\n```", None),
        ("```python\n```", None),
        ("I do not know.", None),
        ("", None),
        ("``` ```", None),
    ],
)
def test_the_program_is_found_in_an_answer(answer, code, tmp_path):
    found = code_in(answer, "f")
    assert found == code if code is None else found is not None and found.rstrip() == code


def test_a_body_alone_is_put_after_the_beginning_that_was_given():
    prompt = 'def f(x):\n    """Itself."""\n'
    for answer in ("    return x\n", "```python\n    return x\n```", "    return x\n\nDone."):
        found = code_in(answer, "f", prompt)
        assert found is not None and found.rstrip() == f"{prompt}    return x"
    assert code_in(f"```python\n{F}\n```", "f", prompt) == F


@pytest.mark.parametrize(
    "answer",
    [
        "x" * 10**6,
        "```python\n" + "x = 1\n" * 200_000,
        "```" + "a" * 10**6 + "`",
        "`" * 10**6,
        "~~~\n" * 100_000,
        "def " + " " * 10**6,
        "def f(x):\n" * 50_000,
        "(" * 10**6,
        "def f(): return " + "-" * 40_000 + "1",
        "def f(): return " + "(" * 40_000,
        "def f(): pass\0\ud800",
    ],
    ids=range(11),
)
def test_answers_of_a_megabyte_and_traps_for_a_parser_are_read_in_no_time(answer):
    """Minutes are what a slip would take: pytest's own timeout is the bound."""
    found = code_in(answer, "f")
    assert found is None or len(found) <= LONGEST
    same_program(answer)


def test_a_program_that_holds_a_fence_is_written_with_a_longer_one():
    code = 'def f(x):\n    """\n    ```\n    """\n    return x'
    assert code_in(fenced(code), "f") == code


def test_programs_are_the_same_whatever_their_comments(tmp_path):
    env = make(tmp_path, ADD)
    task = task_of(env)
    one = "```python\ndef add(a, b):\n    return a+b  # so\n```"
    other = "Again:\n```python\ndef add(a,b):\n\n  return (a + b)\n```"
    assert env.answer_of(task, one) == env.answer_of(task, other) != ""
    assert env.answer_of(task, one) != env.answer_of(task, one.replace("+", "-"))
    assert env.answer_of(task, "no idea") == ""


# ---------------------------------------------------------------------- what tests take


@pytest.mark.parametrize(
    ("tests", "program", "names", "imports"),
    [
        (["assert f(1) == 2"], "def f(x): pass", ("f",), ""),
        (["assert sum(1) == 2"], "def sum(x): pass", ("sum",), ""),
        (["assert f(Pair(1)) == math.pi"], "def f(x): pass\nclass Pair: pass", ("Pair", "f"), "m"),
        (["assert set(f(1)) == {1}"], "def f(x): pass\ndef set(x): pass", ("f",), ""),
        (["y = 1", "assert f(y) == [z for z in y]"], "def f(x): pass", ("f",), ""),
    ],
)
def test_tests_take_only_what_the_task_gives_away(tests, program, names, imports):
    """Not a builtin, nor a module: a program must not stand in for what judges it."""
    entry = "sum" if "sum" in names else "f"
    assert needs(tests, program, entry) == (names, "import math" if imports else "")


# ---------------------------------------------------------------------- grading


@pytest.mark.parametrize(
    ("answer", "grade", "feedback"),
    [
        ("```python\ndef add(a, b): return a + b\n```", Grade.RIGHT, ""),
        ("def add(a, b):\n    return a + b", Grade.RIGHT, ""),
        ("```python\ndef add(a, b): return a\n```", Grade.WRONG, "add(1, 2) gave 1"),
        ("```python\ndef add(a, b): return math.fsum((a, b))\n```", Grade.WRONG, "NameError"),
        ("```python\ndef add(a, b): retrun 3\n```", Grade.WRONG, "SyntaxError"),
        ("```python\nimport os\nos._exit(0)\n```", Grade.WRONG, "The program died"),
        ("3", Grade.WRONG, "There is no program"),
    ],
)
def test_a_program_is_right_if_it_passes_all_tests(answer, grade, feedback, tmp_path):
    result = graded(make(tmp_path, ADD), answer)
    assert result.grade is grade
    assert result.reward == float(grade is Grade.RIGHT)
    assert feedback in result.feedback


def test_what_stands_before_a_function_is_there_for_its_answer(tmp_path):
    env = make(tmp_path, SQUARE)
    body = "```python\ndef square(xs: List[int]):\n    return [x * x * one() for x in xs]\n```"
    future = (
        "```python\nfrom __future__ import annotations\ndef square(xs):\n    return xs * 2\n```"
    )
    assert graded(env, body).grade is Grade.RIGHT
    assert graded(env, "    return [x ** 2 for x in xs]").grade is Grade.RIGHT
    assert "gave [2, 3, 2, 3]" in graded(env, future).feedback


def test_a_fault_of_the_task_or_the_sandbox_is_an_error_and_never_a_reward(tmp_path):
    env = make(tmp_path, ADD | {"test_imports": ["import no_such_module"]})
    result = graded(env, "```python\ndef add(a, b): return a + b\n```")
    assert result.grade is Grade.ERROR and result.reward == 0
    assert result_of(Outcome(Kind.ERROR, why="broke")).grade is Grade.ERROR
    for kind in set(Kind) - {Kind.ERROR, Kind.PASSED}:
        assert result_of(Outcome(kind)).grade is Grade.WRONG


def test_demonstrations_and_wrong_answers_are_fenced(tmp_path):
    env = make(tmp_path, ADD, dev=0, test=0)
    [shown] = env.demonstrations(Random(0), 1)
    assert shown.answer == "```python\nimport math\ndef add(a, b):\n\treturn a + b\n```"
    assert env.wrong_answer(task_of(env)) is None
    mending = make(tmp_path, MEND, dev=0, test=0)
    wrong = mending.wrong_answer(task_of(mending))
    assert wrong == "```python\ndef double(x):\n    return x * 3\n```"
    assert graded(mending, wrong).grade is Grade.WRONG
    other = make(tmp_path, ADD | {"slip": "def add(a, b): return a"}, wrong="slip")
    assert other.wrong_answer(task_of(other)) == fenced("def add(a, b): return a")
