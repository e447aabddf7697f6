"""What each model family is shown, against its own chat template and against golden files.

A golden file is the decoded prompt, control tokens included, and a last line `[end]`.
INWIT_UPDATE_GOLDEN=1 writes them anew; read the difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inwit.roles import CONDITIONS, Prompt, Renderer, View, load_prompt
from inwit.rows import Completion, Ids, Sees, Stop

from .families import FAMILIES, build_tokenizer, control_ids, real_smollm2, tokenizer_of

GOLDEN = Path(__file__).parent / "golden"
UPDATE = os.environ.get("INWIT_UPDATE_GOLDEN") == "1"

FIELDS = {
    Sees.QUESTION: "A café sells 3 “crêpes” at 4 € each.\nWhat do they cost, in \\frac{1}{2} €?",
    Sees.ATTEMPT: "3 + 4 = 7, twice that is 14.\nAnswer: 14",
    Sees.OUTCOME: "The try was graded wrong.",
    Sees.FEEDBACK: "Expected a price in €, got “14”.",
    Sees.CRITIQUE: "Crêpes at a price each: multiply, do not add.",
}
SAID = "3 * 4 = 12, twice that is 24.\nAnswer: 24"
THOUGHT = f"<think>\nIn halves of a euro.\n</think>\n\n{SAID}"
OBSERVATION = "Look at your last step again."
CUT = "3 * 4 = 12, twice"
OPENINGS = tuple(name for name in CONDITIONS if name != "again")
"""Prompts that open a conversation; `again` goes on with one."""

CASES = (*CONDITIONS, "continuation", "continuation_truncated")


def view(name: str) -> View:
    return View(CONDITIONS[name], FIELDS)


def sampled(renderer: Renderer, text: str, stop: Stop = Stop.TOKEN) -> Completion:
    """A completion that spells `text`, with its stop token where it has one."""
    ids = tuple(renderer.tokenizer.encode(text, add_special_tokens=False))
    ids += renderer.stop_ids[:1] if stop is Stop.TOKEN else ()
    return Completion(ids, (-1.0,) * len(ids), stop)


def continued(renderer: Renderer, completion: Completion, said: str = OBSERVATION) -> Ids:
    """What a second turn is shown: the first one's prompt, what was sampled, what is then said."""
    prompt_ids = renderer.prompt_ids(load_prompt("solver", []), view("solver"))
    return prompt_ids + completion.ids + renderer.continuation_ids(completion, said)


def asked_again(renderer: Renderer, stop: Stop = Stop.TOKEN) -> Ids:
    """What a second attempt in the same conversation is shown."""
    instruction = load_prompt("again", []).instruction(view("again"))
    return continued(renderer, sampled(renderer, SAID, stop), instruction)


def finished(prompt: Prompt, *, takes_system: bool = True) -> list[dict[str, str]]:
    """The prompt's messages as anyone would hand them to a chat template."""
    filled = []
    for speaker, text in prompt.messages:
        for field in Sees:
            text = text.replace("{" + field + "}", FIELDS.get(field, "never shown"))
        filled.append({"role": speaker, "content": text})
    if not takes_system:
        system, user = filled
        filled = [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}]
    return filled


def template_ids(tokenizer, messages: list[dict[str, str]], **settings: object) -> Ids:
    return tuple(
        tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **settings
        )
    )


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("name", OPENINGS)
def test_a_first_prompt_has_the_ids_that_the_family_s_template_gives(family, name):
    """LESSONS 14: a role's prompt is rendered once, and is then what the template itself makes."""
    tokenizer = tokenizer_of(family)
    prompt = load_prompt(name, [])
    messages = finished(prompt, takes_system=FAMILIES[family].takes_system)

    ids = Renderer(tokenizer).prompt_ids(prompt, view(name))

    assert ids == template_ids(tokenizer, messages)


@pytest.mark.parametrize("stop", Stop)
def test_a_second_turn_has_the_ids_of_the_whole_conversation(family, stop):
    """LESSONS 13: the ids of turn k are extended, and nothing shifts by it.

    Where the template keeps earlier turns as they were, extending gives what rendering it all
    again would give; a truncated completion is closed first.
    """
    tokenizer = tokenizer_of(family)
    renderer = Renderer(tokenizer)
    conversation = [
        *finished(load_prompt("solver", []), takes_system=FAMILIES[family].takes_system),
        {"role": "assistant", "content": SAID},
        {"role": "user", "content": OBSERVATION},
    ]

    ids = continued(renderer, sampled(renderer, SAID, stop))

    assert ids == template_ids(tokenizer, conversation)


@pytest.mark.parametrize("stop", Stop)
def test_a_second_attempt_has_the_ids_of_the_whole_conversation(family, stop):
    """LESSONS 13, 14: the instruction is a user's turn like any other, in its own words."""
    tokenizer = tokenizer_of(family)
    [(speaker, instruction)] = load_prompt("again", []).messages
    assert speaker == "user" and not load_prompt("again", []).fields
    conversation = [
        *finished(load_prompt("solver", []), takes_system=FAMILIES[family].takes_system),
        {"role": "assistant", "content": SAID},
        {"role": "user", "content": instruction},
    ]

    ids = asked_again(Renderer(tokenizer), stop)

    assert ids == template_ids(tokenizer, conversation)


@pytest.mark.parametrize("case", CASES)
def test_golden(family, case):
    """LESSONS 14: one golden file per model family and role, to be read by people."""
    tokenizer = tokenizer_of(family)
    renderer = Renderer(tokenizer)
    if case == "continuation":
        ids = continued(renderer, sampled(renderer, THOUGHT if family == "qwen3" else SAID))
    elif case == "continuation_truncated":
        ids = continued(renderer, sampled(renderer, CUT, Stop.LENGTH))
    elif case == "again":
        ids = asked_again(renderer)
    else:
        ids = renderer.prompt_ids(load_prompt(case, []), view(case))
    text = tokenizer.decode(list(ids), skip_special_tokens=False) + "[end]\n"
    path = GOLDEN / f"{family}-{case}.txt"
    if UPDATE:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_there_is_no_golden_file_that_nobody_compares():
    expected = {f"{family}-{case}.txt" for family in FAMILIES for case in CASES}
    assert {path.name for path in GOLDEN.iterdir()} == expected


def test_qwen3_keeps_the_thinking_that_its_template_strips():
    """LESSONS 14: a template may drop earlier reasoning; what was sampled stays, id for id."""
    tokenizer = tokenizer_of("qwen3")
    renderer = Renderer(tokenizer)
    thought = sampled(renderer, THOUGHT)
    prompt = load_prompt("solver", [])
    first = renderer.prompt_ids(prompt, view("solver"))
    again = template_ids(
        tokenizer,
        [
            *finished(prompt),
            {"role": "assistant", "content": THOUGHT},
            {"role": "user", "content": OBSERVATION},
        ],
    )

    ids = continued(renderer, thought)

    think = tokenizer.convert_tokens_to_ids("<think>")
    assert think in thought.ids
    assert ids[: len(first) + len(thought.ids)] == first + thought.ids
    assert think not in again  # so a second rendering would have lost it
    assert ids != again


def test_qwen3_s_thinking_can_be_switched_off_by_the_template_s_setting():
    tokenizer = tokenizer_of("qwen3")
    renderer = Renderer(tokenizer, {"enable_thinking": False})
    prompt = load_prompt("solver", [])

    ids = renderer.prompt_ids(prompt, view("solver"))
    tail = renderer.continuation_ids(sampled(renderer, SAID), OBSERVATION)

    assert ids == template_ids(tokenizer, finished(prompt), enable_thinking=False)
    empty_thought = "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert tokenizer.decode(list(ids)).endswith(empty_thought)
    assert tokenizer.decode(list(tail)).endswith(empty_thought)


def test_the_end_of_turn_is_the_first_stop_token_and_eos_is_one(family):
    tokenizer = tokenizer_of(family)
    stop_ids = Renderer(tokenizer).stop_ids
    assert stop_ids[0] == tokenizer.convert_tokens_to_ids(FAMILIES[family].end)
    assert tokenizer.eos_token_id in stop_ids
    assert len(stop_ids) == len(set(stop_ids))
    assert set(stop_ids) <= control_ids(tokenizer)


def test_a_base_model_s_eos_comes_after_the_template_s_end_of_turn():
    tokenizer = build_tokenizer("llama3", eos_token="<|end_of_text|>")
    expected = tokenizer.convert_tokens_to_ids(["<|eot_id|>", "<|end_of_text|>"])
    assert Renderer(tokenizer).stop_ids == tuple(expected)


@pytest.mark.parametrize("name", ["llama3", "gemma", "gemma3"])
def test_the_text_begins_once(name):
    """LESSONS 13: a tokenizer that writes its own beginning of text adds none to ours."""
    tokenizer = tokenizer_of(name)
    renderer = Renderer(tokenizer)
    bos = tokenizer.bos_token_id
    ids = continued(renderer, sampled(renderer, SAID))
    assert tokenizer.encode("a")[0] == bos  # the trap
    assert (ids[0], ids.count(bos)) == (bos, 1)


def test_a_demonstration_is_written_as_the_policy_writes(family):
    renderer = Renderer(tokenizer_of(family))
    assert renderer.completion_ids(SAID) == sampled(renderer, SAID).ids
    assert renderer.text(renderer.completion_ids(SAID)) == SAID


@pytest.mark.parametrize("name", OPENINGS)
def test_smollm2_s_own_tokenizer(name):
    """LESSONS 14: the same with the family's own 49,152 tokens."""
    tokenizer = real_smollm2()
    renderer = Renderer(tokenizer)
    prompt = load_prompt(name, [])
    assert renderer.prompt_ids(prompt, view(name)) == template_ids(tokenizer, finished(prompt))
    assert renderer.stop_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert renderer.text(renderer.completion_ids(SAID)) == SAID


def test_smollm2_s_own_tokenizer_in_a_second_attempt():
    """LESSONS 13: the same where the conversation goes on."""
    tokenizer = real_smollm2()
    [(_, instruction)] = load_prompt("again", []).messages
    conversation = [
        *finished(load_prompt("solver", [])),
        {"role": "assistant", "content": SAID},
        {"role": "user", "content": instruction},
    ]
    assert asked_again(Renderer(tokenizer)) == template_ids(tokenizer, conversation)
