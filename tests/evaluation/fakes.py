"""Who is measured in tests: a quiz, solvers that answer from a script, and records by hand.

A script is the same for a policy, which is shown token ids, and for a model behind an endpoint,
which is shown messages: both are kept as the text that they stand for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from inwit.engines.openai import Reply
from inwit.envs import AnswerEnv, EnvSettings, Result, Split, Task
from inwit.evaluation.protocols import protocol
from inwit.evaluation.records import Answer, Record, Said, Trial
from inwit.playing import SamplingSettings, Stage
from inwit.roles import CONDITIONS, Prompt, Renderer
from inwit.rows import Condition, Grade, Stop
from inwit.speaking import Actor, Correspondent, Speaker
from tests.methods.worlds import CHAT_TEMPLATE, MARKERS, Scripted

# ---------------------------------------------------------------------- what is asked


class Quiz(AnswerEnv):
    """Graded by an answer's last word, whatever the reference: `right`, `break`, or wrong.

    So a script can be right without saying what the reference is. A second answer may open with a
    verdict, yes or no. `data` of a task holds its wrong answer and the feedback that it is given.
    """

    def __init__(self, *tasks: Task) -> None:
        super().__init__(EnvSettings())
        self._tasks = tasks

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._tasks

    def grade(self, task: Task, answer: str) -> Result:
        last = (answer.split() or [""])[-1]
        if last == "break":
            raise RuntimeError("the grader broke")
        return Result.of(last == "right", str(task.data.get("feedback", "")))

    def answer_of(self, task: Task, text: str) -> str:
        return " ".join(text.split()[-2:])

    def verdict(self, text: str) -> bool | None:
        return {"no": True, "yes": False}.get((text.split() or [""])[0])


def quiz(n: int = 1, **data: str) -> Quiz:
    return Quiz(*(Task(f"t{i}", f"question {i}", f"gold {i}", data) for i in range(n)))


PROMPTS = {
    name: Prompt(name, (("system", name), ("user", text)))
    for name, text in {
        "solver": "{question}",
        "critic": "{question} tried {attempt} {outcome}",
        "feedback": "{question} tried {attempt}",
        "reflection": "{question} tried {attempt} {outcome} {feedback}",
        "revision": "{question} note {critique}",
        "refine": "{question} tried {attempt} note {critique}",
        "repair": "{question} wrong {attempt}",
        "given": "{question} mine {attempt}",
    }.items()
} | {"again": Prompt("again", (("user", "once more"),))}


# ---------------------------------------------------------------------- who answers


@functools.cache
def any_text() -> PreTrainedTokenizerFast:
    """One token a byte: it can write everything, so nothing shown can hide in an unknown word."""
    special = ["<pad>", "<end>", *MARKERS]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(BPE({c: i for i, c in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(word, special=True) for word in special])
    outer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<end>",
        clean_up_tokenization_spaces=False,
    )
    outer.chat_template = CHAT_TEMPLATE
    return outer


@functools.cache
def renderer() -> Renderer:
    return Renderer(any_text())


def prompt_of(shown: str) -> str:
    """Which of `PROMPTS` this is."""
    if "<user> once more" in shown:
        return "again"
    return shown.removeprefix("<system> ").split()[0]


class Script:
    """Says the next line of whichever prompt it is shown; the last line of a prompt for ever.

    `asked` holds (prompt, what was shown), in order.
    """

    def __init__(self, **lines: str | Sequence[str]) -> None:
        self.lines = {k: [v] if isinstance(v, str) else list(v) for k, v in lines.items()}
        self.asked: list[tuple[str, str]] = []

    def __call__(self, shown: str, sample: int = 0) -> str:
        name = prompt_of(shown)
        self.asked.append((name, " ".join(shown.split())))
        lines = self.lines[name]
        return lines.pop(0) if len(lines) > 1 else lines[0]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


class Clerk:
    """In an endpoint's place: answers as told, and counts a token a word, or not at all."""

    def __init__(self, say: Callable[[str, int], str], counts: bool = True) -> None:
        self.say, self.counts = say, counts
        self.asked: list[dict[str, Any]] = []

    async def chat(self, messages: Sequence[tuple[str, str]], **options: Any) -> Reply:
        self.asked.append({"messages": tuple(messages), **options})
        shown = " ".join(f"<{who}> {text} <end>" for who, text in messages)
        if options.get("continue_last"):
            shown = shown.removesuffix(" <end>")
        else:
            shown += " <assistant>"
        text = self.say(shown, 0)
        known = (len(shown.split()), len(text.split())) if self.counts else (None, None)
        return Reply(text, *known, Stop.TOKEN)

    async def aclose(self) -> None:
        pass


def speaker(kind: str, say: Callable[[str, int], str], **options: Any) -> Speaker:
    """A policy (`actor`) or a model behind an endpoint (`correspondent`) that follows a script."""
    if kind == "actor":
        return Actor(Scripted(renderer(), say), renderer())
    return Correspondent(Clerk(say, **options))  # type: ignore[arg-type]


KINDS = ("actor", "correspondent")


def stage_for(
    env: AnswerEnv,
    solver: Speaker,
    critic: Speaker | None = None,
    *,
    prompts: Mapping[str, Prompt] = PROMPTS,
    conditions: Mapping[str, Condition] = CONDITIONS,
    **sampling: Any,
) -> Stage:
    spec = SamplingSettings(**({"max_tokens": 200, "critic_max_tokens": 200} | sampling))
    scene = ("eval", "test")
    return Stage(env, solver, critic or solver, prompts, conditions, spec, 0, scene)


# ---------------------------------------------------------------------- records by hand


def said(tokens: int | None = 3, text: str = "x", truncated: bool = False) -> Said:
    prompt = None if tokens is None else 10
    return Said(text, tokens, prompt, 0.5, truncated, ("question",))


def answered(
    grade: str, what: str = "", tokens: int | None = 3, verdict: bool | None = None, **rest: Any
) -> Answer:
    """An answer with this grade; if not told what it was, equal grades are equal answers."""
    return Answer(Grade(grade), what or grade, said(tokens, **rest), verdict)


def recorded(task: str, *grades: str, sample: int = 0, arm: str = "") -> Record:
    """One trial whose answers have these grades."""
    return Record(task, sample, (Trial(tuple(answered(g) for g in grades), (), arm),))


def table_of(both: int, only_first: int, only_second: int, neither: int) -> list[Record]:
    """One record a question, two answers each."""
    kinds = [("right", "right"), ("right", "wrong"), ("wrong", "right"), ("wrong", "wrong")]
    counts = (both, only_first, only_second, neither)
    every = [kind for kind, n in zip(kinds, counts, strict=True) for _ in range(n)]
    return [recorded(f"t{i}", *grades) for i, grades in enumerate(every)]


def measured(name: str, records: Sequence[Record], **options: Any) -> Any:
    return protocol(name, options).measured(records)
