"""Rows and what they are made of: refusals, contexts, and attempts laid end to end."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.learner import MicroBatch
from inwit.rows import (
    Attempt,
    Behaviour,
    Completion,
    Critique,
    Episode,
    Grade,
    GroupKey,
    Ids,
    Role,
    Sees,
    Stop,
    Turn,
    attempt_tokens,
    context_id,
)
from tests.engines.models import model_of
from tests.helpers import make_row

PAD, EOS = 0, 2

relaxed = settings(deadline=None, max_examples=50)
ids = st.lists(st.integers(0, 50_000), max_size=6).map(tuple)
some_ids = st.lists(st.integers(0, 50_000), min_size=1, max_size=6).map(tuple)


def turn(prompt: Ids, completion: Ids, stop: Stop = Stop.TOKEN, **more: Any) -> Turn:
    """A solver's turn; the log-prob of the k-th sampled token is -(k + 1) / 8."""
    logprobs = tuple(-(k + 1) / 8 for k in range(len(completion)))
    sees = frozenset({Sees.QUESTION})
    return Turn(Role.SOLVER, prompt, Completion(completion, logprobs, stop), sees, **more)


def attempt(*turns: Turn, index: int = 0, grade: Grade = Grade.WRONG) -> Attempt:
    return Attempt(index, turns, grade, reward=float(grade is Grade.RIGHT), text="")


# Rows


@pytest.mark.parametrize("name", ["mask", "logprobs", "advantages", "weights"])
@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_row_refuses_a_field_of_another_length_than_its_completion(
    name: str, length: int
) -> None:
    """LESSONS 11: a mask, or any per-token field, has the length of the completion."""
    values: Any = (True,) * length if name == "mask" else (0.5,) * length
    with pytest.raises(ValueError, match=f"{name} has {length} entries for 3 tokens"):
        dataclasses.replace(make_row((7, 8, 9)), **{name: values})


@pytest.mark.parametrize("name", ["mask", "logprobs", "advantages"])
def test_a_row_refuses_an_empty_field_beside_tokens(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has 0 entries"):
        dataclasses.replace(make_row((7, 8, 9)), **{name: ()})  # type: ignore[arg-type]


def test_a_row_refuses_an_empty_prompt() -> None:
    with pytest.raises(ValueError, match="prompt"):
        make_row(prompt=())


def test_a_row_may_have_an_empty_completion() -> None:
    row = make_row(())
    assert (row.trained_tokens, row.length, row.signal, row.weights) == (0, 2, False, ())


def test_weights_are_1_where_none_are_given() -> None:
    assert make_row((7, 8, 9)).weights == (1.0, 1.0, 1.0)
    assert make_row((7, 8, 9), weights=(0.5, 1.0, 2.0)).weights == (0.5, 1.0, 2.0)


def test_rows_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_row().advantages = (0.0, 0.0, 0.0)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("mask", "advantages", "trained", "signal"),
    [
        ((True, True, True), (1.0, 0.0, 0.0), 3, True),
        ((True, False, True), (0.0, 5.0, 0.0), 2, False),
        ((True, False, True), (0.0, 5.0, -1.0), 2, True),
        ((False, False, False), (1.0, 1.0, 1.0), 0, False),
        ((True, True, True), (0.0, -0.0, 0.0), 3, False),
    ],
)
def test_trained_tokens_and_signal(
    mask: tuple[bool, ...], advantages: tuple[float, ...], trained: int, signal: bool
) -> None:
    row = make_row((7, 8, 9), mask=mask, advantages=advantages)
    assert (row.trained_tokens, row.signal, row.length) == (trained, signal, 5)


@relaxed
@given(prompt=some_ids, sampled_prompt=some_ids)
def test_a_row_is_reconditioned_if_and_only_if_its_contexts_differ(
    prompt: Ids, sampled_prompt: Ids
) -> None:
    row = make_row(prompt=prompt, sampled_prompt=sampled_prompt)
    assert row.reconditioned == (prompt != sampled_prompt)
    assert not make_row(prompt=prompt, sampled_prompt=prompt).reconditioned


@pytest.mark.parametrize("behaviour", Behaviour)
@pytest.mark.parametrize("number", [0, 1])
def test_neither_the_turn_nor_the_behaviour_makes_a_row_reconditioned(
    behaviour: Behaviour, number: int
) -> None:
    same = make_row(turn=number, behaviour=behaviour)
    other = make_row(turn=number, behaviour=behaviour, sampled_prompt=(1, 2, 3))
    assert not same.reconditioned
    assert other.reconditioned


# Contexts and groups


@relaxed
@given(first=ids, second=ids)
def test_context_ids_are_equal_if_and_only_if_the_ids_are(first: Ids, second: Ids) -> None:
    assert (context_id(first) == context_id(second)) == (first == second)


@pytest.mark.parametrize(
    ("first", "second"),
    [((1, 2), (12,)), ((1, 2), (2, 1)), ((), (0,)), ((0,), (0, 0)), ((1,), (256,)), ((5, 0), (5,))],
)
def test_context_ids_tell_apart_what_looks_alike(first: Ids, second: Ids) -> None:
    assert context_id(first) != context_id(second)


def test_group_keys_keep_queries_roles_and_states_apart() -> None:
    """LESSONS 8: what shares a baseline is the query, the role and the information state."""
    keys = {
        GroupKey("q1", Role.SOLVER),
        GroupKey("q2", Role.SOLVER),
        GroupKey("q1", Role.CRITIC),
        GroupKey("q1", Role.SOLVER, "after-critique"),
    }
    assert len(keys) == 4
    assert GroupKey("q1", Role.SOLVER) in keys
    assert str(GroupKey("q1", Role.SOLVER, "after-critique")) == "q1/solver/after-critique"


# Completions, attempts, episodes


def test_a_completion_refuses_another_number_of_logprobs() -> None:
    with pytest.raises(ValueError, match="2 token ids but 1 log-probs"):
        Completion((1, 2), (-0.5,), Stop.TOKEN)


@pytest.mark.parametrize(
    "second_prompt",
    [
        pytest.param((1, 2, 3, 10, 99, 20), id="one sampled token re-encoded"),
        pytest.param((1, 9, 3, 10, 11, 20), id="the prompt re-encoded"),
        pytest.param((1, 2, 3, 10, 20, 11), id="the last sampled token moved"),
        pytest.param((1, 2, 3, 10), id="cut short"),
        pytest.param((1, 2, 3, 20), id="the sampled tokens dropped"),
        pytest.param((1, 2, 3), id="the first prompt again"),
        pytest.param((0, 1, 2, 3, 10, 11, 20), id="shifted by one"),
    ],
)
def test_an_attempt_refuses_a_turn_that_does_not_extend_the_ids_before_it(
    second_prompt: Ids,
) -> None:
    """LESSONS 13: token-in/token-out; what a decode and re-encode would change is refused."""
    with pytest.raises(ValueError, match="does not extend"):
        attempt(turn((1, 2, 3), (10, 11)), turn(second_prompt, (30,)))


def test_an_attempt_checks_every_turn_and_not_only_the_second() -> None:
    """LESSONS 13: the third turn must extend the second one too."""
    first, second = turn((1,), (10,)), turn((1, 10, 20), (11,))
    attempt(first, second, turn((1, 10, 20, 11), (12,)))
    with pytest.raises(ValueError, match="does not extend"):
        attempt(first, second, turn((1, 10, 21, 11), (12,)))


def test_an_attempt_of_two_turns_laid_end_to_end() -> None:
    """LESSONS 7 and 11: one row holds both generations; the observation between is not trained."""
    both = attempt(turn((1, 2, 3), (10, 11)), turn((1, 2, 3, 10, 11, 20, 21, 22), (30, EOS)))
    assert attempt_tokens(both) == (
        (10, 11, 20, 21, 22, 30, EOS),
        (True, True, False, False, False, True, True),
        (-0.125, -0.25, 0.0, 0.0, 0.0, -0.125, -0.25),
    )
    assert both.sampled_tokens == 4


def test_an_attempt_of_one_turn_is_its_completion() -> None:
    only = attempt(turn((1, 2, 3), (10, 11, EOS)))
    assert attempt_tokens(only) == ((10, 11, EOS), (True, True, True), (-0.125, -0.25, -0.375))


def test_turns_without_observation_or_without_tokens() -> None:
    """LESSONS 7: the mask follows the sampling call even where nothing came of it."""
    silent = attempt(
        turn((1,), (10,)), turn((1, 10), ()), turn((1, 10, 20), (11,)), turn((1, 10, 20, 11), (12,))
    )
    assert attempt_tokens(silent) == (
        (10, 20, 11, 12),
        (True, False, True, True),
        (-0.125, 0.0, -0.125, -0.125),
    )


@relaxed
@given(
    prompt=some_ids,
    parts=st.lists(st.tuples(ids, ids), min_size=1, max_size=4),
)
def test_the_mask_follows_who_wrote_a_token_whatever_its_id(
    prompt: Ids, parts: list[tuple[Ids, Ids]]
) -> None:
    """LESSONS 7, 11, 12: True where sampled; observations False, log-prob 0; ids tell nothing."""
    turns: list[Turn] = []
    expected: list[tuple[int, bool, float]] = []
    shown = prompt
    for number, (observation, sampled) in enumerate(parts):
        if number:
            shown += observation
            expected += [(token, False, 0.0) for token in observation]
        turns.append(turn(shown, sampled))
        expected += [(token, True, -(k + 1) / 8) for k, token in enumerate(sampled)]
        shown += sampled
    tokens, mask, logprobs = attempt_tokens(attempt(*turns))
    assert list(zip(tokens, mask, logprobs, strict=True)) == expected
    assert prompt + tokens == shown
    row = make_row(tokens, prompt=prompt, mask=mask, logprobs=logprobs)
    assert row.trained_tokens == sum(len(sampled) for _, sampled in parts)


def test_pad_and_eos_ids_inside_a_completion_are_trained() -> None:
    """LESSONS 12: masks come from what was sampled, not from which token it is."""
    sampled = (7, PAD, EOS, 8, EOS)
    tokens, mask, logprobs = attempt_tokens(attempt(turn((1, 2), sampled)))
    row = make_row(tokens, mask=mask, logprobs=logprobs)
    assert row.mask == (True,) * 5
    assert row.trained_tokens == 5


def test_an_observation_of_the_same_ids_is_not_trained() -> None:
    """LESSONS 12: the same ids, sampled by the policy or shown by the environment, differ."""
    both = attempt(turn((1,), (7, EOS)), turn((1, 7, EOS, 7, EOS), (7, EOS)))
    assert attempt_tokens(both)[0] == (7, EOS) * 3
    assert attempt_tokens(both)[1] == (True, True, False, False, True, True)


def test_a_padded_batch_trains_pad_and_eos_ids_and_no_padding() -> None:
    """LESSONS 12: padding is told from tokens by length, though its id may have been sampled."""
    rows = [
        make_row((7, PAD, EOS, 8, PAD)),
        make_row((PAD,), prompt=(1, 2, 3, PAD)),
        make_row((7, PAD, 8), mask=(True, False, True)),
    ]
    batch = MicroBatch.of(rows, Backbone(model_of("llama")))
    assert batch.mask.tolist() == [
        [True, True, True, True, True],
        [True, False, False, False, False],
        [True, False, True, False, False],
    ]
    assert batch.targets.tolist() == [7, PAD, EOS, 8, PAD, PAD, 7, 8]


@pytest.mark.parametrize(("grade", "right"), [(Grade.RIGHT, True), (Grade.WRONG, False)])
def test_success_is_the_grade_and_truncation_the_last_turns(grade: Grade, right: bool) -> None:
    first = turn((1,), (10,), Stop.LENGTH)
    last = turn((1, 10), (11,), Stop.TOKEN)
    assert attempt(first, last, grade=grade).success is right
    assert not attempt(first, last).truncated
    assert attempt(first).truncated


def test_an_error_is_no_success() -> None:
    assert not attempt(turn((1,), (10,)), grade=Grade.ERROR).success


def critique(index: int, completion: Ids, of: int = 0, **more: Any) -> Critique:
    asked = turn((4,), completion, **more)
    return Critique(index=index, of=of, turn=asked, text="", size=float(len(completion)))


def test_an_episode_counts_what_was_sampled_but_not_what_an_outsider_said() -> None:
    first = attempt(turn((1,), (10, 11)))
    revision = attempt(turn((1, 5), (10, 12, 13)), index=1)
    own = critique(0, (20, 21, 22, 23))
    bought = critique(1, (20,) * 50, behaviour=Behaviour.EXTERNAL)
    episode = Episode("0/q/0", "q", attempts=(first, revision), critiques=(own, bought))
    assert episode.first is first
    assert episode.revisions == (revision,)
    assert episode.sampled_tokens == 9


def test_an_endpoint_s_own_counts_stand_for_ids_that_it_does_not_show() -> None:
    own = turn((1, 2, 3), (10, 11))
    assert (own.prompt_tokens, own.sampled_tokens) == (3, 2)
    told = turn((), (), behaviour=Behaviour.EXTERNAL, counted=(70, 30))
    untold = turn((), (), behaviour=Behaviour.EXTERNAL)
    assert (told.prompt_tokens, told.sampled_tokens) == (70, 30)
    assert (untold.prompt_tokens, untold.sampled_tokens) == (0, 0)
    assert turn((), (), counted=(0, 0)).sampled_tokens == 0
    both = attempt(told, dataclasses.replace(told, counted=(99, 12)))
    assert both.sampled_tokens == 42
    assert Episode("0/q/0", "q", (both,)).sampled_tokens == 42


def test_how_long_a_turn_took_makes_it_no_other_turn() -> None:
    """Equal runs are compared turn by turn, and no two take equally long."""
    one = turn((1,), (10,), text="said")
    assert one == dataclasses.replace(one, seconds=5.0)
    assert one != dataclasses.replace(one, text="other")
    assert one != dataclasses.replace(one, messages=(("user", "?"),))
    assert one != dataclasses.replace(one, counted=(1, 1))


def test_corrections_pair_an_attempt_its_critique_and_the_revision_made_after_it() -> None:
    first = attempt(turn((1,), (10,)))
    second = dataclasses.replace(attempt(turn((1, 5), (11,)), index=1), critique=0)
    third = dataclasses.replace(attempt(turn((1, 6), (12,)), index=2), critique=2)
    about_first, unused, about_second = (
        critique(0, (20,)),
        critique(1, (21,)),
        critique(2, (22,), of=1),
    )
    episode = Episode(
        "0/q/0", "q", (first, second, third), critiques=(about_first, unused, about_second)
    )
    assert episode.corrections == ((first, about_first, second), (second, about_second, third))
