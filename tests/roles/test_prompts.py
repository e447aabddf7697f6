"""Prompt files: how they are read, what is refused and how clearly, and where they are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inwit.envs.checkout import Checkout
from inwit.envs.lock import Lock
from inwit.errors import ForbiddenField, InwitError
from inwit.roles import CONDITIONS, Prompt, Renderer, View, load_prompt
from inwit.roles.prompt import BUILT_IN, ROLE_OF, parse_prompt
from inwit.rows import Role, Sees

from .families import tokenizer_of

SOLVERS = ("solver", "again", "revision", "refine", "repair", "given")
CRITICS = ("critic", "feedback", "reflection")
NAMES = (*SOLVERS, *CRITICS)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(tokenizer_of("llama3"))


def printed(renderer: Renderer, body: str) -> str:
    """What the policy reads of a user message; its fields are filled with their names."""
    view = View(frozenset(Sees), {field: f"[{field}]" for field in Sees})
    prompt = parse_prompt("solver", f"@@ user\n{body}", "solver.txt")
    text = renderer.tokenizer.decode(list(renderer.prompt_ids(prompt, view)))
    start = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
    assert text.startswith(start)
    return str(text.removeprefix(start).partition("<|eot_id|>")[0])


def refusal(text: str, where: str = "my/critic.txt") -> InwitError:
    with pytest.raises(InwitError) as caught:
        parse_prompt("critic", text, where)
    assert caught.value.what.startswith(f"{where}: ")
    return caught.value


# ------------------------------------------------------------------ reading


def test_messages_are_read_in_order_with_their_text_trimmed():
    text = "@@ system\n  Be brief. \n\n@@user  \nAn @@ inside.\n\n{question}\n@@ assistant\nOK"
    prompt = parse_prompt("solver", text, "solver.txt")
    assert prompt.messages == (
        ("system", "Be brief."),
        ("user", "An @@ inside.\n\n{question}"),
        ("assistant", "OK"),
    )
    assert prompt.fields == {Sees.QUESTION}


def test_a_role_follows_from_the_prompt_s_name():
    roles = {name: load_prompt(name, []).role for name in NAMES}
    assert roles == dict.fromkeys(SOLVERS, Role.SOLVER) | dict.fromkeys(CRITICS, Role.CRITIC)


def test_every_prompt_has_a_condition_and_a_role():
    assert set(CONDITIONS) == set(ROLE_OF) == set(NAMES)


def test_fields_of_all_messages_count():
    prompt = parse_prompt("critic", "@@ system\n{outcome}\n@@ user\n{attempt}{question}", "c.txt")
    assert prompt.fields == {Sees.OUTCOME, Sees.ATTEMPT, Sees.QUESTION}


# ------------------------------------------------------------------ refusals


def test_an_unknown_field_is_named_with_the_nearest_one():
    error = refusal("@@ user\n{question} {critque}")
    assert "unknown field '{critque}'" in error.what
    assert "Did you mean 'critique'?" in error.fix
    assert "Double the braces" in error.fix


def test_an_unknown_field_far_from_all_gets_the_list():
    fix = refusal("@@ user\n{zz}").fix
    assert "Known: attempt, critique, feedback, outcome, question, reference." in fix


def test_an_unknown_speaker_is_named_with_the_nearest_one():
    error = refusal("@@ sytem\nBe brief.\n@@ user\n{question}")
    assert "no speaker is called 'sytem'" in error.what
    assert "Did you mean 'system'?" in error.fix


@pytest.mark.parametrize("text", ["", "@@ system\nBe brief.", "@@ assistant\nHi"])
def test_a_prompt_without_a_user_message_is_refused(text):
    assert "no '@@ user' message" in refusal(text).what


def test_text_that_belongs_to_no_message_is_refused_not_dropped():
    error = refusal("You are the critic.\n@@ user\n{question}")
    assert "text before the first message" in error.what


@pytest.mark.parametrize(
    "body", ["\\sqrt{\\frac{a+1}{2}}", 'As JSON: {"a": {"b": 1}}', "}}", "{{x}} }}"]
)
def test_doubled_closing_braces_that_close_nothing_are_refused_not_halved(body):
    error = refusal(f"@@ user\n{body}")
    assert "'}}' without a '{{' before it" in error.what
    assert "Double every brace" in error.fix


def test_check_names_the_prompt_and_what_it_may_not_show():
    """LESSONS 5: a prompt that shows too much is refused when it is loaded, before any token."""
    prompt = parse_prompt("revision", "@@ user\n{question} {reference} {attempt}", "r.txt")
    with pytest.raises(InwitError) as caught:
        prompt.check(frozenset({Sees.QUESTION, Sees.CRITIQUE}))
    assert "'revision' shows attempt, reference" in caught.value.what
    assert "(critique, question)" in caught.value.what
    prompt.check(frozenset({Sees.QUESTION, Sees.ATTEMPT, Sees.REFERENCE}))


# ------------------------------------------------------------------ braces


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("{{question}}", "{question}"),
        ("{{{question}}}", "{[question]}"),
        ('{{"answer": {question}}}', '{"answer": [question]}'),
        ("{{}} {{ {{ }} }}", "{} { { } }"),
        ("a { b } c {} {0} {x_1} {A} { question }", "a { b } c {} {0} {x_1} {A} { question }"),
        ("\\boxed{{\\frac{{a}}{{b}}}}", "\\boxed{\\frac{a}{b}}"),
        ("\\boxed{{{question}}}", "\\boxed{[question]}"),
    ],
)
def test_doubled_braces_print_one_and_only_fields_are_filled(renderer, body, expected):
    assert printed(renderer, body) == expected


@pytest.mark.parametrize(
    "body",
    [
        "\\frac{1}{2}",
        "\\frac{a}{b} of {N}",
        "\\boxed{answer}",
        "\\boxed{\\frac{1}{2}}",
        "$\\frac{\\sqrt{x}}{2}$ and \\text{question}",
        "\\mathbb{R}^{2}",
        "\\begin{cases} 1 \\end{cases}",
    ],
)
def test_latex_survives_as_it_is_written(renderer, body):
    assert printed(renderer, body) == body
    assert printed(renderer, f"{body} {{question}}") == f"{body} [question]"


def test_latex_that_looks_like_a_field_gets_a_clear_message():
    error = refusal("@@ user\nx^{n} + y^{n}")
    assert "unknown field '{n}'" in error.what
    assert "Double the braces" in error.fix


@settings(deadline=None)
@given(st.text("{}\\ab1 ", max_size=12))
def test_braces_are_filled_printed_or_refused_but_never_lost_alone(body):
    """Whatever is written, opening and closing braces are given up in pairs or not at all."""
    renderer = Renderer(tokenizer_of("llama3"))
    try:
        shown = printed(renderer, f"|{body}|")
    except InwitError:
        return
    body = f"|{body}|"
    given_up = body.count("{") - shown.count("{"), body.count("}") - shown.count("}")
    assert 0 <= given_up[1] <= given_up[0] <= body.count("{{")
    assert shown.replace("{", "").replace("}", "") == body.replace("{", "").replace("}", "")


# ------------------------------------------------------------------ in text


def test_for_an_endpoint_the_messages_are_filled_as_they_stand():
    text = "@@ system\nAs {{x}}.\n@@ user\n{question} {attempt}\n@@ assistant\nI {question}"
    view = View(frozenset(Sees), {Sees.QUESTION: "2 + 2?", Sees.ATTEMPT: "{question}"})
    assert parse_prompt("critic", text, "critic.txt").filled(view) == [
        ("system", "As {x}."),
        ("user", "2 + 2? {question}"),
        ("assistant", "I 2 + 2?"),
    ]


@settings(deadline=None)
@given(st.text("{}\\ab1 ", max_size=12))
def test_in_text_a_message_says_what_it_says_in_ids(body):
    """One prompt file, whoever is asked with it."""
    view = View(frozenset(Sees), {field: f"[{field}]" for field in Sees})
    renderer = Renderer(tokenizer_of("llama3"))
    try:
        prompt = parse_prompt("solver", f"@@ user\n|{body}{{question}}|", "solver.txt")
    except InwitError:
        return
    assert [("user", printed(renderer, f"|{body}{{question}}|"))] == prompt.filled(view)


def test_an_instruction_is_one_user_message_with_its_fields_filled():
    prompt = parse_prompt("again", "@@ user\nIs {attempt} the answer to {question}?", "again.txt")
    fields = {Sees.QUESTION: "2 + 2?", Sees.ATTEMPT: "5", Sees.OUTCOME: "wrong"}
    assert prompt.instruction(View(CONDITIONS["again"], fields)) == "Is 5 the answer to 2 + 2??"
    with pytest.raises(ForbiddenField, match="asks for 'attempt'"):
        prompt.instruction(View(frozenset({Sees.QUESTION}), fields))


@pytest.mark.parametrize(
    "speakers", [("system", "user"), ("user", "user"), ("user", "assistant"), ("system",), ()]
)
def test_an_instruction_of_any_other_messages_is_refused(speakers):
    """Nothing but a user's turn can go on a conversation: a system message would be lost."""
    prompt = Prompt("again", tuple((speaker, "Look again.") for speaker in speakers))
    with pytest.raises(InwitError, match="'again' goes on a conversation") as caught:
        prompt.instruction(View(frozenset(), {}))
    assert "one '@@ user' message" in caught.value.fix


# ------------------------------------------------------------------ look-up


def write(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(f"@@ user\n{body}", encoding="utf-8")
    return folder


def test_the_recipe_s_folder_comes_first_then_the_environment_s_then_ours(tmp_path):
    recipe = write(tmp_path / "recipe", "solver", "recipe {question}")
    env = write(tmp_path / "env", "solver", "env {question}")
    write(env, "critic", "env {attempt}")

    def first_word(name: str) -> str:
        return load_prompt(name, [recipe, env]).messages[-1][1].split()[0]

    assert first_word("solver") == "recipe"
    assert first_word("critic") == "env"
    assert load_prompt("revision", [recipe, env]) == load_prompt("revision", [])
    assert load_prompt("solver", [None, env]).messages[-1][1] == "env {question}"
    assert load_prompt("solver", [None, None]) == load_prompt("solver", [])


def test_a_fault_names_the_file_that_was_found(tmp_path):
    folder = write(tmp_path / "recipe", "critic", "{atempt}")
    with pytest.raises(InwitError) as caught:
        load_prompt("critic", [folder])
    assert str(folder / "critic.txt") in caught.value.what
    assert "Did you mean 'attempt'?" in caught.value.fix


def test_a_prompt_that_nobody_plays_is_refused_with_the_nearest_name():
    with pytest.raises(InwitError, match="No prompt is called 'critique'") as caught:
        load_prompt("critique", [])
    assert "Did you mean 'critic'?" in caught.value.fix
    with pytest.raises(InwitError, match="No prompt is called 'refined'") as caught:
        load_prompt("refined", [])
    assert "Did you mean 'refine'?" in caught.value.fix


@pytest.mark.parametrize("head", ["\ufeff", ""])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_files_of_other_editors_read_the_same(tmp_path, head, newline):
    text = f"{head}@@ system\nKürze.\n@@ user\n“{{question}}”\n".replace("\n", newline)
    (tmp_path / "solver.txt").write_bytes(text.encode())
    assert load_prompt("solver", [tmp_path]).messages == (
        ("system", "Kürze."),
        ("user", "“{question}”"),
    )


@pytest.mark.parametrize(
    "folder",
    [BUILT_IN, Checkout.prompts, Lock.prompts],
    ids=["built-in", "checkout", "lock"],
)
def test_every_shipped_file_is_a_prompt_with_a_role(folder):
    """Openings have a system and a user message; `again` goes on a conversation."""
    assert {path.stem for path in folder.glob("*.txt")} == set(NAMES)
    for name in NAMES:
        speakers = [speaker for speaker, _ in load_prompt(name, [folder]).messages]
        assert speakers == (["user"] if name == "again" else ["system", "user"]), name
