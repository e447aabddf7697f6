"""Where the methods are tried out: a maze of several turns, a small shop, and who plays in them.

The maze has a vocabulary of 72 words, the size of the tiny random models of `tests.engines.models`,
which therefore play it. Where a certain transcript is needed, `Scripted` plays it.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence as InOrder
from tokenizers.pre_tokenizers import Split as CutAt
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from inwit.engines import OptimizerSettings, Policy, Sampling
from inwit.engines.torch import Loaded, TorchEngine, TorchSettings, load_model
from inwit.envs import Env, EnvSettings, Play, Result, Split, Step, Task
from inwit.envs.checkout import Checkout, CheckoutSettings
from inwit.methods.icrl import ICRL, ICRLSettings
from inwit.methods.sft import SFT, SFTSettings
from inwit.playing import SamplingSettings, Stage
from inwit.roles import CONDITIONS, Prompt, Renderer, load_prompt
from inwit.rows import (
    Attempt,
    Behaviour,
    Completion,
    Condition,
    Critique,
    Episode,
    Floats,
    Grade,
    Ids,
    Role,
    Row,
    Sees,
    Stop,
    Turn,
)
from inwit.speaking import Actor, Speaker
from tests.engines.models import VOCABULARY, model_of

CPU = TorchSettings(device="cpu")

# ---------------------------------------------------------------------- the maze

MARKERS = ("<system>", "<user>", "<assistant>")
PLAIN_WORDS = ["[", "]", "solver", "critic", "leave", "note", "dark", "here", "break", "jam"]
LATER_WORDS = ["again", "mine"]  # after all others, so that the ids of those stay what they are
OUTCOME_WORDS = ["The", "try", "was", "graded", "right.", "wrong."]
CHAT_TEMPLATE = """\
{%- for message in messages -%}
  {{- '<' + message.role + '> ' + message.content + ' <end> ' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}
"""

MAZE_PROMPTS = {
    "solver": Prompt("solver", (("system", "solver"), ("user", "{question}"))),
    "again": Prompt("again", (("user", "again"),)),
    "revision": Prompt("revision", (("system", "solver"), ("user", "{question} note {critique}"))),
    "refine": Prompt(
        "refine", (("system", "solver"), ("user", "{question} try {attempt} note {critique}"))
    ),
    "repair": Prompt(
        "repair", (("system", "solver"), ("user", "{question} try {attempt} {outcome}"))
    ),
    "given": Prompt("given", (("system", "solver"), ("user", "{question} mine {attempt}"))),
    "critic": Prompt(
        "critic", (("system", "critic"), ("user", "{question} try {attempt} {outcome}"))
    ),
    "feedback": Prompt("feedback", (("system", "critic"), ("user", "{question} try {attempt}"))),
}


@functools.cache
def maze_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; brackets are words of their own, since observations are shown in them."""
    words = ["<pad>", "<end>", "<unk>", *MARKERS, *PLAIN_WORDS, *OUTCOME_WORDS]
    words += [f"{kind}{i:02d}" for i in range(20) for kind in ("key", "trap", "hall")]
    words = [*words[: VOCABULARY - len(LATER_WORDS)], *LATER_WORDS]
    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = InOrder([WhitespaceSplit(), CutAt(Regex(r"[\[\]]"), "isolated")])
    outer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        extra_special_tokens=list(MARKERS),
        clean_up_tokenization_spaces=False,
        model_max_length=160,
    )
    outer.chat_template = CHAT_TEMPLATE
    return outer


@functools.cache
def maze_renderer() -> Renderer:
    return Renderer(maze_tokenizer())


def maze_ids(text: str) -> Ids:
    return tuple(maze_tokenizer().encode(text, add_special_tokens=False))


def maze_text(ids: Sequence[int]) -> str:
    """Every token as it is, special ones included."""
    return str(maze_tokenizer().decode(list(ids)))


class MazeSettings(EnvSettings):
    turns: int = 3
    observation: str = "dark here"


class Maze(Env):
    """Say a key and you are out; a trap is the end; anything else leaves you where you are.

    `break` brings down the environment, `jam` its grader. `plays` holds every play ever opened.
    """

    Settings = MazeSettings
    settings: MazeSettings

    def __init__(self, settings: MazeSettings | None = None) -> None:
        super().__init__(settings or MazeSettings())
        self.max_turns = self.settings.turns
        self.plays: list[MazePlay] = []

    def tasks(self, split: Split) -> Sequence[Task]:
        start = 4 * list(Split).index(split)
        return [
            Task(f"{split}-{i}", f"leave hall{start + i:02d}", reference=f"key{start + i:02d}")
            for i in range(4)
        ]

    def open(self, task: Task) -> Play:
        if task.data.get("locked"):
            raise OSError("the door is locked")
        self.plays.append(MazePlay(self))
        return self.plays[-1]


class MazePlay(Play):
    def __init__(self, env: Maze) -> None:
        self.env = env
        self.actions: list[str] = []
        self.closed = 0

    async def step(self, action: str) -> Step:
        self.actions.append(action)
        word = (action.split() or [""])[0]
        if word == "break":
            raise RuntimeError("the floor gave way")
        if word == "jam":
            return Step(result=Result.error("the grader is jammed"))
        if word.startswith("key"):
            return Step(result=Result.of(True, "out"))
        if word.startswith("trap"):
            return Step(result=Result.of(False, "caught"))
        return Step(self.env.settings.observation)

    async def close(self) -> None:
        self.closed += 1


def maze(**settings: Any) -> Maze:
    return Maze(MazeSettings(**settings))


def maze_model(seed: int = 0) -> Loaded:
    """A tiny random Qwen3 that speaks the maze's words."""
    return Loaded(model_of("qwen3", seed), maze_tokenizer(), "test:maze")


# ---------------------------------------------------------------------- who plays

Say = Callable[[str, int], str]
"""From a prompt's text, special tokens included, and the index of a sample to what is said."""


class Scripted:
    """A policy that thinks all tokens equally likely, and of them draws the ones it is told to.

    Its log-probs are those of that uniform distribution. `asked` holds every request.
    """

    def __init__(self, renderer: Renderer, say: Say) -> None:
        self.renderer = renderer
        self.say = say
        self.asked: list[tuple[Ids, int, Sampling]] = []
        self.logprob = -math.log(len(renderer.tokenizer))

    async def sample(self, prompt_ids: Ids, n: int, sampling: Sampling) -> list[Completion]:
        self.asked.append((prompt_ids, n, sampling))
        shown = str(self.renderer.tokenizer.decode(list(prompt_ids)))
        return [self._completion(self.say(shown, i), sampling) for i in range(n)]

    def _completion(self, text: str, sampling: Sampling) -> Completion:
        ids = self.renderer.completion_ids(text)[: sampling.max_tokens]
        stop = Stop.TOKEN if ids[-1] in sampling.stop_ids else Stop.LENGTH
        return Completion(ids, (self.logprob,) * len(ids), stop)

    async def logprobs(self, rows: Sequence[Row], temperature: float = 1.0) -> list[Floats]:
        return [tuple(self.logprob if m else 0.0 for m in row.mask) for row in rows]


def scripted(say: Say, behaviour: Behaviour = Behaviour.POLICY) -> Actor:
    """An actor for the maze."""
    return Actor(Scripted(maze_renderer(), say), maze_renderer(), behaviour)


def stage_of(
    env: Env,
    solver: Speaker,
    critic: Speaker | None = None,
    *,
    prompts: Mapping[str, Prompt] = MAZE_PROMPTS,
    conditions: Mapping[str, Condition] = CONDITIONS,
    seed: int = 0,
    scene: tuple[object, ...] = ("train", 0),
    reference: Policy | None = None,
    **sampling: Any,
) -> Stage:
    spec = SamplingSettings(**({"max_tokens": 4, "critic_max_tokens": 4} | sampling))
    return Stage(env, solver, critic or solver, prompts, conditions, spec, seed, scene, reference)


def maze_stage(env: Maze, policy: Policy, **rest: Any) -> Stage:
    """One policy in both roles of the maze."""
    return stage_of(env, Actor(policy, maze_renderer()), **rest)


# ---------------------------------------------------------------------- the shop

SHOP = {"basket": 1, "train": 40, "dev": 16, "test": 16, "slip": (0.4, 0.7)}


@functools.cache
def shop() -> Checkout:
    """Baskets of one item, so that a model of a few updates is right now and then."""
    return Checkout(CheckoutSettings(**SHOP))


def shop_prompts() -> dict[str, Prompt]:
    return {name: load_prompt(name, [Checkout.prompts]) for name in CONDITIONS}


def shop_stage(engine: TorchEngine, env: Env | None = None, **rest: Any) -> Stage:
    solver = Actor(engine, Renderer(engine.tokenizer))
    spec = {"max_tokens": 3, "critic_max_tokens": 3} | rest
    return stage_of(env or shop(), solver, prompts=shop_prompts(), **spec)


@functools.cache
def _warm() -> Loaded:
    loaded = load_model("embedded:checkout", seed=1)
    engine = TorchEngine(loaded, CPU)
    method = SFT(SFTSettings(batch=48))
    optimizer = OptimizerSettings(lr=1e-2, warmup=3)

    async def learn() -> None:
        for step in range(25):
            episodes = await method.collect([], shop_stage(engine, scene=("warm", step)))
            await engine.update(method.credit(episodes), method.objective(1.0), optimizer, 25)

    asyncio.run(learn())
    return loaded


def warm() -> Loaded:
    """The embedded model after a few updates on demonstrations; a copy of its own each time."""
    found = _warm()
    return Loaded(copy.deepcopy(found.model), found.tokenizer, found.source)


def warm_engine(**settings: Any) -> TorchEngine:
    return TorchEngine(warm(), CPU, **settings)


# ---------------------------------------------------------------------- episodes by hand

QUESTION: Condition = frozenset({Sees.QUESTION})
CRITIC: Condition = CONDITIONS["critic"]
NOTED: Condition = CONDITIONS["revision"] | CRITIC
GRADES = {"right": (Grade.RIGHT, 1.0), "wrong": (Grade.WRONG, 0.0), "error": (Grade.ERROR, 0.0)}


def turn_of(
    prompt: Ids,
    ids: Ids,
    role: Role = Role.SOLVER,
    sees: Condition = QUESTION,
    behaviour: Behaviour = Behaviour.POLICY,
    stop: Stop = Stop.TOKEN,
) -> Turn:
    """A turn with log-probs that tell its tokens apart: -id/100."""
    return Turn(role, prompt, Completion(ids, tuple(-i / 100 for i in ids), stop), sees, behaviour)


def attempt_of(
    grade: str,
    prompt: Ids = (1, 2, 3),
    ids: Ids = (10, 11),
    *,
    index: int = 0,
    critique: int | None = None,
    reward: float | None = None,
    turns: Sequence[Turn] = (),
    feedback: str = "",
    stop: Stop = Stop.TOKEN,
) -> Attempt:
    """An attempt of one turn, or of `turns`; right is 1 and wrong is 0, unless told otherwise."""
    kind, usual = GRADES[grade]
    sees = QUESTION if critique is None else NOTED
    return Attempt(
        index=index,
        turns=tuple(turns) or (turn_of(prompt, ids, sees=sees, stop=stop),),
        grade=kind,
        reward=usual if reward is None else reward,
        text="said",
        critique=critique,
        feedback=feedback,
    )


def critique_of(
    index: int = 0,
    *,
    prompt: Ids = (7, 7, 1),
    ids: Ids = (20, 21),
    size: float | None = None,
    behaviour: Behaviour = Behaviour.POLICY,
) -> Critique:
    """A critique of the attempt with the same index; its size is its length, unless given."""
    turn = turn_of(prompt, ids, Role.CRITIC, CRITIC, behaviour)
    return Critique(index, index, turn, "note", float(len(ids)) if size is None else size)


def episode_of(
    sample: int,
    *grades: str,
    query: str = "q",
    prompt: Ids = (1, 2, 3),
    sizes: Sequence[float] = (),
) -> Episode:
    """A first attempt and revisions with these grades, each after a critique of the one before."""
    attempts = [attempt_of(grades[0], prompt, (10, 11 + sample))]
    critiques = []
    for k, grade in enumerate(grades[1:]):
        note = (50 + sample, 60 + k)
        size = sizes[k] if k < len(sizes) else None
        critiques.append(critique_of(k, prompt=(7, *prompt, sample, k), ids=(*note, 1), size=size))
        said = (12, 13 + k)
        attempts.append(attempt_of(grade, (*note, *prompt), said, index=k + 1, critique=k))
    return Episode(f"0/{query}/{sample}", query, tuple(attempts), tuple(critiques))


def by_place(rows: Sequence[Row]) -> dict[tuple[str, str, int], Row]:
    """Rows by (episode, role, index of the attempt)."""
    found = {(row.episode, str(row.role), row.turn): row for row in rows}
    assert len(found) == len(rows), "two rows of one place"
    return found


def icrl(**settings: Any) -> ICRL:
    return ICRL(ICRLSettings(**({"group_size": 3} | settings)))


def collect(method: ICRL, stage: Stage, n: int = 2, split: Split = Split.TRAIN) -> list[Episode]:
    return asyncio.run(method.collect(stage.env.tasks(split)[:n], stage))
