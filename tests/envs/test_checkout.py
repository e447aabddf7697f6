"""The environment `checkout`: shop, splits, grades, demonstrations, rendering."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

import inwit.envs.checkout as checkout
from inwit.envs import Demonstration, Split, env_class
from inwit.envs.checkout import Checkout, CheckoutSettings, build_model, build_tokenizer
from inwit.envs.checkout.shop import GOODS, Shop, line_prices, running_totals
from inwit.roles import CONDITIONS, Renderer, View, load_prompt
from inwit.rows import Completion, Grade, Sees, Stop

SMALL = {"train": 300, "dev": 20, "test": 20}
SPLITS = (Split.TRAIN, Split.DEV, Split.TEST)


@pytest.fixture(scope="module")
def env() -> Checkout:
    return Checkout(CheckoutSettings(**SMALL))


@pytest.fixture(scope="module")
def renderer(env: Checkout) -> Renderer:
    return Renderer(build_tokenizer(env.shop))


def render(renderer: Renderer, name: str, **fields: str) -> str:
    view = View(CONDITIONS[name], {Sees(field): text for field, text in fields.items()})
    ids = renderer.prompt_ids(load_prompt(name, [Checkout.prompts]), view)
    return str(renderer.tokenizer.decode(list(ids)))


# ------------------------------------------------------------------ the shop


@pytest.mark.parametrize("seed", [0, 7, 12345])
def test_a_shop_has_88_items_with_a_true_and_another_outdated_price(seed):
    shop = Shop.from_seed(seed)
    assert len(shop.items) == len(set(shop.items)) == 88
    assert set(shop.items) <= set(GOODS)
    assert set(shop.price) == set(shop.outdated) == set(shop.items)
    assert set(shop.price.values()) == set(shop.outdated.values()) == set(range(1, 10))
    assert all(shop.price[item] != shop.outdated[item] for item in shop.items)


def test_everything_comes_from_the_seed():
    """The items of seed 7 are written down, so that another process must find the same ones."""
    a, b, other = (Checkout(CheckoutSettings(seed=seed, **SMALL)) for seed in (7, 7, 8))
    assert a.shop == b.shop
    assert (a._slips, a._baskets) == (b._slips, b._baskets)
    assert (a.shop.price["cream"], a.shop.outdated["cream"]) == (8, 1)
    assert a.tasks(Split.TEST)[0].question == "cinnamon barley popcorn dill chives tofu"
    assert other.shop.items != a.shop.items
    assert [other.shop.price.get(i) for i in a.shop.items] != list(a.shop.price.values())
    assert other._baskets != a._baskets


def test_old_prices_are_believed_at_rates_within_the_asked_range():
    shop = Shop.from_seed(7)
    rates = shop.slip_rates(7, 0.6, 0.9)
    assert set(rates) == set(shop.items)
    assert 0.6 <= min(rates.values()) < 0.65
    assert 0.85 < max(rates.values()) <= 0.9
    assert rates == shop.slip_rates(7, 0.6, 0.9) != shop.slip_rates(8, 0.6, 0.9)


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=10))
def test_line_prices_undo_running_totals(prices):
    assert line_prices(running_totals(prices)) == prices


# ------------------------------------------------------------------ splits


@pytest.mark.parametrize(
    "asked",
    [
        {"train": 1000, "dev": 700, "test": 800, "basket": 2},  # most of the 3828 pairs
        {"train": 60, "dev": 18, "test": 10, "basket": 1},  # every single item
        {"train": 5000, "dev": 512, "test": 1024, "basket": 6},
    ],
    ids=["pairs", "all there are", "six"],
)
def test_splits_have_the_asked_sizes_and_share_no_set_of_items(asked):
    env = Checkout(CheckoutSettings(**asked))
    seen: list[frozenset[str]] = []
    for split in SPLITS:
        tasks = env.tasks(split)
        assert len(tasks) == asked[split]
        baskets = [task.question.split() for task in tasks]
        assert all(len(b) == len(set(b)) == asked["basket"] for b in baskets)
        seen += map(frozenset, baskets)
    assert len(set(seen)) == len(seen) == sum(asked[s] for s in SPLITS)


def test_held_out_sets_do_not_depend_on_how_much_there_is_to_train_on(env):
    """Figures for runs of different length are about the same questions."""
    more = Checkout(CheckoutSettings(**SMALL | {"train": 900}))
    assert more.tasks(Split.DEV) == env.tasks(Split.DEV)
    assert more.tasks(Split.TEST) == env.tasks(Split.TEST)
    assert more.tasks(Split.TRAIN)[:300] == env.tasks(Split.TRAIN)


def test_a_task_s_reference_is_the_running_total_of_the_true_prices(env):
    ids: set[str] = set()
    for split in SPLITS:
        for task in env.tasks(split):
            ids.add(task.id)
            total, lines = 0, []
            for item in task.question.split():
                total += env.shop.price[item]
                lines.append(str(total))
            assert task.reference == " ".join(lines)
    assert len(ids) == 340


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"basket": 1, "train": 20_000}, "only 88 of 1 items"),
        ({"basket": 2, "train": 3000, "dev": 500, "test": 329}, "only 3828 of 2 items"),
        ({"basket": 11}, "basket"),
        ({"basket": 0}, "basket"),
        ({"train": 0}, "train"),
        ({"share_solver": 0.7, "share_revision": 0.4}, "over 1"),
        ({"share_again": 0.4}, "over 1"),
        ({"share_again": -0.1}, "share_again"),
        ({"mend": 1.1}, "mend"),
        ({"spoil": -0.1}, "spoil"),
        ({"slip": (0.9, 0.6)}, "rising order"),
        ({"slip": (0.5, 1.1)}, "rising order"),
        ({"mark_true": 1.2}, "mark_true"),
        ({"sizes": 3}, "sizes"),
    ],
)
def test_senseless_settings_are_refused(wrong, message):
    with pytest.raises(ValidationError, match=message):
        CheckoutSettings(**wrong)


# ------------------------------------------------------------------ grades


def test_only_all_six_totals_are_right(env):
    task = env.tasks(Split.DEV)[3]
    right = task.reference.split()
    off = str(int(right[2]) + 1)
    wrong = {
        "one line off": [*right[:2], off, *right[3:]],
        "last line off": [*right[:5], str(int(right[5]) - 1)],
        "truncated": right[:5],
        "one more": [*right, right[5]],
        "a word more": [*right, "ok"],
        "a word before": ["Work:", *right],
        "twice": right + right,
        "rotated": [*right[1:], right[0]],
        "prices, not totals": [str(env.shop.price[i]) for i in task.question.split()],
        "glued": ["".join(right)],
        "commas": [f"{n}," for n in right],
        "zero-padded": [f"0{n}" for n in right],
        "words": task.question.split(),
        "nothing": [],
    }
    for answer in (task.reference, f"  {task.reference} ", "\n".join(right)):
        result = env.grade(task, answer)
        assert (result.grade, result.reward) == (Grade.RIGHT, 1.0)
    for case, words in wrong.items():
        result = env.grade(task, " ".join(words))
        assert (result.grade, result.reward) == (Grade.WRONG, 0.0), case


def test_an_attempt_is_one_turn_and_its_text_is_graded(env, renderer):
    task = env.tasks(Split.DEV)[0]
    demonstration = renderer.completion_ids(task.reference)
    assert renderer.tokenizer.decode(list(demonstration)) == f"{task.reference} ."
    for ids, grade in ((demonstration, Grade.RIGHT), (demonstration[:5], Grade.WRONG)):
        step = asyncio.run(env.open(task).step(renderer.text(ids)))
        assert step.result is not None
        assert step.result.grade is grade
    assert env.max_turns == 1
    assert env_class("checkout") is Checkout


@pytest.mark.parametrize(
    ("note", "size"),
    [("ok ok ok ok ok ok", 0), ("4 7 6 1 ok 2", 5), ("ok 7 ok", 1), ("", 0), ("7 7 milk", 3)],
)
def test_a_critique_s_size_is_its_marks_and_ok_is_free(env, note, size):
    assert env.critique_size(note, tokens=40) == size


# ------------------------------------------------------------------ demonstrations

N = 4000


@pytest.fixture(scope="module")
def shown(env: Checkout) -> dict[str, list[Demonstration]]:
    by_prompt: dict[str, list[Demonstration]] = {"solver": [], "revision": [], "critic": []}
    for demonstration in env.demonstrations(Random(1), N):
        by_prompt[demonstration.prompt].append(demonstration)
    return by_prompt


def share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


def lines(demonstration: Demonstration, field: str) -> list[tuple[str, int]]:
    """(item, price taken) of an answer or of the attempt that was criticised."""
    text = demonstration.answer if field == "answer" else demonstration.fields[field]
    items = demonstration.fields["question"].split()
    return list(zip(items, line_prices([int(n) for n in text.split()]), strict=True))


def test_demonstrations_are_mixed_as_described(shown):
    shares = {name: len(found) / N for name, found in shown.items()}
    assert shares == pytest.approx({"solver": 0.30, "revision": 0.35, "critic": 0.35}, abs=0.03)
    asked = {name: set(found[0].fields) for name, found in shown.items()}
    assert asked == {
        "solver": {"question"},
        "revision": {"question", "critique"},
        "critic": {"question", "attempt"},
    }


def test_demonstrations_come_from_the_rng_and_from_training_baskets(env, shown):
    again = env.demonstrations(Random(1), N)
    assert {name: [d for d in again if d.prompt == name] for name in shown} == shown
    assert env.demonstrations(Random(2), 50) != again[:50]
    train = {task.question for task in env.tasks(Split.TRAIN)}
    assert {d.fields["question"] for d in again} <= train


def test_a_plain_answer_half_believes_the_outdated_prices(env, shown):
    taken: dict[str, list[bool]] = {item: [] for item in env.shop.items}
    for demonstration in shown["solver"]:
        for item, price in lines(demonstration, "answer"):
            assert price in (env.shop.price[item], env.shop.outdated[item])
            taken[item].append(price == env.shop.outdated[item])
    believed = sum(map(sum, taken.values())) / sum(map(len, taken.values()))
    assert believed == pytest.approx(0.75, abs=0.03)  # the middle of 0.6 and 0.9
    often = [item for item, hits in taken.items() if len(hits) >= 30]
    assert len(often) > 60
    for item in often:
        sigma = (env._slips[item] * (1 - env._slips[item]) / len(taken[item])) ** 0.5
        assert share(taken[item]) == pytest.approx(env._slips[item], abs=4.5 * sigma)


def test_a_revision_follows_its_note_and_the_note_is_right_four_times_in_five(env, shown):
    right, believed, named = [], [], Counter()
    for demonstration in shown["revision"]:
        note = demonstration.fields["critique"].split()
        named[sum(mark != "ok" for mark in note)] += 1
        for mark, (item, price) in zip(note, lines(demonstration, "answer"), strict=True):
            if mark == "ok":
                believed.append(price == env.shop.outdated[item])
                assert price in (env.shop.price[item], env.shop.outdated[item])
            else:
                assert price == int(mark)
                assert price in (env.shop.price[item], env.shop.outdated[item])
                right.append(price == env.shop.price[item])
    assert share(right) == pytest.approx(0.80, abs=0.025)
    assert share(believed) == pytest.approx(0.75, abs=0.03)
    assert set(named) == set(range(7))
    total = len(shown["revision"])
    assert all(count / total == pytest.approx(1 / 7, abs=0.04) for count in named.values())


def test_a_critic_marks_wrong_lines_mostly_and_names_mostly_the_true_price(env, shown):
    marked: dict[bool, list[bool]] = {True: [], False: []}
    true: list[bool] = []
    for demonstration in shown["critic"]:
        note = demonstration.answer.split()
        for mark, (item, price) in zip(note, lines(demonstration, "attempt"), strict=True):
            marked[price == env.shop.price[item]].append(mark != "ok")
            if mark != "ok":
                assert int(mark) in (env.shop.price[item], env.shop.outdated[item])
                true.append(int(mark) == env.shop.price[item])
    assert share(marked[False]) == pytest.approx(0.80, abs=0.025)
    assert share(marked[True]) == pytest.approx(0.20, abs=0.03)
    assert share(true) == pytest.approx(0.85, abs=0.025)


@pytest.mark.parametrize("certain", [0.0, 1.0])
def test_the_settings_steer_the_demonstrations(certain):
    """At 0 and at 1 each rate leaves nothing to chance."""
    rates = dict.fromkeys(("note_right", "mark_wrong", "mark_right", "mark_true"), certain)
    env = Checkout(CheckoutSettings(**SMALL, **rates, slip=(certain, certain)))
    prices = env.shop.price if certain else env.shop.outdated
    for d in env.demonstrations(Random(0), 300):
        if d.prompt == "revision":
            items = d.fields["question"].split()
            for item, mark in zip(items, d.fields["critique"].split(), strict=True):
                assert mark in ("ok", str(prices[item]))
        elif d.prompt == "solver":
            recalled = env.shop.outdated if certain else env.shop.price
            assert all(price == recalled[item] for item, price in lines(d, "answer"))
        else:
            items = d.fields["question"].split()
            expected = [str(env.shop.price[item]) if certain else "ok" for item in items]
            assert d.answer.split() == expected


def test_a_second_answer_mostly_repeats_the_first(env):
    """Wrong lines are now and then mended and right ones spoilt, each line for itself."""
    alone = {"share_solver": 0.0, "share_revision": 0.0, "share_again": 1.0}
    taken: dict[bool, list[bool]] = {True: [], False: []}
    for d in Checkout(CheckoutSettings(**SMALL, **alone)).demonstrations(Random(4), 2000):
        assert d.prompt == "again" and set(d.fields) == {"question", "attempt"}
        for (item, first), (_, second) in zip(lines(d, "attempt"), lines(d, "answer"), strict=True):
            assert {first, second} <= {env.shop.price[item], env.shop.outdated[item]}
            taken[first == env.shop.price[item]].append(first != second)
    assert share(taken[False]) == pytest.approx(0.35, abs=0.025)  # mended
    assert share(taken[True]) == pytest.approx(0.12, abs=0.025)  # spoilt


@pytest.mark.parametrize(("mend", "spoil"), [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_second_answers_are_as_steered(mend, spoil):
    alone = {"share_solver": 0.0, "share_revision": 0.0, "share_again": 1.0}
    env = Checkout(CheckoutSettings(**SMALL, **alone, mend=mend, spoil=spoil))
    for d in env.demonstrations(Random(0), 100):
        for (item, first), (_, second) in zip(lines(d, "attempt"), lines(d, "answer"), strict=True):
            changes = spoil if first == env.shop.price[item] else mend
            assert (first != second) == bool(changes)


def test_without_second_answers_demonstrations_are_what_they_were(env, shown):
    """Written down before there were second answers: runs of then are not changed by them."""
    assert "again" not in shown and env.settings.share_again == 0.0
    lines = [
        f"{d.prompt}|{sorted(d.fields.items())}|{d.answer}"
        for d in env.demonstrations(Random(1), 500)
    ]
    found = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert found[:16] == "5933840492233762"


def test_the_wrong_answer_believes_every_old_price(env):
    for task in env.tasks(Split.TRAIN)[:50]:
        wrong = env.wrong_answer(task)
        items = task.question.split()
        old = [env.shop.outdated[item] for item in items]
        assert line_prices([int(n) for n in wrong.split()]) == old
        assert env.grade(task, wrong).grade is Grade.WRONG
        assert env.answer_of(task, f" {wrong}  ") == wrong


@pytest.mark.parametrize("name", ["solver", "revision", "again", "critic"])
def test_one_kind_of_demonstration_alone(name):
    shares = {f"share_{n}": float(n == name) for n in ("solver", "revision", "again")}
    env = Checkout(CheckoutSettings(**SMALL, **shares))
    assert {d.prompt for d in env.demonstrations(Random(0), 100)} == {name}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 10))
def test_every_demonstration_is_written_in_the_vocabulary(seed, basket):
    shares = {"share_revision": 0.2, "share_again": 0.3}
    env = Checkout(CheckoutSettings(seed=seed, basket=basket, train=20, dev=1, test=1, **shares))
    renderer = Renderer(build_tokenizer(env.shop))
    for d in env.demonstrations(Random(seed), 10):
        if d.prompt == "again":
            first = renderer.completion_ids(d.fields["attempt"])
            prompt = render(renderer, "solver", question=d.fields["question"])
            prompt += " " + renderer.tokenizer.decode(list(first)) + " Again: Work:"
        else:
            prompt = render(renderer, d.prompt, **d.fields)
        answer = renderer.completion_ids(d.answer)
        assert renderer.text(answer) == d.answer
        assert all(value in prompt for value in d.fields.values())
        assert len(prompt.split()) + len(answer) <= renderer.tokenizer.model_max_length


# ------------------------------------------------------------------ tokens and rendering


def test_there_are_196_tokens_one_for_each_word(env):
    tokenizer = build_tokenizer(env.shop)
    words = ["<pad>", ".", "Work:", "Check:", "Note:", "Q:", "Again:", "ok"]
    words += [*env.shop.items, *map(str, range(100))]
    assert len(words) == len(set(words)) == len(tokenizer) == 196
    ids = [tokenizer.encode(word) for word in words]
    assert sorted(ids) == [[i] for i in range(196)]
    assert tokenizer.decode(tokenizer.encode(" ".join(words))) == " ".join(words)
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<pad>", ".")
    assert Renderer(tokenizer).stop_ids == (tokenizer.eos_token_id,)


def test_a_model_is_expected_to_correct_itself_after_a_word_that_it_knows(env, renderer):
    """What is put into its mouth before it may think again is a word of its own."""
    assert env.marker in renderer.tokenizer.get_vocab()
    [(_, instruction)] = load_prompt("again", [Checkout.prompts]).messages
    assert env.marker == instruction == "Again:"


def documented() -> dict[str, tuple[str, str]]:
    """Role -> (prompt, answer) as the package's docstring prints them, the basket written out."""
    found = re.findall(r"^ {4}(\w+) {2,}(\S.*?:) {2,}(\S.*)$", checkout.__doc__ or "", re.MULTILINE)
    basket = re.search(r"Q: (.*) Work:", found[0][1])[1]
    short = f"{basket.split()[0]} … {basket.split()[-1]}"
    return {role: (prompt.replace(short, basket), answer) for role, prompt, answer in found}


def test_prompts_and_answers_read_as_in_the_docstring():
    examples = documented()
    assert set(examples) == {"solver", "critic", "revision"}
    basket = re.search(r"Q: (.*) Work:", examples["solver"][0])[1]
    words = tuple(dict.fromkeys((*basket.split(), *GOODS)))[:88]
    prices = dict.fromkeys(words, 1)
    renderer = Renderer(build_tokenizer(Shop(words, prices, prices)))
    attempt = examples["solver"][1].removesuffix(" .")
    critique = examples["critic"][1].removesuffix(" .")
    rendered = {
        "solver": render(renderer, "solver", question=basket),
        "critic": render(renderer, "critic", question=basket, attempt=attempt),
        "revision": render(renderer, "revision", question=basket, critique=critique),
    }
    assert rendered == {role: prompt for role, (prompt, _) in examples.items()}
    for _, answer in examples.values():
        ids = renderer.completion_ids(answer.removesuffix(" ."))
        assert renderer.tokenizer.decode(list(ids)) == answer
    # and the story that it tells is consistent: the revision takes the prices that were marked
    marked = critique.split()
    taken = line_prices([int(n) for n in examples["revision"][1].split()[:-1]])
    assert [str(p) for p, m in zip(taken, marked, strict=True) if m != "ok"] == [
        m for m in marked if m != "ok"
    ]


@pytest.mark.parametrize("stop", Stop)
def test_a_second_turn_goes_on_from_the_sampled_ids(renderer, stop):
    """LESSONS 13: a second turn extends the ids of the first, and the full stop stands once."""
    ids = renderer.completion_ids("9 15 21")
    ids = ids if stop is Stop.TOKEN else ids[:-1]
    tail = renderer.continuation_ids(Completion(ids, (-1.0,) * len(ids), stop), "Again:")
    assert renderer.tokenizer.decode([*ids, *tail]) == "9 15 21 . Again: Work:"


def test_a_full_stop_in_a_text_ends_no_turn(renderer):
    """LESSONS 14: `.` is the end of a turn, so no field may bring one."""
    assert render(renderer, "revision", question="cream milk", critique="4 . Q: 5.") == (
        "Note: 4 Q: 5 . Q: cream milk Work:"
    )


def test_a_saved_tokenizer_loads_as_the_same(tmp_path, env, renderer):
    tokenizer = renderer.tokenizer
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    assert (loaded.pad_token_id, loaded.eos_token_id) == (0, 1)
    again = Renderer(loaded)
    assert again.stop_ids == renderer.stop_ids
    for d in env.demonstrations(Random(5), 60):
        view = View(CONDITIONS[d.prompt], {Sees(f): text for f, text in d.fields.items()})
        prompt = load_prompt(d.prompt, [env.prompts])
        assert again.prompt_ids(prompt, view) == renderer.prompt_ids(prompt, view)
        ids = renderer.completion_ids(d.answer)
        assert again.completion_ids(d.answer) == ids
        assert again.text(ids) == renderer.text(ids) == d.answer


def test_the_model_comes_from_its_seed_and_is_saved_like_any_other(tmp_path, renderer):
    torch.manual_seed(1)
    model = build_model(renderer.tokenizer, seed=3)
    torch.manual_seed(2)
    same, other = (build_model(renderer.tokenizer, seed=seed) for seed in (3, 4))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(260_000, rel=0.01)
    for (name, ours), (_, theirs) in pairs(model, same) + pairs(model, loaded):
        assert torch.equal(ours, theirs), name
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)


def pairs(a: torch.nn.Module, b: torch.nn.Module) -> list:
    return list(zip(a.named_parameters(), b.named_parameters(), strict=True))


def test_totals_thought_better_of_do_not_count():
    """What follows the last `Again:` of a text is its answer."""
    env = Checkout(CheckoutSettings(train=4, dev=4, test=4))
    task = env.tasks(Split.DEV)[0]
    wrong = env.wrong_answer(task)
    assert env.grade(task, wrong).grade is Grade.WRONG
    assert env.grade(task, f"{wrong} Again: {task.reference}").grade is Grade.RIGHT
    assert env.grade(task, f"{task.reference} Again: {wrong}").grade is Grade.WRONG
    assert env.answer_of(task, f"1 Again:  {task.reference} ") == task.reference
