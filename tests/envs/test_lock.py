"""The environment `lock`: the dial, splits, grades, demonstrations, rendering."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

import inwit.envs.lock as lock
from inwit.engines import Sampling
from inwit.engines.torch import TorchEngine, TorchSettings, load_model
from inwit.engines.torch.loading import digest
from inwit.envs import Demonstration, Split, env_class
from inwit.envs.lock import Lock, LockSettings, build_model, build_tokenizer
from inwit.envs.lock.dial import OPERATIONS, Problem, count_problems, turn
from inwit.roles import CONDITIONS, Renderer, View, load_prompt
from inwit.rows import Completion, Grade, Ids, Sees, Stop

SMALL = {"train": 300, "dev": 20, "test": 20}
SPLITS = (Split.TRAIN, Split.DEV, Split.TEST)
PROMPTS = {path.stem for path in (Lock.prompts or Path()).glob("*.txt")}
QUESTION = "Keys: 3 8 Lock: +4 x3 +9 Goal: 0"
READS = re.compile(r"Keys: ((?:\d )+)Lock: ((?:[+x]\d )+)Goal: (\d)")


@pytest.fixture(scope="module")
def env() -> Lock:
    return Lock(LockSettings(**SMALL))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lock")
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def renderer(saved: Path) -> Renderer:
    """Of the tokenizer as it is after saving and loading."""
    return Renderer(AutoTokenizer.from_pretrained(saved))


def prompt_ids(renderer: Renderer, name: str, **fields: str) -> Ids:
    view = View(CONDITIONS[name], {Sees(field): text for field, text in fields.items()})
    return renderer.prompt_ids(load_prompt(name, [Lock.prompts]), view)


def instruction() -> str:
    [(speaker, text)] = load_prompt("again", [Lock.prompts]).messages
    assert speaker == "user"
    return text


def said(renderer: Renderer, text: str, stop: Stop = Stop.TOKEN) -> Completion:
    ids = renderer.completion_ids(text)
    ids = ids if stop is Stop.TOKEN else ids[:-1]
    return Completion(ids, (-1.0,) * len(ids), stop)


def read(question: str) -> Problem:
    keys, operations, goal = READS.fullmatch(question).groups()
    return Problem(tuple(map(int, keys.split())), tuple(operations.split()), int(goal))


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def plain_chain(question: str, key: int) -> list[int]:
    """The chain of a key, worked out without the module under test."""
    out = [key]
    for operation in READS.fullmatch(question)[2].split():
        n = int(operation[1])
        out.append((out[-1] + n if "+" in operation else out[-1] * n) % 10)
    return out


# ------------------------------------------------------------------ the dial


def test_every_operation_maps_the_dial_onto_itself():
    assert len(set(OPERATIONS)) == len(OPERATIONS) == 12
    for operation in OPERATIONS:
        readings = [turn(reading, operation) for reading in range(10)]
        assert sorted(readings) == list(range(10))
        assert readings != list(range(10))
    assert (turn(7, "+4"), turn(7, "x3"), turn(4, "x9")) == (1, 1, 6)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 10), st.integers(1, 8))
def test_exactly_one_key_opens_a_lock(seed, keys, steps):
    problem = Problem.draw(Random(seed), keys, steps)
    assert len(set(problem.keys)) == len(problem.keys) == keys
    assert len(problem.operations) == steps
    opening = [key for key in problem.keys if plain_chain(str(problem), key)[-1] == problem.goal]
    assert opening == [problem.right_key]
    assert sorted([*problem.wrong_keys, problem.right_key]) == sorted(problem.keys)
    assert problem.chain(problem.right_key) == plain_chain(str(problem), problem.right_key)


def test_the_opening_key_stands_anywhere_and_every_operation_occurs(env):
    problems = [read(task.question) for task in Lock(LockSettings()).tasks(Split.TRAIN)]
    first = [problem.keys[0] == problem.right_key for problem in problems]
    assert share(first) == pytest.approx(0.5, abs=0.02)
    used = Counter(operation for problem in problems for operation in problem.operations)
    assert set(used) == set(OPERATIONS)
    assert all(n / sum(used.values()) == pytest.approx(1 / 12, abs=0.01) for n in used.values())
    offered = Counter(key for problem in problems for key in problem.keys)
    assert all(offered[key] / len(problems) == pytest.approx(0.2, abs=0.02) for key in range(10))


def test_locks_are_counted_as_they_are_told_apart():
    every = {
        Problem(keys, (operation,), turn(right, operation)).identity
        for keys in product(range(10), repeat=2)
        if keys[0] != keys[1]
        for operation in OPERATIONS
        for right in keys
    }
    assert count_problems(2, 1) == len(every) == 1080
    assert count_problems(2, 3) == 155_520
    a, b = (Problem(keys, ("+4", "x3", "+9"), 0) for keys in ((3, 8), (8, 3)))
    assert a.identity == b.identity != Problem((3, 8), ("+4", "x3", "+9"), 5).identity


# ------------------------------------------------------------------ splits


@pytest.mark.parametrize(
    "asked",
    [
        {"train": 1000, "dev": 40, "test": 40, "keys": 2, "steps": 1},  # all there are
        {"train": 5000, "dev": 512, "test": 1024},
        {"train": 200, "dev": 50, "test": 50, "keys": 10, "steps": 8},
    ],
    ids=["all there are", "default", "longest"],
)
def test_splits_have_the_asked_sizes_and_share_no_lock(asked):
    env = Lock(LockSettings(**asked))
    seen, ids = [], set()
    for split in SPLITS:
        tasks = env.tasks(split)
        assert len(tasks) == asked[split]
        ids |= {task.id for task in tasks}
        for task in tasks:
            problem = read(task.question)
            assert len(problem.keys) == asked.get("keys", 2)
            assert len(problem.operations) == asked.get("steps", 3)
            seen.append((frozenset(problem.keys), problem.operations, problem.goal))
    assert len(set(seen)) == len(ids) == len(seen) == sum(asked[split] for split in SPLITS)


def test_held_out_sets_do_not_depend_on_how_much_there_is_to_train_on(env):
    """Figures for runs of different length are about the same locks."""
    more = Lock(LockSettings(**SMALL | {"train": 900}))
    assert more.tasks(Split.DEV) == env.tasks(Split.DEV)
    assert more.tasks(Split.TEST) == env.tasks(Split.TEST)
    assert more.tasks(Split.TRAIN)[:300] == env.tasks(Split.TRAIN)


def test_everything_comes_from_the_seed(env):
    """A question of seed 7 is written down, so that another process must find the same one."""
    again, other = (Lock(LockSettings(seed=seed, **SMALL)) for seed in (7, 8))
    for split in SPLITS:
        assert again.tasks(split) == env.tasks(split) != other.tasks(split)
    assert env.tasks(Split.TEST)[0].question == "Keys: 2 1 Lock: x7 +7 +8 Goal: 9"
    assert again.demonstrations(Random(1), 50) == env.demonstrations(Random(1), 50)
    assert env.demonstrations(Random(2), 50) != env.demonstrations(Random(1), 50)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 1}, "21536 locks are asked for, but there are only 1080 of 2 keys and 1 steps"),
        ({"steps": 1, "train": 1000, "dev": 40, "test": 41}, "only 1080"),
        ({"steps": 0}, "steps"),
        ({"steps": 9}, "steps"),
        ({"keys": 1}, "keys"),
        ({"keys": 11}, "keys"),
        ({"train": 0}, "train"),
        ({"slip": 1.1}, "slip"),
        ({"slip_again": -0.1}, "slip_again"),
        ({"other_key": 2}, "other_key"),
        ({"says_no": (0.5, 1.1)}, "says_no"),
        ({"says_no": (-0.1, 0.5)}, "says_no"),
        ({"share_solver": 0.7, "share_check": 0.2, "share_redo": 0.2}, "over 1"),
        ({"sizes": 3}, "sizes"),
    ],
)
def test_senseless_settings_are_refused(wrong, message):
    with pytest.raises(ValidationError, match=message):
        LockSettings(**wrong)


def test_shares_that_make_up_a_whole_are_allowed():
    for shares in ((0.7, 0.2, 0.1), (0.1, 0.7, 0.2), (0.6, 0.3, 0.1), (1, 0, 0)):
        names = ("share_solver", "share_check", "share_redo")
        LockSettings(**dict(zip(names, shares, strict=True)))


# ------------------------------------------------------------------ grades


@pytest.mark.parametrize("asked", [{}, {"keys": 5, "steps": 6}], ids=["default", "longer"])
def test_only_the_whole_answer_is_right(asked):
    env = Lock(LockSettings(**SMALL, **asked))
    for task in env.tasks(Split.DEV):
        problem = read(task.question)
        right = task.reference.split()
        assert numbers(task.reference) == plain_chain(task.question, problem.right_key)
        for text in (task.reference, f"  {task.reference} ", "\n".join(right)):
            result = env.grade(task, text)
            assert (result.grade, result.reward, result.feedback) == (Grade.RIGHT, 1.0, "")
        wrong = {f"chain of {key}": plain_chain(task.question, key) for key in problem.wrong_keys}
        absent = [key for key in range(10) if key not in problem.keys]
        wrong |= {f"not on offer, {key}": plain_chain(task.question, key) for key in absent}
        for at, slip in product(range(len(right)), (-1, 1)):
            slipped = [*right]
            slipped[at] = str((int(right[at]) + slip) % 10)
            wrong[f"slip at {at}"] = slipped
            tail = plain_chain(task.question, int(right[0]))
            wrong[f"slip at {at} and after"] = [
                *tail[:at],
                *((reading + slip) % 10 for reading in tail[at:]),
            ]
        wrong |= {
            "goal alone at the end": [problem.wrong_keys[0], *right[1:]],
            "truncated": right[:-1],
            "no key": right[1:],
            "key alone": right[:1],
            "one more": [*right, right[-1]],
            "a word more": [*right, "yes"],
            "a word before": ["Try:", *right],
            "a verdict alone": ["yes"],
            "verdict in capitals": ["Yes", *right],
            "twice": right + right,
            "glued": ["".join(right)],
            "zero-padded": [f"0{n}" for n in right],
            "nothing": [],
        }
        for case, words in wrong.items():
            result = env.grade(task, " ".join(map(str, words)))
            assert (result.grade, result.reward) == (Grade.WRONG, 0.0), case


def test_the_verdict_that_a_text_opens_with_is_left_out(env):
    task, other = env.tasks(Split.DEV)[:2]
    for word in ("yes", "no"):
        assert env.grade(task, f"{word} {task.reference}").grade is Grade.RIGHT
        assert env.grade(task, f"{word} {env.wrong_answer(task)}").grade is Grade.WRONG
        assert env.answer_of(task, f" {word}  3 7\n1 0 ") == "3 7 1 0"
        assert env.answer_of(other, word) == ""
    assert env.answer_of(task, "3  7 1 0") == "3 7 1 0"
    assert env.answer_of(task, "3 yes") == ""
    assert env.answer_of(task, "") == ""


def test_an_answer_thought_better_of_does_not_count(env):
    """What a text corrects itself: the answer behind its last verdict is the one that counts."""
    task = env.tasks(Split.DEV)[0]
    wrong = env.wrong_answer(task)
    assert env.grade(task, f"{wrong} no {task.reference}").grade is Grade.RIGHT
    assert env.grade(task, f"{task.reference} no {wrong}").grade is Grade.WRONG
    assert env.grade(task, f"{task.reference} no").grade is Grade.WRONG


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("no 3 7 1 0", True),
        (" no", True),
        ("yes 3 7 1 0", False),
        ("yes", False),
        ("3 7 1 0", None),
        ("3 no", None),
        ("nothing", None),
        ("", None),
    ],
)
def test_a_text_says_that_the_one_before_it_was_wrong(env, text, verdict):
    assert env.verdict(text) is verdict


@pytest.mark.parametrize(
    ("before", "answer", "written"),
    [
        ("3 7 1 0", "3 7 1 0", "yes 3 7 1 0"),
        (" 3 7  1 0", "3 7 1 0", "yes 3 7 1 0"),
        ("no 3 7 1 0", "yes 3 7 1 0", "yes 3 7 1 0"),
        ("8 2 6 5", "3 7 1 0", "no 3 7 1 0"),
        ("", "3 7 1 0", "no 3 7 1 0"),
    ],
)
def test_an_answer_is_written_as_a_second_attempt(env, before, answer, written):
    assert env.second_attempt(before, answer) == written


def test_the_wrong_answer_is_the_true_chain_of_the_first_wrong_key():
    env = Lock(LockSettings(**SMALL, keys=3))
    for task in env.tasks(Split.TEST):
        problem = read(task.question)
        key = next(k for k in problem.keys if plain_chain(task.question, k)[-1] != problem.goal)
        wrong = env.wrong_answer(task)
        assert wrong is not None
        assert numbers(wrong) == plain_chain(task.question, key)
        assert env.grade(task, wrong).grade is Grade.WRONG


def test_an_attempt_is_one_turn_and_its_text_is_graded(env, renderer):
    task = env.tasks(Split.DEV)[0]
    for text, grade in ((task.reference, Grade.RIGHT), (env.wrong_answer(task), Grade.WRONG)):
        step = asyncio.run(env.open(task).step(renderer.text(renderer.completion_ids(text))))
        assert step.result is not None
        assert step.result.grade is grade
    assert env.max_turns == 1
    assert env_class("lock") is Lock


# ------------------------------------------------------------------ demonstrations

N = 12_000


@pytest.fixture(scope="module")
def shown(env: Lock) -> dict[str, list[Demonstration]]:
    by_prompt: dict[str, list[Demonstration]] = {}
    for demonstration in env.demonstrations(Random(1), N):
        by_prompt.setdefault(demonstration.prompt, []).append(demonstration)
    return by_prompt


def share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def about(rate: float, n: int) -> object:
    """Within four and a half standard errors."""
    return pytest.approx(rate, abs=4.5 * (rate * (1 - rate) / n) ** 0.5)


def slips(question: str, text: str) -> list[int]:
    """How far each reading is from what the reading before it should have led to."""
    readings = numbers(text)
    operations = READS.fullmatch(question)[2].split()
    assert len(readings) == len(operations) + 1
    pairs = zip(readings, operations, readings[1:], strict=False)
    return [(after - turn(before, operation)) % 10 for before, operation, after in pairs]


def is_right(demonstration: Demonstration, text: str) -> bool:
    problem = read(demonstration.fields["question"])
    return numbers(text) == plain_chain(str(problem), problem.right_key)


def redo_of(demonstration: Demonstration) -> str:
    """The answer of a redo: alone in `refine`, after its verdict in `again`."""
    return demonstration.answer.removeprefix("no ")


def test_demonstrations_are_mixed_as_described(env, shown):
    shares = {name: len(found) / N for name, found in shown.items()}
    expected = {"solver": 0.4, "critic": 0.2, "refine": 0.2, "again": 0.2}
    assert set(shares) == set(expected)
    for name, rate in expected.items():
        assert shares[name] == about(rate, N), name
    assert {name: set(found[0].fields) for name, found in shown.items()} == {
        "solver": {"question"},
        "critic": {"question", "attempt"},
        "refine": {"question", "attempt", "critique"},
        "again": {"question", "attempt"},
    }
    train = {task.question for task in env.tasks(Split.TRAIN)}
    assert {d.fields["question"] for found in shown.values() for d in found} <= train


def assert_guesses(guesses: list[tuple[str, str]], slip: float) -> None:
    """(question, text): readings that slip by one up or down at this rate, and are carried on."""
    found = Counter(off for question, text in guesses for off in slips(question, text))
    total = sum(found.values())
    assert set(found) == {0, 1, 9}
    assert (found[1] + found[9]) / total == about(slip, total)
    assert found[1] / (found[1] + found[9]) == about(0.5, found[1] + found[9])


def test_a_first_attempt_is_a_blind_key_with_slips(shown):
    solver = [(d.fields["question"], d.answer) for d in shown["solver"]]
    again = [(d.fields["question"], d.fields["attempt"]) for d in shown["again"] + shown["refine"]]
    for guesses in (solver, again):
        assert_guesses(guesses, 0.4)
        blind = [numbers(text)[0] == read(question).right_key for question, text in guesses]
        assert share(blind) == about(0.5, len(blind))
        assert all(numbers(text)[0] in read(question).keys for question, text in guesses)


def test_a_critic_tells_right_from_wrong_and_sees_both_equally_often(shown):
    right, other = [], []
    for d in shown["critic"]:
        truth = is_right(d, d.fields["attempt"])
        assert d.answer == ("yes" if truth else "no")
        right.append(truth)
        true_chain = not any(slips(d.fields["question"], d.fields["attempt"]))
        other.append(true_chain and not truth)
    lucky = 0.5 * 0.6**3  # a guess that tries this one of the two keys and never slips
    assert share(right) == about(0.5 + 0.3 * lucky, len(right))
    assert share(other) == about(0.2 + 0.3 * lucky, len(other))


def test_a_redo_slips_more_and_mostly_tries_another_key(shown):
    redos = [d for d in shown["refine"] + shown["again"] if not d.answer.startswith("yes")]
    assert {d.fields["critique"] for d in shown["refine"]} == {"no"}
    assert_guesses([(d.fields["question"], redo_of(d)) for d in redos], 0.45)
    moved = [d.fields["attempt"].split()[0] != redo_of(d).split()[0] for d in redos]
    assert share(moved) == about(0.7 + 0.3 / 2, len(moved))


@pytest.mark.parametrize("says_no", [(0.15, 0.15), (0.8, 0.3)])
def test_a_second_attempt_says_no_at_its_rates_and_otherwise_repeats_the_first(says_no):
    shares = {"share_solver": 0.0, "share_check": 0.0, "share_redo": 0.0}
    env = Lock(LockSettings(**SMALL, **shares, says_no=says_no))
    said_no: dict[bool, list[bool]] = {False: [], True: []}
    for d in env.demonstrations(Random(3), 5000):
        assert d.prompt == "again"
        verdict, _, rest = d.answer.partition(" ")
        said_no[is_right(d, d.fields["attempt"])].append(verdict == "no")
        if verdict == "yes":
            assert rest == d.fields["attempt"]
        else:
            assert verdict == "no"
    for right, rate in ((False, says_no[0]), (True, says_no[1])):
        assert len(said_no[right]) > 300
        assert share(said_no[right]) == about(rate, len(said_no[right]))


@pytest.mark.parametrize("certain", [0.0, 1.0])
def test_the_settings_steer_the_demonstrations(certain):
    """At 0 and at 1 each rate leaves nothing to chance."""
    rates = dict.fromkeys(("slip", "other_key"), certain)
    rates |= {"slip_again": 1 - certain, "says_no": (certain, 1 - certain)}
    env = Lock(LockSettings(**SMALL, keys=3, **rates))
    same_key = set()
    for d in env.demonstrations(Random(0), 600):
        question = d.fields["question"]
        if d.prompt == "solver":
            assert all(bool(off) == certain for off in slips(question, d.answer))
        if d.prompt not in ("again", "refine"):
            continue
        assert all(bool(off) == certain for off in slips(question, d.fields["attempt"]))
        if d.prompt == "again":
            kept = d.answer.startswith("yes")
            assert kept == (is_right(d, d.fields["attempt"]) == bool(certain))
            if kept:
                continue
        assert all(bool(off) != certain for off in slips(question, redo_of(d)))
        same_key.add(redo_of(d).split()[0] == d.fields["attempt"].split()[0])
    assert same_key == ({False} if certain else {False, True})


@pytest.mark.parametrize("name", ["solver", "critic", "refine", "again"])
def test_one_kind_of_demonstration_alone(name):
    named = {"solver": "share_solver", "critic": "share_check", "refine": "share_redo"}
    env = Lock(LockSettings(**SMALL, **{key: float(kind == name) for kind, key in named.items()}))
    assert {d.prompt for d in env.demonstrations(Random(0), 100)} == {name}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 10), st.integers(1, 8))
def test_every_demonstration_is_written_in_the_vocabulary(renderer, seed, keys, steps):
    env = Lock(LockSettings(seed=seed, keys=keys, steps=steps, train=20, dev=1, test=1))
    for d in env.demonstrations(Random(seed), 20):
        answer = renderer.completion_ids(d.answer)
        assert renderer.text(answer) == d.answer
        if d.prompt == "again":
            prompt = prompt_ids(renderer, "solver", question=d.fields["question"])
            attempt = said(renderer, d.fields["attempt"])
            prompt += attempt.ids + renderer.continuation_ids(attempt, instruction())
        else:
            prompt = prompt_ids(renderer, d.prompt, **d.fields)
        text = renderer.tokenizer.decode(list(prompt))
        assert all(value in text for value in d.fields.values())
        assert len(prompt) + len(answer) <= renderer.tokenizer.model_max_length


# ------------------------------------------------------------------ tokens and rendering


def test_there_are_33_tokens_one_for_each_word(renderer):
    words = ["<pad>", ".", "Keys:", "Lock:", "Goal:", "Try:", "Again:", "Check:", "Note:"]
    words += ["yes", "no", *OPERATIONS, *map(str, range(10))]
    for tokenizer in (build_tokenizer(), renderer.tokenizer):
        ids = [tokenizer.encode(word) for word in words]
        assert ids == [[i] for i in range(33)]
        assert len(tokenizer) == 33
        assert tokenizer.decode(tokenizer.encode(" ".join(words))) == " ".join(words)
        assert (tokenizer.pad_token, tokenizer.eos_token) == ("<pad>", ".")
        assert Renderer(tokenizer).stop_ids == (tokenizer.eos_token_id,)
        assert tokenizer.chat_template == build_tokenizer().chat_template


@pytest.mark.parametrize("stop", Stop)
def test_a_conversation_reads_as_documented_id_for_id(renderer, stop):
    """LESSONS 13: the second turn extends the ids of the first, and the full stop stands once."""
    first, second = said(renderer, "3 7 1 0", stop), said(renderer, "yes 3 7 1 0")
    ids = [*prompt_ids(renderer, "solver", question=QUESTION), *first.ids]
    ids += [*renderer.continuation_ids(first, instruction()), *second.ids]
    whole = f"{QUESTION} Try: 3 7 1 0 . Again: Check: yes 3 7 1 0 ."
    assert renderer.tokenizer.decode(ids) == whole
    assert ids == [renderer.tokenizer.get_vocab()[word] for word in whole.split()]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("solver", f"{QUESTION} Try:"),
        ("critic", f"{QUESTION} Try: 8 2 6 5 . Check:"),
        ("feedback", f"{QUESTION} Try: 8 2 6 5 . Check:"),
        ("reflection", f"{QUESTION} Try: 8 2 6 5 . Check:"),
        ("refine", f"{QUESTION} Try: 8 2 6 5 . Again: Check: no"),
        ("repair", f"{QUESTION} Try: 8 2 6 5 . Again: Check: no"),
        ("revision", f"{QUESTION} Note: no Try:"),
        ("given", f"{QUESTION} Note: 8 2 6 5 Try:"),
    ],
)
def test_prompts_read_as_documented(renderer, name, text):
    fields = {"question": QUESTION, "attempt": "8 2 6 5", "critique": "no"}
    prompt = load_prompt(name, [Lock.prompts])
    prompt.check(CONDITIONS[name])
    ids = prompt_ids(renderer, name, **{field: fields[field] for field in prompt.fields})
    assert ids == tuple(renderer.tokenizer.get_vocab()[word] for word in text.split())
    system = "critic" if name in ("critic", "feedback", "reflection") else "solver"
    assert prompt.messages[0] == ("system", system)


def test_a_model_is_expected_to_correct_itself_after_words_that_it_knows(env, renderer):
    """What is put into its mouth before it may think again is written in its vocabulary."""
    assert set(env.marker.split()) <= set(renderer.tokenizer.get_vocab())


def test_every_prompt_has_a_file():
    """None of the built-in ones can be written in this vocabulary."""
    assert set(CONDITIONS) == PROMPTS


@pytest.mark.parametrize("verdict", ["yes", "no"])
def test_a_refinement_is_shown_what_a_second_attempt_was(renderer, verdict):
    """So that what is learned in the one is used in the other."""
    first = said(renderer, "8 2 6 5")
    second = said(renderer, f"{verdict} 3 7 1 0")
    conversation = prompt_ids(renderer, "solver", question=QUESTION) + first.ids
    conversation += renderer.continuation_ids(first, instruction()) + second.ids[:1]
    fields = {"question": QUESTION, "attempt": "8 2 6 5", "critique": verdict}
    assert prompt_ids(renderer, "refine", **fields) == conversation
    if verdict == "no":
        del fields["critique"]
        assert prompt_ids(renderer, "repair", **fields) == conversation


def test_the_docstring_shows_what_is_asked_and_answered(env, renderer):
    found = re.findall(r"^ {4}(\w+) {2,}(Keys:.*?) {3,}(.*) \.$", lock.__doc__ or "", re.MULTILINE)
    assert [name for name, _, _ in found] == ["solver", "critic", "again", "refine"]
    problem = read(QUESTION)
    right, wrong = "3 7 1 0", "8 2 6 5"
    assert numbers(right) == problem.chain(problem.right_key)
    assert numbers(wrong) == problem.chain(problem.wrong_keys[0])
    attempt = said(renderer, wrong)
    again = attempt.ids + renderer.continuation_ids(attempt, instruction())
    fields = {"question": QUESTION, "attempt": wrong}
    prompts = {
        "solver": prompt_ids(renderer, "solver", question=QUESTION),
        "critic": prompt_ids(renderer, "critic", **fields),
        "again": prompt_ids(renderer, "solver", question=QUESTION) + again,
        "refine": prompt_ids(renderer, "refine", **fields, critique="no"),
    }
    answers = {"solver": right, "critic": "no", "again": f"no {right}", "refine": right}
    for name, prompt, answer in found:
        written = prompt.replace("Keys: … Goal: 0", QUESTION)
        assert renderer.tokenizer.decode(list(prompts[name])) == written
        assert answer == answers[name]


# ------------------------------------------------------------------ the model


def test_the_model_comes_from_its_seed_and_is_saved_like_any_other(tmp_path):
    torch.manual_seed(1)
    loaded = load_model("embedded:lock", seed=3)
    torch.manual_seed(2)
    assert digest(loaded.model) == digest(build_model(build_tokenizer(), 3))
    assert digest(loaded.model) != digest(build_model(build_tokenizer(), 4))
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    assert digest(AutoModelForCausalLM.from_pretrained(tmp_path)) == digest(loaded.model)
    again = load_model(str(tmp_path))
    assert digest(again.model) == digest(loaded.model)
    assert again.tokenizer.get_vocab() == loaded.tokenizer.get_vocab()
    parameters = sum(p.numel() for p in again.model.parameters())
    assert parameters == pytest.approx(230_000, rel=0.01)


def test_the_engine_samples_from_it_greedily(renderer):
    engine = TorchEngine(load_model("embedded:lock"), TorchSettings(device="cpu"))
    model = load_model("embedded:lock").model
    prompt = prompt_ids(renderer, "solver", question=QUESTION)
    sampling = Sampling(max_tokens=6, stop_ids=renderer.stop_ids, temperature=0.0)
    [one] = asyncio.run(engine.sample(prompt, 1, sampling))
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(6):
            logits = model(torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
            if ids[-1] in renderer.stop_ids:
                break
    assert one.ids == tuple(ids[len(prompt) :])
