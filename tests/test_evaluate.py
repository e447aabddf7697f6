"""`inwit eval` as a whole: its folder, kills and faults, a real server, a critic of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inwit import cli
from inwit.engines.torch import Loaded, load_model
from tests.conftest import lines
from tests.engines.faulty import Answer, Faulty, Script, completion, serving
from tests.engines.serving import served

PROMPTS = Path(cli.__file__).parents[1] / "envs/checkout/prompts"
QUICK = ("--set", "engine.tries=2", "--set", "engine.pause=0.001", "--set", "engine.at_once=1")
TIMED = ("seconds", "versions")


@dataclass
class Said:
    """What a command exited with and said."""

    code: object
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and no key."""
    monkeypatch.chdir(tmp_path)
    for name in ("INWIT_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def inwit(capsys, monkeypatch) -> Callable[..., Said]:
    """Run `inwit eval` in this process, as `python -m inwit` would."""
    for console in (cli.common.out, cli.common.err):
        monkeypatch.setattr(console, "width", 400)

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["inwit", "eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(end.value.code or 0, said.out, said.err)

    return call


@pytest.fixture
def serve() -> Iterator[Callable[[Script], Faulty]]:
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(serving(script))


def write_questions(path: Path, n: int = 6) -> Path:
    """Question i is right with i."""
    data = [{"id": f"q{i}", "question": f"say {i}!", "answer": str(i)} for i in range(n)]
    path.write_text("".join(json.dumps(line) + "\n" for line in data), encoding="utf-8")
    return path


@pytest.fixture
def questions(place: Path) -> Path:
    return write_questions(place / "q.jsonl")


def number_of(body: dict[str, Any]) -> int | None:
    """Which question a request asks; None for the one that only tries the endpoint."""
    if body["max_tokens"] == 1:
        return None
    texts = [m["content"] for m in body["messages"] if m["role"] == "user"]
    return int(texts[0].split("say ")[1].split("!")[0])


def knowing(body: dict[str, Any]) -> Answer:
    """Even questions are answered right at once, odd ones after a second thought."""
    number = number_of(body)
    second = len(body["messages"]) > 3
    return completion(f"Answer: {number if number is None or number % 2 == 0 or second else -1}")


def asked_of(server: Faulty) -> Counter[int]:
    """How often each question was begun."""
    return Counter(
        n
        for body in server.asked
        if (n := number_of(body)) is not None and len(body["messages"]) <= 3
    )


def bare(summary: dict[str, Any]) -> dict[str, Any]:
    """Without what a clock decides."""
    found = {k: v for k, v in summary.items() if k not in TIMED}
    measures = summary["measures"].items()
    return found | {"measures": {k: v for k, v in measures if not k.startswith("seconds/")}}


def folder_of(place: Path) -> Path:
    """The only folder of an evaluation there."""
    [folder] = (place / "runs/eval").iterdir()
    return folder


# ---------------------------------------------------------------------- the usual case


def test_a_file_of_questions_end_to_end(inwit, serve, questions: Path, place: Path) -> None:
    """3 right at once and 3 mended: every measure with its N, tokens by turn, and three files."""
    server = serve(lambda i, body: knowing(body))
    found = inwit(server.url, "--model", "m", "--questions", questions, "--json")
    assert found.code == 0, found.err
    summary = found.json
    assert (summary["protocol"], summary["n"], summary["unanswered"]) == ("intrinsic", 6, 0)
    m = summary["measures"]
    assert [m[k]["count"] for k in ("a1", "a2", "delta", "wrong_to_right")] == [3, 6, 3, 3]
    assert all(m[k]["n"] == 6 and len(m[k]["ci"]) == 2 for k in ("a1", "a2", "delta"))
    assert (m["tokens/turn_1"]["value"], m["prompt_tokens/turn_2"]["value"]) == (3.0, 5.0)
    assert summary["sampled_tokens"] == 36
    assert summary["sees"] == {"solver": ["question"], "again": ["attempt", "question"]}
    folder = folder_of(place)
    assert sorted(p.name for p in folder.iterdir()) == [
        *("answers.jsonl", "evaluation.json", "summary.json", "table.md")
    ]
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert "| delta, last - first | +50.0% |" in (folder / "table.md").read_text()
    assert len(lines(folder, "answers.jsonl")) == 6


def test_the_same_command_asks_nothing_again(inwit, serve, questions, place) -> None:
    server = serve(lambda i, body: knowing(body))
    command = (server.url, "--model", "m", "--questions", questions, "--json")
    first = inwit(*command).json
    asked = len(server.asked)
    second = inwit(*command).json
    assert len(server.asked) == asked + 1, "that the endpoint answers is tried again"
    assert bare(second) == bare(first)
    assert folder_of(place)


def test_for_people(inwit, serve, questions: Path, place: Path) -> None:
    server = serve(lambda i, body: knowing(body))
    said = inwit(server.url, "--model", "m", "--questions", questions)
    assert said.code == 0
    for text in (
        "A1, first answers right",
        "3 / 6",
        "intrinsic (turns 2): m",
        "mcnemar_p",
        "shown: ",
    ):
        assert text in said.out, text
    assert str(folder_of(place).relative_to(place)) in said.out


@pytest.mark.parametrize(
    "way",
    [
        *("direct", "critique", "self-refine", "reflexion"),
        *("repair", "injected", "parallel", "sequential"),
    ],
)
def test_every_protocol_of_an_endpoint(inwit, serve, place: Path, way: str) -> None:
    """Through the command line: with everything that each measures, and what it showed."""
    file = place / "q.jsonl"
    data = [{"question": f"say {i}!", "answer": i, "no": 7 * i + 1} for i in range(1, 4)]
    file.write_text("\n".join(map(json.dumps, data)))
    server = serve(lambda i, body: completion("Answer: 2"))
    options = ("--set", "env.wrong=no", "--protocol", way)
    said = inwit(server.url, "--model", "m", "--questions", file, *options, "--json")
    assert said.code == 0, said.err
    summary = said.json
    assert (summary["protocol"], summary["n"], summary["errors"]) == (way, 3, 0)
    assert all(m["n"] for k, m in summary["measures"].items() if k in ("a1", "own", "vote_all"))
    assert summary["sampled_tokens"] % 3 == 0 < summary["sampled_tokens"]


# ---------------------------------------------------------------------- which folder


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("--protocol", "direct"), "protocol"),
        (("--turns", "3"), "options"),
        (("--temperature", "0.5"), "sampling"),
        (("--max-tokens", "9"), "sampling"),
        (("--set", "seed=3"), "seed"),
        (("--model", "other"), "model"),
        (("--set", "env.seed=4"), "env_settings"),
        (("--set", "engine.extra={top_k=1}"), "extra"),
        (("--set", "model.template={thinking=true}"), "template"),
    ],
)
def test_the_folder_of_another_evaluation_is_refused(
    inwit, serve, questions: Path, place: Path, change: tuple[str, str], key: str
) -> None:
    """It names what differs, asks nothing, and without --out there is another folder for it."""
    server = serve(lambda i, body: knowing(body))
    usual = (server.url, "--questions", questions, "--json")
    base = ("--model", "m") if change[0] != "--model" else ()
    assert inwit(*usual, "--model", "m", "--out", "here").code == 0
    before = {p.name: p.read_bytes() for p in (place / "here").iterdir()}
    asked = sum(asked_of(server).values())
    said = inwit(*usual, *base, *change, "--out", "here")
    assert said.code == 2 and said.out == ""
    assert f"holds another evaluation: its {key} differs" in said.err
    assert sum(asked_of(server).values()) == asked
    assert {p.name: p.read_bytes() for p in (place / "here").iterdir()} == before
    inwit(*usual, "--model", "m")
    inwit(*usual, *base, *change)
    assert len(list((place / "runs/eval").iterdir())) == 2


def test_other_questions_are_another_evaluation(inwit, serve, questions: Path) -> None:
    """The same file with a question changed, or an answer."""
    server = serve(lambda i, body: knowing(body))
    command = (server.url, "--model", "m", "--questions", questions, "--out", "here")
    assert inwit(*command).code == 0
    whole = questions.read_text()
    for old, new in (("say 3!", "say 30!"), ('"answer": "4"', '"answer": "5"')):
        assert old in whole
        questions.write_text(whole.replace(old, new))
        said = inwit(*command)
        assert said.code == 2 and "its tasks differs" in said.err
    questions.write_text(whole)
    assert inwit(*command).code == 0


def test_other_prompts_are_another_evaluation(inwit, serve, questions: Path, place: Path) -> None:
    server = serve(lambda i, body: knowing(body))
    (place / "p").mkdir()
    command = (server.url, "--model", "m", "--questions", questions, "--out", "here")
    command = (*command, "--set", "prompts=p")
    assert inwit(*command).code == 0
    (place / "p/critic.txt").write_text("@@ user\n{attempt}")  # nobody is shown this one
    assert inwit(*command).code == 0
    (place / "p/again.txt").write_text("@@ user\nOnce more.")
    said = inwit(*command)
    assert said.code == 2 and "its prompts differs" in said.err


def test_more_tasks_and_more_samples_extend_it(inwit, serve, questions, place: Path) -> None:
    server = serve(lambda i, body: knowing(body))
    command = (server.url, "--model", "m", "--questions", questions, "--json", *QUICK)
    first = inwit(*command, "--tasks", 2).json
    assert (first["n"], first["samples"]) == (2, 1)
    two = set(asked_of(server))
    assert inwit(*command, "--tasks", 4).json["n"] == 4
    assert asked_of(server).total() == 4 == len(asked_of(server))
    more = inwit(*command, "--tasks", 4, "--samples", 3).json
    assert (more["n"], more["samples"], more["measures"]["a1"]["n"]) == (4, 3, 12)
    assert more["table"] is None
    assert set(asked_of(server).values()) == {3}
    again = inwit(*command, "--tasks", 2).json
    assert bare(again) == bare(first) and two <= set(asked_of(server))
    assert asked_of(server).total() == 12
    assert folder_of(place)


def test_other_wrong_answers_are_another_evaluation(inwit, serve, place: Path) -> None:
    file = place / "q.jsonl"
    file.write_text('{"question": "say 1!", "answer": 1, "no": 2}')
    server = serve(lambda i, body: knowing(body))
    command = (server.url, "--model", "m", "--questions", file, "--out", "here")
    command = (*command, "--set", "env.wrong=no", "--protocol", "repair")
    assert inwit(*command).code == 0
    file.write_text('{"question": "say 1!", "answer": 1, "no": 3}')
    said = inwit(*command)
    assert said.code == 2 and "its tasks differs" in said.err


def test_killed_while_it_wrote_its_first_file(inwit, serve, questions, place: Path) -> None:
    (place / "here").mkdir()
    (place / "here/.evaluation.json.partial").write_text('{"pro')
    server = serve(lambda i, body: knowing(body))
    said = inwit(server.url, "--model", "m", "--questions", questions, "--out", "here")
    assert said.code == 0, said.err


@pytest.mark.parametrize("kind", ["file", "something", "broken"])
def test_a_place_that_is_no_evaluations(inwit, serve, questions, place: Path, kind: str) -> None:
    out = place / "here"
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        name = "mine.txt" if kind == "something" else "evaluation.json"
        (out / name).write_text("mine")
    server = serve(lambda i, body: knowing(body))
    said = inwit(server.url, "--model", "m", "--questions", questions, "--out", "here")
    assert said.code == 2 and "'here'" in said.err
    assert asked_of(server).total() == 0


def test_two_at_once_do_not_write_into_one_folder(inwit, serve, questions, place: Path) -> None:
    import fcntl

    server = serve(lambda i, body: knowing(body))
    command = (server.url, "--model", "m", "--questions", questions, "--out", "here")
    assert inwit(*command).code == 0
    with (place / "here/evaluation.json").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = inwit(*command)
        assert said.code == 2 and "Another process" in said.err
    assert inwit(*command).code == 0


# ---------------------------------------------------------------------- killed


def test_killed_half_way_it_goes_on_and_asks_nothing_twice(inwit, serve, place: Path) -> None:
    """SIGKILL to a real process; whatever its file held by then is not asked again."""
    questions = write_questions(place / "many.jsonl", 30)

    def slow(i: int, body: dict[str, Any]) -> Answer:
        time.sleep(0.05)
        return knowing(body)

    server = serve(slow)
    command = (server.url, "--model", "m", "--questions", str(questions), "--json")
    command = (*command, "--set", "engine.at_once=2")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COVERAGE_PROCESS_START": ""}
    process = subprocess.Popen(
        [sys.executable, "-m", "inwit", "eval", *command], env=environment, cwd=place
    )
    latest = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < latest:
        files = list(place.glob("runs/eval/*/answers.jsonl"))
        if files and files[0].read_bytes().count(b"\n") >= 8:
            break
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was to be killed half-way"
    file = folder_of(place) / "answers.jsonl"
    kept = {int(line["task"][1:]) for line in lines(folder_of(place), "answers.jsonl")}
    assert 8 <= len(kept) < 30
    assert not (folder_of(place) / "summary.json").exists()
    with file.open("ab") as torn:
        torn.write(b'{"task": "q99", "sam')
    time.sleep(0.2)  # whatever was under way
    before = asked_of(server)
    said = inwit(*command)
    assert said.code == 0, said.err
    after = asked_of(server)
    assert all(after[n] == before[n] == 1 for n in kept)
    assert set(after) == set(range(30))
    assert after.total() <= 30 + 2, "at most those under way were begun twice"
    m = said.json["measures"]
    assert (said.json["n"], m["a1"]["count"], m["a2"]["count"]) == (30, 15, 30)
    assert len(lines(folder_of(place), "answers.jsonl")) == 30


@pytest.mark.parametrize("way", ["intrinsic", "critique", "sequential"])
def test_gone_on_with_it_comes_to_the_same_as_uninterrupted(
    inwit, model: str, place: Path, way: str
) -> None:
    """With the torch engine, bit for bit; only seconds may differ."""
    usual = (model, "--env", "checkout", "--protocol", way, "--tasks", 12, "--max-tokens", 6)
    usual = (*usual, "--set", "env.basket=1", "--set", "env.train=40", "--set", "env.dev=16")
    usual = (*usual, "--set", "env.test=16", "--json")
    whole = inwit(*usual, "--out", "whole")
    assert whole.code == 0, whole.err
    shutil.copytree("whole", "half")
    for name in ("summary.json", "table.md"):
        (place / "half" / name).unlink()
    file = place / "half/answers.jsonl"
    kept = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join(kept[:5]) + b"\n" + kept[5][:30])
    half = inwit(*usual, "--out", "half")
    assert bare(half.json) == bare(whole.json)

    def texts(folder: str) -> dict[str, Any]:
        found = lines(place / folder, "answers.jsonl")
        answers = {
            line["task"]: [a["said"]["text"] for t in line["trials"] for a in t["answers"]]
            for line in found
        }
        assert len(answers) == len(found) == 12
        return answers

    assert texts("half") == texts("whole")
    assert len({text for answers in texts("whole").values() for text in answers}) > 3


# ---------------------------------------------------------------------- faults of an endpoint

FAULTS: dict[str, Answer] = {
    "late": Answer(body="{}", delay=1.0),
    "busy": Answer(429, "slow down"),
    "broken": Answer(500, "oops"),
    "half": Answer(body=completion("Answer: 1").body, cut=20),
}


def but_for(fault: Answer, *numbers: int) -> Script:
    """Knows everything, but these questions meet a fault, every time."""
    return lambda i, body: fault if number_of(body) in numbers else knowing(body)


@pytest.mark.parametrize("name", FAULTS)
def test_passing_faults_are_counted_and_the_rest_is_answered(
    inwit, serve, questions, name: str
) -> None:
    """Exit status 1; the same command asks what is missing, and nothing else."""
    faulty = [True]

    def script(i: int, body: dict[str, Any]) -> Answer:
        return FAULTS[name] if faulty[0] and number_of(body) in (2, 4) else knowing(body)

    server = serve(script)
    command = (server.url, "--model", "m", "--questions", questions, "--json", *QUICK)
    command = (*command, "--set", "engine.timeout=0.6")
    said = inwit(*command)
    assert said.code == 1, said.err
    assert (said.json["n"], said.json["unanswered"], said.json["stopped"]) == (4, 2, "")
    assert said.json["measures"]["a1"]["n"] == 4
    assert "2 questions are unanswered" in said.err and "asks the rest" in said.err
    assert asked_of(server)[2] == asked_of(server)[4] == 2, "each was tried twice"
    faulty[0] = False
    said = inwit(*command)
    assert said.code == 0 and (said.json["n"], said.json["unanswered"]) == (6, 0)
    assert all(asked_of(server)[n] == 1 for n in (0, 1, 3, 5))


def test_after_five_in_a_row_the_rest_is_not_asked(inwit, serve, place: Path) -> None:
    questions = write_questions(place / "many.jsonl", 20)
    order: list[int] = []

    def script(i: int, body: dict[str, Any]) -> Answer:
        number = number_of(body)
        if number is not None and number not in order:
            order.append(number)
        return FAULTS["busy"] if len(order) > 3 else knowing(body)

    server = serve(script)
    command = (server.url, "--model", "m", "--questions", questions, "--json", *QUICK)
    said = inwit(*command, "--protocol", "direct")
    assert said.code == 1
    assert (said.json["n"], said.json["unanswered"]) == (3, 17)
    assert "429" in said.json["stopped"] and "429" in said.err
    assert len(asked_of(server)) == 3 + 5


def test_where_nothing_is_answered_there_is_no_result(inwit, serve, questions, place) -> None:
    server = serve(lambda i, b: completion() if b["max_tokens"] == 1 else FAULTS["busy"])
    said = inwit(server.url, "--model", "m", "--questions", questions, *QUICK)
    assert said.code == 2 and said.out == ""
    assert "No question could be answered" in said.err and "429" in said.err
    assert not list(place.rglob("summary.json"))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer(401, "who are you?"), "HTTP 401"),
        (Answer(404, "no such model"), "HTTP 404"),
        (Answer(body="<html>Welcome</html>"), "not answer as an OpenAI-compatible one"),
        (Answer(body='{"choices": []}'), "not answer as an OpenAI-compatible one"),
    ],
)
@pytest.mark.parametrize("when", ["at once", "half-way"])
def test_lasting_faults_end_it(
    inwit, serve, questions, place: Path, answer: Answer, told: str, when: str
) -> None:
    """Exit status 2 and what to do; what was answered before is kept."""
    count = [0]

    def script(i: int, body: dict[str, Any]) -> Answer:
        count[0] += 1
        return answer if when == "at once" or (spoilt and count[0] > 4) else knowing(body)

    spoilt = True
    server = serve(script)
    command = (server.url, "--model", "m", "--questions", questions, "--json", *QUICK)
    said = inwit(*command, "--protocol", "direct")
    assert said.code == 2 and said.out == ""
    assert said.err.startswith("error ") and told in said.err
    if when == "at once":
        assert not (place / "runs").exists()
        return
    kept = lines(folder_of(place), "answers.jsonl")
    assert len(kept) == 3
    spoilt = False
    said = inwit(*command, "--protocol", "direct")
    assert said.code == 0 and said.json["n"] == 6
    assert lines(folder_of(place), "answers.jsonl")[:3] == kept


def test_no_endpoint_at_all(inwit, questions, place: Path) -> None:
    said = inwit("http://127.0.0.1:9/v1", "--model", "m", "--questions", questions, *QUICK)
    assert said.code == 2 and "did not answer in 2 tries" in said.err
    assert not (place / "runs").exists()


def test_an_endpoint_that_counts_nothing(inwit, serve, questions, place: Path) -> None:
    """Unknown is not 0."""
    server = serve(lambda i, body: completion("Answer: 2", usage=None))
    command = (server.url, "--model", "m", "--questions", questions)
    summary = inwit(*command, "--json").json
    assert summary["sampled_tokens"] is None
    assert summary["measures"]["tokens/turn_1"] == {
        **{"value": None, "ci": None, "n": 0, "count": None}
    }
    assert summary["measures"]["seconds/turn_1"]["n"] == 6
    assert "sampled tokens: unknown" in inwit(*command).out


def test_a_spent_budget_ends_it_and_a_larger_one_goes_on(inwit, serve, questions, place) -> None:
    """An answer takes 8 tokens and may take 33: one to try the endpoint, and three, fit into 60."""
    server = serve(lambda i, body: knowing(body))
    command = (server.url, "--model", "m", "--questions", questions, "--json", *QUICK)
    command = (*command, "--protocol", "direct", "--max-tokens", 7)
    said = inwit(*command, "--budget", 60)
    assert said.code == 1, said.err
    assert (said.json["n"], said.json["unanswered"]) == (3, 3)
    assert "budget of 60 tokens" in said.json["stopped"]
    assert asked_of(server).total() == 3
    said = inwit(*command, "--budget", 1000)
    assert said.code == 0 and said.json["n"] == 6
    assert set(asked_of(server).values()) == {1}
    assert folder_of(place), "the budget is no part of what is asked"


# ---------------------------------------------------------------------- bad questions


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no tasks"),
        ("\n\n", "holds no tasks"),
        ('{"question": "a"}', "line 1: no column 'answer'"),
        ('{"question": "a", "answer": ""}', "line 1: an empty question or answer"),
        ('{"question": "a", "answer": null}', "holds null"),
        ('{"question": "a", "answer": 1}\nnot json', "line 2: not JSON"),
        ('[["a", 1]]', "line 1: not a JSON object"),
        (
            '{"id": "x", "question": "a", "answer": 1}\n{"id": "x", "question": "b", "answer": 2}',
            "line 2: the id 'x' occurs twice",
        ),
        (None, "There is no task file"),
    ],
)
def test_bad_files_of_questions(inwit, serve, place: Path, text: str | None, told: str) -> None:
    """Named with file and line; nothing is asked, no folder is left."""
    file = place / "bad.jsonl"
    if text is not None:
        file.write_text(text)
    server = serve(lambda i, body: knowing(body))
    said = inwit(server.url, "--model", "m", "--questions", file)
    assert said.code == 2 and said.out == ""
    assert told in said.err and "bad.jsonl" in said.err
    assert server.asked == [] and not (place / "runs").exists()


def test_a_file_with_a_difficult_name(inwit, serve, place: Path) -> None:
    file = write_questions(place / 'it\'s "mine" \\ [1].jsonl', 2)
    server = serve(lambda i, body: knowing(body))
    said = inwit(server.url, "--model", "m", "--questions", file, "--json")
    assert said.code == 0 and said.json["n"] == 2, said.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--env", "checkout"), "exclude each other"),
        (("--protocol", "intrinsc"), "Did you mean 'intrinsic'"),
        (("--protocol", "direct", "--turns", "3"), "does not take turns = 3"),
        (("--protocol", "repair"), "no wrong answer to show"),
        (("--k", "3"), "does not take k = 3"),
        (("--critic", "http://"), "begin it with http"),
    ],
)
def test_what_makes_no_sense_is_refused(inwit, serve, questions, place, arguments, told) -> None:
    server = serve(lambda i, body: knowing(body))
    said = inwit(server.url, "--model", "m", "--questions", questions, *arguments)
    assert said.code == 2 and told in said.err
    assert asked_of(server).total() == 0 and not (place / "runs").exists()


# ---------------------------------------------------------------------- critics of their own


def test_a_critic_behind_another_endpoint(inwit, serve, questions, place: Path) -> None:
    """It is asked of failures alone, and told that they are."""

    def solver(i: int, body: dict[str, Any]) -> Answer:
        advised = "because of ponies" in body["messages"][-1]["content"]
        number = number_of(body)
        return completion(f"Answer: {number if advised or number == 0 else -1}")

    mine, other = serve(solver), serve(lambda i, body: completion("because of ponies"))
    command = (mine.url, "--model", "m", "--questions", questions, "--protocol", "critique")
    said = inwit(*command, "--critic", other.url, "--critic-model", "c", "--json")
    assert said.code == 0, said.err
    summary = said.json
    assert summary["critic"] == f"{other.url} c"
    m = summary["measures"]
    assert [m[k]["count"] for k in ("a1", "a2", "repair_rate")] == [1, 6, 5]
    criticised = [b for b in other.asked if b["max_tokens"] != 1]
    assert len(criticised) == 5 and {b["model"] for b in criticised} == {"c"}
    assert all("graded wrong" in b["messages"][-1]["content"] for b in criticised)
    assert m["tokens/critiques"]["n"] == 5
    inwit(*command, "--json")
    assert len(list((place / "runs/eval").iterdir())) == 2, "another critic, another evaluation"


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load_model("embedded:checkout", seed=0)


@pytest.fixture(scope="module")
def saved(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("saved") / "tiny"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def test_another_checkpoint_as_the_critic(inwit, model: str, saved: Path, place: Path) -> None:
    """It speaks in the critic's place: other critiques, the same first answers."""
    usual = (model, "--env", "checkout", "--protocol", "critique", "--tasks", 6)
    usual = (*usual, "--max-tokens", 8, "--set", "sampling.critic_max_tokens=8", "--json")
    own = inwit(*usual, "--out", "own")
    other = inwit(*usual, "--critic", saved, "--out", "other")
    assert own.code == other.code == 0, other.err
    assert own.json["critic"] == "own"
    assert other.json["critic"].startswith(f"{saved} ")  # and a digest of its weights

    def said(folder: str) -> tuple[list[Any], list[Any]]:
        trials = [line["trials"][0] for line in lines(place / folder, "answers.jsonl")]
        first = [t["answers"][0]["said"]["text"] for t in trials]
        return sorted(first), [c["text"] for t in trials for c in t["critiques"]]

    assert said("own")[0] == said("other")[0]
    assert said("own")[1] and said("own")[1] != said("other")[1]
    refused = inwit(*usual, "--critic", saved, "--out", "own")
    assert refused.code == 2 and "its critic differs" in refused.err


# ---------------------------------------------------------------------- a real server


@pytest.fixture(scope="module")
def real(saved: Path) -> Iterator[tuple[str, str]]:
    with served(saved) as place:
        yield place


def test_an_environment_of_a_real_server(inwit, real: tuple[str, str], loaded: Loaded) -> None:
    """Text comes from a model, tokens by turn from its server's own counts."""
    url, name = real
    usual = (url, "--env", "checkout", "--protocol", "intrinsic", "--tasks", 6)
    said = inwit(*usual, "--max-tokens", 12, "--json")
    assert said.code == 0, said.err
    summary, m = said.json, said.json["measures"]
    assert (summary["model"], summary["n"]) == (f"{url} {name}", 6), "the only one it has"
    assert summary["unanswered"] == 0
    assert summary["sampled_tokens"] > 12
    for turn in (1, 2):
        assert 0 < m[f"tokens/turn_{turn}"]["value"] <= 12
        assert m[f"tokens/turn_{turn}"]["n"] == 6
    assert m["prompt_tokens/turn_2"]["value"] > m["prompt_tokens/turn_1"]["value"] + 1
    assert m["delta"]["n"] == 6 and len(m["delta"]["ci"]) == 2
    [folder] = Path("runs/eval").iterdir()
    answers = lines(folder, "answers.jsonl")
    words = {w for line in answers for a in line["trials"][0]["answers"] for w in words_of(a)}
    assert len(words) > 10 and words <= set(loaded.tokenizer.get_vocab())


def words_of(answer: dict[str, Any]) -> list[str]:
    return str(answer["said"]["text"]).split()


def test_questions_of_a_real_server(inwit, real: tuple[str, str], place: Path) -> None:
    file = place / "mine.jsonl"
    data = [{"question": q, "answer": "3"} for q in ("milk", "broom", "vanilla", "cookies")]
    file.write_text("\n".join(map(json.dumps, data)))
    url, name = real
    command = (url, "--model", name, "--questions", file, "--set", f"prompts={PROMPTS}")
    said = inwit(*command, "--max-tokens", 5, "--turns", 3, "--temperature", 0, "--json")
    assert said.code == 0, said.err
    m = said.json["measures"]
    assert said.json["n"] == 4 and said.json["model"] == name
    assert [m[f"tokens/turn_{k}"]["n"] for k in (1, 2, 3)] == [4, 4, 4]
    assert [m[f"a{k}"]["n"] for k in (1, 2, 3)] == [4, 4, 4]
    assert said.json["temperature"] == 0


# ---------------------------------------------------------------------- before anything is asked


def test_words_that_a_model_lacks_are_noticed_before_a_folder_is_made(inwit, saved, place) -> None:
    """The question can be written, the built-in prompts around it cannot."""
    file = place / "words.jsonl"
    file.write_text('{"question": "ok ok", "answer": "9"}\n')
    said = inwit(saved, "--questions", file, "--max-tokens", 4)
    assert said.code == 2 and "cannot write" in said.err
    assert not (place / "runs").exists()


def test_a_prompt_that_leaves_no_room_is_counted_and_named(inwit, saved, place) -> None:
    """A repair shows more than a question does: there is no room for any, so there is no result."""
    arguments = ("--env", "checkout", "--protocol", "repair", "--tasks", 2)
    said = inwit(saved, *arguments, "--max-tokens", 7, "--set", "sampling.max_context=20")
    assert said.code == 2
    assert (
        "No question could be answered: The repair prompt of task dev-0 has 17 tokens" in said.err
    )
    assert inwit(saved, *arguments, "--max-tokens", 7, "--set", "sampling.max_context=30").code == 0
