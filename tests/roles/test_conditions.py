"""Information conditions: a field that a prompt may not show raises where the prompt is built."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inwit.envs import Env, Split
from inwit.envs.checkout import Checkout, CheckoutSettings, build_tokenizer
from inwit.envs.checkout.shop import Shop
from inwit.envs.lock import Lock, LockSettings
from inwit.envs.lock import build_tokenizer as build_lock_tokenizer
from inwit.errors import ForbiddenField, InwitError
from inwit.roles import CONDITIONS, Prompt, Renderer, View, load_prompt
from inwit.roles.prompt import parse_prompt
from inwit.rows import Completion, Condition, Sees, Stop

from .families import tokenizer_of

ALL = frozenset(Sees)
SECRET = "§"  # no text below holds one but the fields' values, each of which begins with its own


def secret(field: Sees, rest: str = "") -> str:
    return f"{SECRET}{field}{SECRET}{rest}"


def text_of(renderer: Renderer, prompt: Prompt, view: View) -> str:
    """What the policy is shown: of `again` what is added to its conversation, else a beginning."""
    if prompt.name == "again":
        silent = Completion((), (), Stop.LENGTH)
        ids = renderer.continuation_ids(silent, prompt.instruction(view))
    else:
        ids = renderer.prompt_ids(prompt, view)
    return str(renderer.tokenizer.decode(list(ids), skip_special_tokens=False))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(tokenizer_of("llama3"))


# ------------------------------------------------------------------ the view


@pytest.mark.parametrize("field", Sees)
@pytest.mark.parametrize("extra", [frozenset(), frozenset(Sees)])
def test_a_view_refuses_what_its_condition_forbids(field, extra):
    """LESSONS 5: the condition holds where the prompt is built, whatever its text asks for."""
    condition = extra - {field}
    view = View(condition, {f: secret(f) for f in Sees})
    with pytest.raises(ForbiddenField, match=f"asks for '{field}'") as caught:
        view[field]
    assert "condition" in caught.value.fix
    assert secret(field) not in str(caught.value)
    assert View(condition | {field}, {f: secret(f) for f in Sees})[field] == secret(field)


def test_every_way_of_reading_a_view_minds_the_condition():
    """LESSONS 5: neither `get`, nor `in`, nor iteration gives away a forbidden field."""
    view = View(frozenset({Sees.QUESTION}), {f: secret(f) for f in Sees})
    for read in (view.get, view.__contains__):
        with pytest.raises(ForbiddenField):
            read("reference")
    assert list(view) == ["question"]
    assert dict(view.items()) == {"question": secret(Sees.QUESTION)}
    assert len(view) == 1
    assert SECRET + "reference" not in repr(view) + str(view)


def test_a_view_keeps_its_fields_when_the_caller_s_dictionary_changes():
    fields = {Sees.QUESTION: "before"}
    view = View(frozenset({Sees.QUESTION}), fields)
    fields[Sees.QUESTION] = "after"
    assert view["question"] == "before"


# ------------------------------------------------------------------ built prompts

conditions = st.frozensets(st.sampled_from(list(Sees)))
plain = st.text(st.characters(blacklist_characters=SECRET + "{}@\\", blacklist_categories=["Cs"]))
tricky = st.sampled_from(
    [
        *("{" + f + "}" for f in Sees),
        *("{{" + f + "}}" for f in Sees),
        *("{{{" + f + "}}}" for f in Sees),
        *("inwit-mark-" + f + "-inwit" for f in Sees),
        *("\\boxed{" + f + "}" for f in Sees),
        *("{", "}", "{{", "}}", "{ question }", "{Reference}", "{reference.x}", "{0}", "%s"),
        *("<|eot_id|>", "<|start_header_id|>", "{{ messages[0] }}", "{% if true %}", "\\1"),
    ]
)
texts = st.lists(st.one_of(plain, tricky), max_size=8).map("".join)
values = st.fixed_dictionaries({f: texts.map(lambda t, f=f: secret(f, t)) for f in Sees})


def as_file(bodies: Iterable[str]) -> str:
    speakers = ("system", "user", "assistant")
    return "\n".join(f"@@ {s}\n{b}" for s, b in zip(speakers, bodies, strict=True))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.tuples(texts, texts, texts), conditions, values)
@example(("", "inwit-mark-reference-inwit", ""), frozenset({Sees.QUESTION}), {})
@example(("", "{question}{{reference}}", ""), frozenset({Sees.QUESTION}), {})
def test_no_forbidden_value_is_ever_shown(renderer, bodies, condition, fields):
    """LESSONS 6: whatever a prompt's text says, no forbidden string occurs in what is rendered.

    It is refused instead, and so it is already where prompts are loaded (LESSONS 5).
    """
    fields = {f: secret(f) for f in Sees} | fields
    try:
        prompt = parse_prompt("critic", as_file(bodies), "critic.txt")
    except InwitError:  # an unknown field or a stray brace: nothing to render
        return
    forbidden = ALL - condition
    try:
        shown = text_of(renderer, prompt, View(condition, fields))
    except ForbiddenField:
        assert any(f in "".join(bodies) for f in forbidden)
        return
    for field in forbidden:
        assert fields[field] not in shown
        assert secret(field) not in shown
    assert not prompt.fields & forbidden
    prompt.check(condition)
    for field in prompt.fields:
        assert secret(field) in shown


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from([None, *Sees]), plain), min_size=1, max_size=6),
    conditions,
    values,
)
def test_a_forbidden_field_is_refused_when_loading_and_when_rendering(
    renderer, parts, condition, fields
):
    """LESSONS 5: `check` and `prompt_ids` agree on which prompts a condition allows."""
    body = "".join(("{" + f + "}" if f else "") + literal for f, literal in parts)
    prompt = parse_prompt("critic", f"@@ user\n{body}", "critic.txt")
    asked = {f for f, _ in parts if f}
    assert prompt.fields == asked
    if asked <= condition:
        prompt.check(condition)
        shown = text_of(renderer, prompt, View(condition, fields))
        assert all(secret(f) in shown for f in asked)
        assert not any(secret(f) in shown for f in ALL - asked)
    else:
        with pytest.raises(InwitError) as refused:
            prompt.check(condition)
        assert all(f in refused.value.what for f in asked - condition)
        with pytest.raises(ForbiddenField):
            renderer.prompt_ids(prompt, View(condition, fields))


def test_a_rendered_prompt_is_not_served_to_a_narrower_condition(renderer):
    """LESSONS 5: the template is rendered once per prompt, the condition is asked every time."""
    prompt = parse_prompt("critic", "@@ user\n{reference}", "critic.txt")
    fields = {Sees.REFERENCE: secret(Sees.REFERENCE)}
    assert secret(Sees.REFERENCE) in text_of(renderer, prompt, View(ALL, fields))
    with pytest.raises(ForbiddenField):
        renderer.prompt_ids(prompt, View(ALL - {Sees.REFERENCE}, fields))


def test_what_a_policy_writes_is_not_read_as_a_field(renderer):
    """LESSONS 6: an attempt that spells `{reference}` shows these letters and nothing else."""
    prompt = parse_prompt("critic", "@@ user\n{attempt}", "critic.txt")
    attempt = "{reference} {{reference}} inwit-mark-reference-inwit"
    view = View(ALL, {Sees.ATTEMPT: attempt, Sees.REFERENCE: secret(Sees.REFERENCE)})
    shown = text_of(renderer, prompt, view)
    assert attempt in shown
    assert SECRET not in shown


# ------------------------------------------------------------------ who must not know

UNTOLD: dict[str, Condition] = {
    "again": frozenset({Sees.OUTCOME, Sees.FEEDBACK, Sees.REFERENCE, Sees.CRITIQUE}),
    "feedback": frozenset({Sees.OUTCOME, Sees.FEEDBACK, Sees.REFERENCE, Sees.CRITIQUE}),
    "refine": frozenset({Sees.OUTCOME, Sees.FEEDBACK, Sees.REFERENCE}),
    "given": frozenset({Sees.OUTCOME, Sees.FEEDBACK, Sees.REFERENCE, Sees.CRITIQUE}),
}
"""Prompts of self-correction that is to be the model's own, and what would tell it the outcome."""

subsets = st.frozensets(st.sampled_from(list(Sees)))
orders = st.permutations(list(Sees))
whatever = st.dictionaries(st.sampled_from(list(Sees)), st.one_of(plain, tricky))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(UNTOLD)), subsets, orders, st.tuples(plain, plain), whatever)
@example("again", frozenset({Sees.OUTCOME}), list(Sees), ("", ""), {})
@example("feedback", frozenset({Sees.REFERENCE}), list(Sees), ("", ""), {Sees.REFERENCE: ""})
@example("given", frozenset({Sees.CRITIQUE}), list(Sees), ("", ""), {})
@example("refine", frozenset({Sees.CRITIQUE, Sees.FEEDBACK}), list(Sees), ("", ""), {})
def test_who_is_to_find_out_alone_is_told_nothing(renderer, name, asked, order, around, fields):
    """LESSONS 5: a prompt that asks for the outcome is refused, whatever there would be to tell.

    When it is loaded, when it is filled in as text, and when it becomes ids; also where the field
    is empty, or not there at all.
    """
    body = around[0] + " ".join("{" + f + "}" for f in order if f in asked) + around[1]
    prompt = parse_prompt(name, f"@@ user\n{body}", f"{name}.txt")
    condition = CONDITIONS[name]
    view = View(condition, dict.fromkeys(condition, "shown") | fields)
    assert prompt.fields == asked
    told = asked & UNTOLD[name]
    for field in UNTOLD[name]:
        with pytest.raises(ForbiddenField):
            view[field]
    if not told:
        prompt.check(condition)
        view = View(condition, {f: secret(f) for f in Sees})
        for shown in (text_of(renderer, prompt, view), prompt.instruction(view)):
            assert {f for f in Sees if secret(f) in shown} == asked
        return
    with pytest.raises(InwitError) as refused:
        prompt.check(condition)
    assert f"'{name}' shows {', '.join(sorted(told))}, which" in refused.value.what
    for show in (prompt.filled, prompt.instruction, lambda v: renderer.prompt_ids(prompt, v)):
        with pytest.raises(ForbiddenField):
            show(view)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(UNTOLD)), values, values)
def test_what_they_are_shown_is_the_same_whatever_the_outcome(renderer, name, one, other):
    """LESSONS 5, 6: of our own prompts, too: what must not be told changes not one character."""
    other = {f: other[f] if f in UNTOLD[name] else one[f] for f in Sees}
    for folders in SHIPPED.values():
        prompt = load_prompt(name, folders)
        shown = [text_of(renderer, prompt, View(CONDITIONS[name], f)) for f in (one, other)]
        assert shown[0] == shown[1]


# ------------------------------------------------------------------ the prompts we ship

SHIPPED = {"built-in": [], "checkout": [Checkout.prompts], "lock": [Lock.prompts]}
WIDEST: dict[str, Condition] = {
    "solver": frozenset({Sees.QUESTION}),
    "again": frozenset({Sees.QUESTION, Sees.ATTEMPT}),
    "revision": frozenset({Sees.QUESTION, Sees.CRITIQUE}),
    "refine": frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.CRITIQUE}),
    "repair": frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.OUTCOME}),
    "given": frozenset({Sees.QUESTION, Sees.ATTEMPT}),
    "critic": frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.OUTCOME}),
    "feedback": frozenset({Sees.QUESTION, Sees.ATTEMPT}),
    "reflection": frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.OUTCOME, Sees.FEEDBACK}),
}
SHORTER = {("checkout", "refine"): {Sees.ATTEMPT}}
"""What an environment's own prompt leaves out though others of that name need it."""


def test_the_conditions_are_what_the_methods_promise():
    """LESSONS 5: by default nobody sees the reference, and no revision sees the attempt."""
    assert CONDITIONS == WIDEST
    assert not any(Sees.REFERENCE in condition for condition in CONDITIONS.values())
    assert Sees.ATTEMPT not in CONDITIONS["revision"]
    assert not any(CONDITIONS[name] & untold for name, untold in UNTOLD.items())


@pytest.mark.parametrize("name", WIDEST)
@pytest.mark.parametrize("where", SHIPPED)
def test_shipped_prompts_show_no_more_than_their_condition(renderer, where, name):
    """LESSONS 6: under its default condition a shipped prompt shows no other field's value."""
    prompt = load_prompt(name, SHIPPED[where])
    prompt.check(CONDITIONS[name])
    shown = text_of(renderer, prompt, View(CONDITIONS[name], {f: secret(f) for f in Sees}))
    seen = {f for f in Sees if secret(f) in shown}
    assert seen <= WIDEST[name]
    if name == "again":  # question and attempt are in the conversation already
        assert not seen
        return
    needed = {Sees.QUESTION, Sees.ATTEMPT, Sees.CRITIQUE} - SHORTER.get((where, name), set())
    assert seen & {Sees.QUESTION, Sees.ATTEMPT, Sees.CRITIQUE} == WIDEST[name] & needed


def checkout() -> tuple[Env, Renderer]:
    env = Checkout(CheckoutSettings(train=300, dev=1, test=1))
    return env, Renderer(build_tokenizer(Shop.from_seed(env.settings.seed)))


def lock() -> tuple[Env, Renderer]:
    return Lock(LockSettings(train=300, dev=1, test=1)), Renderer(build_lock_tokenizer())


@pytest.mark.parametrize(("build", "n"), [(checkout, 2000), (lock, 4000)])
def test_no_gold_answer_occurs_in_a_prompt(build, n):
    """LESSONS 6: the gold string of a task is in no prompt whose condition forbids it."""
    env, renderer = build()
    prompts = {name: load_prompt(name, [env.prompts]) for name in WIDEST}
    wrong = [d for d in env.demonstrations(Random(0), n) if d.prompt == "critic"]
    asked = 0
    for task in env.tasks(Split.TRAIN):
        attempts = [d for d in wrong if d.fields["question"] == task.question]
        for attempt in attempts or wrong[:1]:
            fields = {
                Sees.QUESTION: task.question,
                Sees.ATTEMPT: attempt.fields["attempt"],
                Sees.CRITIQUE: attempt.answer,
                Sees.FEEDBACK: task.reference,
                Sees.REFERENCE: task.reference,
            }
            if fields[Sees.ATTEMPT] == task.reference:
                continue
            asked += 1
            for name, prompt in prompts.items():
                shown = text_of(renderer, prompt, View(WIDEST[name], fields))
                assert task.reference not in shown
    assert asked > 300
