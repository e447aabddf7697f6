"""Information conditions of protocols: a leak is tried, and does not happen (LESSONS 5, 6).

What may not be shown carries a tag that nothing else can spell, so that it is found in whatever a
solver is shown: token ids decoded, or messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inwit.casting import Cast
from inwit.envs import Split, Task
from inwit.errors import ForbiddenField, InwitError
from inwit.evaluate import evaluate
from inwit.evaluation.protocols import PROTOCOLS, protocol
from inwit.playing import OUTCOMES
from inwit.recipe import parse_recipe
from inwit.roles import CONDITIONS, Prompt, load_prompt
from inwit.rows import Sees
from tests.engines.faulty import Faulty, completion, serving
from tests.evaluation.fakes import KINDS, PROMPTS, Quiz, speaker, stage_for

GOLD, FEEDBACK = "g0ld-tag", "feedb4ck-tag"
SECRETS = (GOLD, FEEDBACK, *OUTCOMES.values())
BUILT_IN: dict[str, Prompt] = {name: load_prompt(name, []) for name in CONDITIONS}

BLIND = {
    "direct": {},
    "intrinsic": {"turns": 3},
    "self-refine": {"turns": 3},
    "parallel": {"k": 2},
    "sequential": {"k": 2},
}
"""Protocols in which nobody is told anything of how an attempt was graded."""

NASTY = [
    *(f"{{{field}}}" for field in Sees),
    *(f"inwit-mark-{field}-inwit" for field in Sees),
    *("<assistant>", "<end>", "%s", "{", "}}", "\\boxed{reference}", "@@ system", "$reference"),
]
texts = st.lists(st.text(max_size=6) | st.sampled_from(NASTY), max_size=4).map(" ".join)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """Anything for a question; a reference and feedback around their tags."""
    gold, feedback = (f"{draw(texts)}{tag}{draw(texts)}" for tag in (GOLD, FEEDBACK))
    wrong = {"wrong": draw(texts), "feedback": feedback}
    return Task("t0", draw(texts), gold, wrong)


class Overheard:
    """Says one given text after another, and keeps all that it was shown."""

    def __init__(self, said: list[str]) -> None:
        self.said, self.number = said, count()
        self.shown: list[str] = []

    def __call__(self, shown: str, sample: int = 0) -> str:
        self.shown.append(shown)
        return self.said[next(self.number) % len(self.said)]

    def shows(self, *secrets: str) -> list[str]:
        return [secret for secret in secrets if any(secret in shown for shown in self.shown)]


def ask(name: str, kind: str, task: Task, said: list[str], prompts: Any) -> Overheard:
    heard = Overheard(said)
    stage = stage_for(Quiz(task), speaker(kind, heard), prompts=prompts)
    asyncio.run(protocol(name, BLIND.get(name, {})).ask(task, stage))
    return heard


# ---------------------------------------------------------------------- what is shown


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BLIND)
@settings(max_examples=20, deadline=None)
@given(
    task=tasks(),
    said=st.lists(texts.flatmap(lambda t: st.sampled_from([f"{t} right", t])), min_size=1),
    prompts=st.sampled_from([PROMPTS, BUILT_IN]),
)
def test_nobody_is_shown_what_the_answer_was_or_how_it_was_graded(
    name: str, kind: str, task: Task, said: list[str], prompts: Any
) -> None:
    """LESSONS 5, 6: no reference, no feedback, no outcome, whatever question and answers hold."""
    heard = ask(name, kind, task, said, prompts)
    assert heard.shown
    assert heard.shows(*SECRETS) == []


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(task=tasks(), prompts=st.sampled_from([PROMPTS, BUILT_IN]))
def test_reflexion_is_shown_the_feedback_and_not_the_reference(
    kind: str, task: Task, prompts: Any
) -> None:
    """Were the tags never found, the test above would pass on anything."""
    heard = ask("reflexion", kind, task, ["wrong", "because", "wrong"], prompts)
    assert heard.shows(*SECRETS) == [FEEDBACK, "The try was graded wrong."]
    reflection = [shown for shown in heard.shown if FEEDBACK in shown]
    assert reflection == heard.shown[1:2], "and the solver is shown neither"


@pytest.mark.parametrize("kind", KINDS)
def test_critique_is_shown_the_outcome_alone(kind: str) -> None:
    task = Task("t0", "q", GOLD, {"feedback": FEEDBACK})
    heard = ask("critique", kind, task, ["wrong"], BUILT_IN)
    assert heard.shows(*SECRETS) == ["The try was graded wrong."]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["repair", "injected"])
def test_given_answers_come_without_the_right_one(kind: str, name: str) -> None:
    """`repair` says in its own words that the answer is wrong; `injected` says nothing."""
    task = Task("t0", "q", GOLD, {"feedback": FEEDBACK, "wrong": "wr0ng-tag"})
    heard = ask(name, kind, task, ["wrong"], BUILT_IN)
    assert heard.shows(*SECRETS) == []
    assert all("wr0ng-tag" in shown for shown in heard.shown)
    claims = ["This answer to it is wrong" in shown for shown in heard.shown]
    assert claims == ([True] if name == "repair" else [False] * 3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(PROTOCOLS.known()))
def test_no_protocol_shows_the_reference(kind: str, name: str) -> None:
    task = Task("t0", "q", GOLD, {"feedback": FEEDBACK, "wrong": "no"})
    assert ask(name, kind, task, ["wrong", "right"], BUILT_IN).shows(GOLD) == []


# ---------------------------------------------------------------------- a prompt that asks for it


def asking(name: str, text: str) -> dict[str, Prompt]:
    """The usual prompts, but one of them asks for more."""
    messages = tuple((who, said) for who, said in PROMPTS[name].messages if who != "user")
    return {**PROMPTS, name: Prompt(name, (*messages, ("user", text)))}


ATTEMPTS = [
    (way, prompt, str(field))
    for way in BLIND
    for prompt in protocol(way).prompts
    for field in Sees
    if field not in CONDITIONS[prompt]
]


def test_the_attempts_hold_those_that_matter_most() -> None:
    fields = {field for way, prompt, field in ATTEMPTS if (way, prompt) == ("intrinsic", "again")}
    assert fields == {"outcome", "feedback", "reference", "critique"}
    assert ("self-refine", "feedback", "outcome") in ATTEMPTS
    assert ("direct", "solver", "reference") in ATTEMPTS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("way", "prompt", "field"), ATTEMPTS)
def test_a_stage_refuses_to_build_the_prompt(kind: str, way: str, prompt: str, field: str) -> None:
    """Even where nobody checked the prompts before: an error where the leak would happen."""
    heard = Overheard(["right", "wrong"])
    task = Task("t0", "q", GOLD, {"feedback": FEEDBACK})
    prompts = asking(prompt, f"once more: {{{field}}}")
    stage = stage_for(Quiz(task), speaker(kind, heard), prompts=prompts)
    with pytest.raises(ForbiddenField, match=f"asks for '{field}'"):
        asyncio.run(protocol(way, BLIND[way]).ask(task, stage))
    assert heard.shows(*SECRETS) == []
    assert prompt != "solver" or heard.shown == []


@pytest.fixture(scope="module")
def server() -> Iterator[Faulty]:
    with serving(lambda i, body: completion("Answer: 1")) as server:
        yield server


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("questions") / "q.jsonl"
    file.write_text('{"question": "one?", "answer": "g0ld-tag"}\n', encoding="utf-8")
    return file


def cast(server: Faulty, questions: Path, way: str, prompts: Path) -> Cast:
    env = {"name": "questions", "file": str(questions), "dev": 0.0, "test": 1.0}
    data = {
        "model": {"path": "m"},
        "env": env,
        "method": {"name": "grpo"},
        "eval": {"protocol": way},
        "engine": {"name": "openai", "url": server.url},
        "train": {"steps": 1},
        "prompts": str(prompts),
    }
    return Cast.of(parse_recipe(data, "test"))


words = st.text(st.characters(exclude_characters="{}@\\", categories=["L", "P", "Zs"]))


@pytest.mark.parametrize(("way", "prompt", "field"), ATTEMPTS)
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(before=words, after=words)
def test_a_users_prompt_that_asks_for_more_is_refused_before_anything_is_sampled(
    way: str,
    prompt: str,
    field: str,
    before: str,
    after: str,
    server: Faulty,
    questions: Path,
    tmp_path: Path,
) -> None:
    """LESSONS 5: not once was anybody asked anything."""
    asked = len(server.asked)
    text = f"@@ user\n{before}{{{field}}}{after}\n"
    (tmp_path / f"{prompt}.txt").write_text(text, encoding="utf-8")
    with pytest.raises(InwitError, match=f"(?s)prompt '{prompt}' shows .*{field}.*forbids"):
        cast(server, questions, way, tmp_path)
    assert len(server.asked) == asked


def test_a_users_prompt_that_asks_for_what_it_may_is_used(
    server: Faulty, questions: Path, tmp_path: Path
) -> None:
    """And the run says what everybody saw."""
    (tmp_path / "again.txt").write_text("@@ user\n{question} You said: {attempt}", "utf-8")
    player = cast(server, questions, "intrinsic", tmp_path)
    summary, _ = evaluate(player, Split.TEST, out=tmp_path / "out")
    said = [[m["content"] for m in body["messages"]] for body in server.asked]
    assert said[-1][-1] == "one? You said: Answer: 1"
    assert summary["sees"] == {"solver": ["question"], "again": ["attempt", "question"]}
    assert not any(GOLD in text for messages in said for text in messages)
