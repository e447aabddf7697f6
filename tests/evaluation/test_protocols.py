"""Protocols: who is asked what, in which order, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inwit.engines.torch import TorchEngine
from inwit.envs import Result, Split, Task
from inwit.envs.checkout import Checkout, CheckoutSettings
from inwit.errors import InwitError, TooLong
from inwit.evaluation.measures import Measured
from inwit.evaluation.protocols import PROTOCOLS, protocol
from inwit.evaluation.records import Record, Trial
from inwit.evaluation.running import ask_all, check
from inwit.playing import Stage
from inwit.roles import CONDITIONS
from inwit.rows import Sees
from inwit.speaking import Speaker
from tests.evaluation.fakes import (
    KINDS,
    PROMPTS,
    Quiz,
    Script,
    answered,
    measured,
    quiz,
    speaker,
    stage_for,
)
from tests.methods.worlds import SHOP, maze, scripted, shop, shop_stage, stage_of, warm_engine

WRONG = "The try was graded wrong."


def ask(
    name: str, solver: Speaker, critic: Speaker | None = None, env: Quiz | None = None, **rest: Any
) -> tuple[Trial, ...]:
    """Ask the first question of a quiz; `options` are the protocol's."""
    options = rest.pop("options", {})
    env = env or quiz(feedback="look at line 3", wrong="1 wrong")
    stage = stage_for(env, solver, critic, **rest)
    return asyncio.run(protocol(name, options).ask(env.tasks(Split.TEST)[0], stage))


def texts(trial: Trial) -> list[str]:
    return [a.said.text for a in trial.answers]


def opening(name: str, text: str) -> str:
    """A conversation of one message under one of the prompts."""
    return f"<system> {name} <end> <user> {text} <end> <assistant>"


@pytest.fixture(params=KINDS)
def of_kind(request: pytest.FixtureRequest) -> Any:
    """From a script to who follows it: a policy, or a model behind an endpoint."""
    return lambda script, **options: speaker(request.param, script, **options)


# ---------------------------------------------------------------------- direct, intrinsic


def test_direct_asks_once(of_kind) -> None:
    script = Script(solver="a wrong")
    [trial] = ask("direct", of_kind(script))
    assert script.asked == [("solver", opening("solver", "question 0"))]
    assert texts(trial) == ["a wrong"] and trial.answers[0].said.sees == ("question",)
    assert (trial.arm, trial.critiques) == ("", ())


@pytest.mark.parametrize("first", ["a right", "a wrong", "a break"])
@pytest.mark.parametrize("turns", [2, 3, 4])
def test_intrinsic_asks_t_times_whatever_came_out(of_kind, first: str, turns: int) -> None:
    """LESSONS 6: a right answer is asked about as a wrong one is; each turn sees all before it."""
    script = Script(solver=first, again=["no b wrong", "yes c right", "d wrong"])
    [trial] = ask("intrinsic", of_kind(script), options={"turns": turns})
    assert script.names == ["solver"] + ["again"] * (turns - 1)
    every = [first, "no b wrong", "yes c right", "d wrong"][:turns]
    assert texts(trial) == every
    shown = script.asked[-1][1].replace("<assistant> ", "<assistant>").replace(" <end>", "<end>")
    told = "".join(f"<assistant>{text}<end> <user> once more<end> " for text in every[:-1])
    assert shown == f"<system> solver<end> <user> question 0<end> {told}<assistant>"
    assert [a.verdict for a in trial.answers] == [None, True, False, None][:turns]
    assert {a.said.sees for a in trial.answers[1:]} == {("attempt", "question")}


# ---------------------------------------------------------------------- critique, self-refine


def test_critique_asks_again_until_it_is_right(of_kind) -> None:
    """The critic knows the outcome; the next try is a fresh one that sees the critique alone."""
    script = Script(
        solver="a wrong", critic=["c1", "c2", "c3"], revision=["b wrong", "d right", "e wrong"]
    )
    [trial] = ask("critique", of_kind(script), options={"turns": 5})
    assert script.asked == [
        ("solver", opening("solver", "question 0")),
        ("critic", opening("critic", f"question 0 tried a wrong {WRONG}")),
        ("revision", opening("revision", "question 0 note c1")),
        ("critic", opening("critic", f"question 0 tried b wrong {WRONG}")),
        ("revision", opening("revision", "question 0 note c2")),
    ]
    assert texts(trial) == ["a wrong", "b wrong", "d right"]
    assert [c.text for c in trial.critiques] == ["c1", "c2"]
    assert trial.answers[1].said.sees == ("attempt", "critique", "outcome", "question")
    assert trial.critiques[0].sees == ("attempt", "outcome", "question")


@pytest.mark.parametrize("name", ["critique", "reflexion"])
@pytest.mark.parametrize("first", ["a right", "a break"])
def test_only_failures_are_criticised(of_kind, name: str, first: str) -> None:
    """LESSONS 23: what could not be graded is no failure."""
    script = Script(solver=first)
    [trial] = ask(name, of_kind(script), options={"turns": 4})
    assert script.names == ["solver"] and texts(trial) == [first] and not trial.critiques


@pytest.mark.parametrize("name", ["critique", "reflexion"])
def test_failures_are_criticised_up_to_the_last_turn(of_kind, name: str) -> None:
    note = "critic" if name == "critique" else "reflection"
    script = Script(solver="a wrong", revision="b wrong", **{note: "c"})
    [trial] = ask(name, of_kind(script), options={"turns": 3})
    assert script.names == ["solver", note, "revision", note, "revision"]
    assert len(trial.answers) == 3 and len(trial.critiques) == 2


@pytest.mark.parametrize("first", ["a right", "a wrong"])
def test_self_refine_goes_on_whatever_came_out(of_kind, first: str) -> None:
    """Feedback and refinement see the last attempt, and of its outcome nothing."""
    script = Script(solver=first, feedback=["f1", "f2"], refine=["b right", "c wrong"])
    [trial] = ask("self-refine", of_kind(script), options={"turns": 3})
    assert script.asked == [
        ("solver", opening("solver", "question 0")),
        ("feedback", opening("feedback", f"question 0 tried {first}")),
        ("refine", opening("refine", f"question 0 tried {first} note f1")),
        ("feedback", opening("feedback", "question 0 tried b right")),
        ("refine", opening("refine", "question 0 tried b right note f2")),
    ]
    assert texts(trial) == [first, "b right", "c wrong"]
    assert [c.sees for c in trial.critiques] == [("attempt", "question")] * 2
    assert trial.answers[1].said.sees == ("attempt", "critique", "question")


def test_a_critic_of_its_own(of_kind) -> None:
    """It is asked for critiques and nothing else, and the solver for everything else."""
    solver = Script(solver="a wrong", revision="b right")
    critic = Script(critic="look")
    [trial] = ask("critique", of_kind(solver), of_kind(critic))
    assert (solver.names, critic.names) == (["solver", "revision"], ["critic"])
    assert trial.critiques[0].text == "look"
    solver, critic = Script(solver="a wrong", refine="b right"), Script(feedback="look")
    ask("self-refine", of_kind(solver), of_kind(critic))
    assert (solver.names, critic.names) == (["solver", "refine"], ["feedback"])


# ---------------------------------------------------------------------- reflexion


def test_reflexion_remembers_the_last_three(of_kind) -> None:
    """Each reflection sees the failed try and the environment's feedback; a retry, the memory."""
    script = Script(
        solver="a wrong",
        reflection=[f"r{i}" for i in range(1, 9)],
        revision=[*(f"b{i} wrong" for i in range(1, 5)), "c right"],
    )
    [trial] = ask("reflexion", of_kind(script), options={"turns": 9})
    retries = [shown for name, shown in script.asked if name == "revision"]
    assert retries == [
        opening("revision", f"question 0 note {memory}")
        for memory in ("r1", "r1 r2", "r1 r2 r3", "r2 r3 r4", "r3 r4 r5")
    ]
    reflected = [shown for name, shown in script.asked if name == "reflection"]
    assert reflected[1] == opening(
        "reflection", f"question 0 tried b1 wrong {WRONG} look at line 3"
    )
    assert len(trial.answers) == 6 and trial.answers[-1].right
    assert [c.text for c in trial.critiques] == ["r1", "r2", "r3", "r4", "r5"]
    sees = ("attempt", "critique", "feedback", "outcome", "question")
    assert {a.said.sees for a in trial.answers[1:]} == {sees}


# ---------------------------------------------------------------------- no room


NOTE = {"critique": "critic", "reflexion": "reflection", "self-refine": "feedback"}
REDO = {"critique": "revision", "reflexion": "revision", "self-refine": "refine"}


LONG = "x" * 60


def answers_of(name: str, stuck: str) -> Script:
    """The second critique is long, or the second answer: one of them makes too long a prompt."""
    if stuck == "revision":
        lines = {NOTE[name]: ["ok", LONG], REDO[name]: ["b wrong", "c right"]}
    else:
        lines = {NOTE[name]: "ok", REDO[name]: [f"{LONG} wrong", "c right"]}
    return Script(solver="a wrong", **lines)


@pytest.mark.parametrize("stuck", ["critique", "revision"])
@pytest.mark.parametrize("name", NOTE)
def test_a_prompt_that_is_too_long_leaves_the_last_answer_standing(name: str, stuck: str) -> None:
    """Be it the critique that has no room, or the try after it; what was sampled is kept."""
    free = speaker("actor", answers_of(name, stuck))
    ask(name, free, options={"turns": 3})
    sizes = [len(ids) for ids, _, _ in free.policy.asked]  # type: ignore[attr-defined]
    made = 3 if stuck == "critique" else 4
    assert max(sizes[:made]) < sizes[made]
    script = answers_of(name, stuck)
    room = {"max_tokens": 80, "critic_max_tokens": 80, "max_context": 80 + sizes[made] - 1}
    [trial] = ask(name, speaker("actor", script), options={"turns": 3}, **room)
    assert texts(trial) == ["a wrong", f"{LONG} wrong" if stuck == "critique" else "b wrong"]
    assert [c.text for c in trial.critiques] == ["ok", *([LONG] if stuck == "revision" else [])]
    assert trial.no_room and len(script.asked) == made


def test_a_conversation_that_grows_too_long_ends() -> None:
    script = Script(solver="a wrong", again="b wrong")
    solver = speaker("actor", script)
    ask("intrinsic", solver, options={"turns": 4})
    sizes = [len(ids) for ids, _, _ in solver.policy.asked]  # type: ignore[attr-defined]
    for turns in (1, 2, 3, 4):
        room = {"max_tokens": 20, "max_context": sizes[turns - 1] + 20}
        again = Script(solver="a wrong", again="b wrong")
        [trial] = ask("intrinsic", speaker("actor", again), options={"turns": 4}, **room)
        assert len(trial.answers) == len(again.asked) == turns
        found = measured("intrinsic", [Record("t0", 0, (trial,))], turns=4)
        assert found.measures["a4"].n == 1, "the last answer stands to the end"


def test_a_question_that_is_too_long_is_no_answer() -> None:
    """It is refused: nothing stands before it."""
    for name in ("direct", "intrinsic", "parallel", "sequential"):
        with pytest.raises(TooLong, match="task t0"):
            ask(name, speaker("actor", Script()), max_tokens=20, max_context=30)


# ---------------------------------------------------------------------- given answers


def test_the_three_arms_of_injected_show_the_same_wrong_answer(of_kind) -> None:
    script = Script(solver=["3 right", "Wait 4 right"], given="5 wrong")
    trials = ask("injected", of_kind(script), env=quiz(wrong="17 plus 1"))
    mouth = "<system> solver <end> <user> question 0 <end> <assistant>"
    shown = [text.replace("<assistant> ", "<assistant>") for _, text in script.asked]
    assert shown == [
        f"{mouth}17 plus 1",
        opening("given", "question 0 mine 17 plus 1"),
        f"{mouth}17 plus 1 Wait",
    ]
    assert [t.arm for t in trials] == ["own", "user", "marker"]
    assert [t.answers[0].right for t in trials] == [True, False, True]
    assert [t.answers[0].said.sees for t in trials] == [
        *(("question",), ("attempt", "question"), ("question",))
    ]


def test_injected_words_are_put_into_the_mouth_of_an_endpoint() -> None:
    solver = speaker("correspondent", Script(solver="3 right", given="5 wrong"))
    ask("injected", solver, env=quiz(wrong="17"))
    own, user, marker = solver.endpoint.asked  # type: ignore[attr-defined]
    assert own["messages"][-1] == ("assistant", "17") and own["continue_last"]
    assert user["messages"][-1][0] == "user" and not user["continue_last"]
    assert marker["messages"][-1] == ("assistant", "17 Wait")
    assert own["seed"] != marker["seed"]


def test_the_marker_is_the_settings_or_the_environments() -> None:
    class Other(Quiz):
        marker = "Hold on"

    task = Task("t0", "question 0", "7", {"wrong": "17"})
    for options, marker in (({}, "Hold on"), ({"marker": "No:"}, "No:")):
        script = Script(solver="right", given="right")
        ask("injected", speaker("actor", script), env=Other(task), options=options)
        assert script.asked[2][1].endswith(f"17 {marker}")


def test_what_is_graded_begins_with_the_injected_words() -> None:
    class Whole(Quiz):
        def grade(self, task: Task, answer: str) -> Result:
            return Result.of(answer == "17 wrong, Waitno 7 right")  # it wrote no space

    task = Task("t0", "question 0", "7", {"wrong": "17 wrong,"})
    script = Script(solver=["no 7 right"], given="no 7 right")
    own, user, marker = ask("injected", speaker("actor", script), env=Whole(task))
    assert [t.answers[0].right for t in (own, user, marker)] == [False, False, True]


def test_repair_shows_a_wrong_answer_and_says_so(of_kind) -> None:
    script = Script(repair="7 right")
    [trial] = ask("repair", of_kind(script), env=quiz(wrong="17"))
    assert script.asked == [("repair", opening("repair", "question 0 wrong 17"))]
    assert trial.answers[0].right
    assert trial.answers[0].said.sees == ("attempt", "outcome", "question")


@pytest.mark.parametrize("name", ["injected", "repair"])
def test_tasks_without_a_wrong_answer_are_refused_before_anything_is_asked(name: str) -> None:
    script = Script(solver="x", given="x", repair="x")
    env = Quiz(Task("a", "q", "7", {"wrong": "8"}), Task("b", "q", "7"), Task("c", "q", "7"))
    stage = stage_for(env, speaker("actor", script))
    with pytest.raises(InwitError, match=r"(?s)2 of 3 tasks.*first being b.*env\.wrong"):
        asyncio.run(ask_all(protocol(name), env.tasks(Split.TEST), stage))
    assert script.asked == []


def of_arms(own: str, user: str, marker: str, task: str) -> Record:
    grades = {"r": "right", "w": "wrong", "e": "error"}
    arms = zip((own, user, marker), ("own", "user", "marker"), strict=True)
    trials = [Trial((answered(grades[g]),), (), arm) for g, arm in arms]
    return Record(task, 0, tuple(trials))


def test_the_blind_spot_by_hand() -> None:
    """Of 4 mended as the user's 1 is mended as its own, and 3 with the marker: 3/4, and 1/4."""
    spec = ["rrr", "wrr", "wrr", "wrw", "www"]
    found = measured("injected", [of_arms(*arms, f"t{i}") for i, arms in enumerate(spec)])
    m = found.measures
    assert [m[k].count for k in ("own", "user", "marker")] == [1, 4, 3]
    assert m["blind_spot"].value == 0.75 and m["blind_spot_marker"].value == 0.25
    assert (m["blind_spot"].n, m["blind_spot"].count) == (4, 3)
    low, high = m["blind_spot"].ci
    assert 0 <= low < 0.75 < high <= 1
    assert found.p["mcnemar_p"] == 0.25  # 0 against 3


def test_where_the_users_are_never_mended_there_is_no_blind_spot() -> None:
    found = measured("injected", [of_arms("r", "w", "w", "a"), of_arms("w", "e", "w", "b")])
    assert found.measures["blind_spot"].value is None
    assert (found.measures["user"].n, found.errors) == (1, 1)


# ---------------------------------------------------------------------- by name, with options


def test_every_protocol_is_known_by_name() -> None:
    names = {
        *("direct", "intrinsic", "critique", "self-refine", "reflexion"),
        *("repair", "injected", "parallel", "sequential"),
    }
    assert set(PROTOCOLS.known()) == names
    for name in names:
        found = protocol(name)
        assert found.name == name and found.summary
        assert set(found.prompts) <= set(CONDITIONS)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("direct", {"turns": 2}, r"(?s)'direct' does not take turns = 2.*Its options: none"),
        ("intrinsic", {"turns": 1}, "does not take turns = 1"),
        ("parallel", {"k": 0}, "does not take k = 0"),
        ("injected", {"k": 3}, r"(?s)does not take k = 3.*options: marker"),
        ("intrinsc", {}, "Did you mean 'intrinsic'"),
    ],
)
def test_options_that_are_refused(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InwitError, match=said):
        protocol(name, options)


def test_the_prompts_that_a_protocol_names_are_those_that_it_shows() -> None:
    """They stand in every result with what they may show: a prompt left out would hide."""
    for name in PROTOCOLS.known():
        script = Script(**dict.fromkeys(PROMPTS, "a wrong"))
        ask(name, speaker("correspondent", script))
        assert set(script.names) == set(protocol(name).prompts), name


# ---------------------------------------------------------------------- on a real model


SCENE = ("evaluate", "dev", 0)
"""In it some first answers are right and some are not, and some are mended."""


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return warm_engine()


@pytest.fixture(scope="module")
def tasks() -> Sequence[Task]:
    return shop().tasks(Split.DEV)


def run(
    name: str, tasks: Sequence[Task], stage: Stage, **options: Any
) -> tuple[Measured, list[Record]]:
    way = protocol(name, options)
    records, faults = asyncio.run(ask_all(way, tasks, stage))
    assert not faults.unanswered
    return way.measured(records), records


def test_direct_asks_each_question_once(engine, tasks) -> None:
    """LESSONS 5: and every answer says that it was given to the question alone."""
    found, records = run("direct", tasks, shop_stage(engine, scene=SCENE))
    assert [r.task for r in records] == [task.id for task in tasks]
    gold = {task.id: task.reference for task in tasks}
    right = sum(r.trial.answers[0].said.text == gold[r.task] for r in records)
    assert 0 < right < len(tasks)
    assert (found.measures["a1"].count, found.measures["a1"].n) == (right, 16)
    assert all(a.said.sees == (Sees.QUESTION,) for r in records for a in r.answers)
    assert found.sampled_tokens == sum(a.said.tokens or 0 for r in records for a in r.answers) > 0


def test_critique_asks_again_where_the_first_answer_failed(engine, tasks) -> None:
    """LESSONS 5: every prompt of the protocol carries what it showed, outcome included."""
    found, records = run("critique", tasks, shop_stage(engine, scene=SCENE))
    gold = {task.id: task.reference for task in tasks}
    said = {r.task: texts(r.trial) for r in records}
    failed = {task for task, answers in said.items() if answers[0] != gold[task]}
    mended = {task for task in failed if said[task][1] == gold[task]}
    assert failed and mended
    assert {task for task, answers in said.items() if len(answers) > 1} == failed
    m = found.measures
    assert (m["repair_rate"].count, m["repair_rate"].n) == (len(mended), len(failed))
    assert (m["right_to_wrong"].count, m["confidence"].value) == (0, 1.0)
    assert m["tokens/critiques"].n == len(failed)
    sees = {c.sees for r in records for c in r.trial.critiques}
    assert sees == {("attempt", "outcome", "question")}


def test_protocols_have_the_same_first_answers(engine, tasks) -> None:
    """What comes after never changes what is measured first."""
    stage = shop_stage(engine, scene=SCENE)
    firsts = {
        name: [r.trial.answers[0].said.text for r in run(name, tasks, stage)[1]]
        for name in ("direct", "critique", "intrinsic", "reflexion", "self-refine")
    }
    assert len({tuple(answers) for answers in firsts.values()}) == 1


def test_a_greedy_evaluation_does_not_depend_on_the_seed(engine, tasks) -> None:
    def answers(seed: int, temperature: float) -> list[str]:
        stage = shop_stage(engine, seed=seed)
        spec = stage.sampling.model_copy(update={"temperature": temperature})
        records = run("direct", tasks, replace(stage, sampling=spec))[1]
        return [r.trial.answers[0].said.text for r in records]

    assert answers(0, 0.0) == answers(1, 0.0)
    assert answers(0, 1.0) != answers(1, 1.0)


def test_what_could_not_be_graded_is_not_criticised(engine) -> None:
    """LESSONS 23: an error is neither right nor wrong, and is counted."""

    class Flaky(Checkout):
        def grade(self, task: Task, answer: str) -> Result:
            if int(task.id[-1]) % 2:
                raise TimeoutError("the scales are stuck")
            return super().grade(task, answer)

    env = Flaky(CheckoutSettings(**SHOP))
    found, records = run("critique", env.tasks(Split.DEV)[:10], shop_stage(engine, env))
    assert (found.measures["a1"].n, found.errors) == (5, 5)
    odd = [r.trial for r in records[1::2]]
    assert all(t.answers[0].feedback == "TimeoutError: the scales are stuck" for t in odd)
    assert all(len(t.answers) == 1 for t in odd)


# ---------------------------------------------------------------------- several turns an attempt

# what each of the maze's questions is answered with at first, and after a critique
SCRIPT = {
    "hall08": ("trap00", "key00"),  # mended
    "hall09": ("trap01", "trap02"),  # not mended
    "hall10": ("key00", ""),  # right at once
    "hall11": ("trap03", "break"),  # the revision cannot be graded
}


def say(shown: str, sample: int) -> str:
    if "critic" in shown:
        return "here dark"
    hall = next(word for word in shown.split() if word in SCRIPT)
    return SCRIPT[hall]["note" in shown]


def test_the_maze() -> None:
    """LESSONS 4: of four questions one is right, one is mended, one is not, one revision broke."""
    env = maze()
    tasks = env.tasks(Split.TEST)
    found, records = run("critique", tasks, stage_of(env, scripted(say)))
    assert [[str(a.grade) for a in r.answers] for r in records] == [
        ["wrong", "right"],
        ["wrong", "wrong"],
        ["right"],
        ["wrong", "error"],
    ]
    m = found.measures
    assert (m["a1"].count, m["a1"].n, found.errors) == (1, 3, 1)
    assert (m["repair_rate"].count, m["repair_rate"].n) == (1, 2)
    assert m["tokens/critiques"].value == 3.0
    assert found.sampled_tokens == 7 * 2 + 3 * 3
    assert all(play.closed == 1 for play in env.plays)
    check(protocol("critique"), tasks, stage_of(env, scripted(say)))


def test_truncated_answers_are_reported() -> None:
    env = maze()
    stage = stage_of(env, scripted(say), max_tokens=1, critic_max_tokens=2)
    found, records = run("critique", env.tasks(Split.TEST), stage)
    assert found.measures["truncated"].value == 1.0
    assert found.measures["tokens/critiques"].value == 2.0
    assert all(c.truncated for r in records for c in r.trial.critiques)
