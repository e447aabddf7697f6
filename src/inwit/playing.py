"""Playing roles: prompts built, turns sampled, actions taken, attempts graded."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from inwit import seeding
from inwit.engines import Policy, Sampling
from inwit.engines.openai import ChatEndpoint
from inwit.envs import Env, Play, Result, Step, Task
from inwit.errors import TooLong
from inwit.roles import Prompt, Renderer, View
from inwit.rows import (
    Attempt,
    Behaviour,
    Completion,
    Condition,
    Critique,
    Grade,
    Ids,
    Role,
    Sees,
    Turn,
)

T = TypeVar("T")

OBSERVATION_SHOWN = 800
"""Characters of each observation that a critic is shown (as in the ICRL authors' code)."""

OUTCOMES = {Grade.RIGHT: "The try was graded right.", Grade.WRONG: "The try was graded wrong."}


class SamplingSettings(BaseModel):
    """How tokens are drawn in training. There is no top_p and no top_k, on purpose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(1.0, gt=0)
    max_tokens: int = Field(512, ge=1, description="most tokens in one turn of a solver")
    critic_max_tokens: int = Field(256, ge=1, description="most tokens in a critique")
    max_context: int | None = Field(None, ge=2, description="an attempt that would exceed it ends")


class Speaker(Protocol):
    """Whoever can be asked under a prompt, and answers in text."""

    async def say(
        self, prompt: Prompt, view: View, sees: Condition, max_tokens: int, draw: Draw
    ) -> tuple[Turn, str]:
        """One turn under a prompt, and its text."""
        ...


@dataclass(frozen=True, slots=True)
class Draw:
    """How one turn is drawn: temperature and seed."""

    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class Actor:
    """A policy with the tokenizer that speaks to it, and whose tokens its samples are."""

    policy: Policy
    renderer: Renderer
    behaviour: Behaviour = Behaviour.POLICY

    def sampling(self, max_tokens: int, draw: Draw) -> Sampling:
        return Sampling(max_tokens, self.renderer.stop_ids, draw.temperature, draw.seed)

    async def say(
        self, prompt: Prompt, view: View, sees: Condition, max_tokens: int, draw: Draw
    ) -> tuple[Turn, str]:
        prompt_ids = self.renderer.prompt_ids(prompt, view)
        [completion] = await self.policy.sample(prompt_ids, 1, self.sampling(max_tokens, draw))
        turn = Turn(prompt.role, prompt_ids, completion, sees, self.behaviour)
        return turn, self.renderer.text(completion.ids)


@dataclass(frozen=True, slots=True)
class Correspondent:
    """A model behind a chat endpoint. It shows no token ids, so its turns have none."""

    endpoint: ChatEndpoint

    async def say(
        self, prompt: Prompt, view: View, sees: Condition, max_tokens: int, draw: Draw
    ) -> tuple[Turn, str]:
        reply = await self.endpoint.chat(
            prompt.filled(view), max_tokens=max_tokens, temperature=draw.temperature, seed=draw.seed
        )
        unknown = Completion((), (), reply.stop)
        return Turn(prompt.role, (), unknown, sees, Behaviour.EXTERNAL), reply.text.strip()


class Guarded:
    """A play whose faults are results: what breaks in the environment is graded `error`.

    Faults of anything else, such as the engine's, are not caught here: they are no attempt's.
    """

    def __init__(self, env: Env, task: Task) -> None:
        self._env, self._task = env, task
        self._play: Play | None = None

    async def step(self, action: str) -> Step:
        try:
            if self._play is None:
                self._play = self._env.open(self._task)
            return await self._play.step(action)
        except Exception as error:
            return Step(result=_broken(error))

    async def out_of_turns(self) -> Result:
        assert self._play is not None
        try:
            return await self._play.out_of_turns()
        except Exception as error:
            return _broken(error)

    async def close(self) -> Result | None:
        """Close the play, if it was opened; the error if that broke."""
        try:
            if self._play is not None:
                await self._play.close()
        except Exception as error:
            return _broken(error)
        return None


def _broken(error: Exception) -> Result:
    return Result.error(f"{type(error).__name__}: {error}")


async def fitting(turn: Coroutine[Any, Any, T]) -> T | None:
    """What is awaited, or None where its prompt leaves no room: nobody is credited for that."""
    try:
        return await turn
    except TooLong:
        return None


@dataclass(frozen=True, slots=True)
class Stage:
    """Where one step's episodes are played.

    Attributes:
        prompts, conditions: by name (`solver`, `revision`, `critic`).
        scene: names that set this step's random choices apart from all others.
    """

    env: Env
    solver: Actor
    critic: Speaker
    prompts: Mapping[str, Prompt]
    conditions: Mapping[str, Condition]
    sampling: SamplingSettings
    seed: int
    scene: tuple[object, ...]

    def episode_id(self, task: Task, sample: int) -> str:
        return "/".join(map(str, (*self.scene, task.id, sample)))

    def rng(self, *names: object) -> Random:
        """A generator for a choice of this step."""
        return seeding.rng(self.seed, *self.scene, *names)

    def draw(self, *names: object) -> Draw:
        """How the turn called `names` is drawn in this step."""
        seed = seeding.derive(self.seed, *self.scene, *names)
        return Draw(self.sampling.temperature, seed)

    # ------------------------------------------------------------------ attempts

    async def first_attempts(self, task: Task, n: int) -> list[Attempt]:
        """n attempts at a task from its question alone; its prompt is computed once."""
        view = View(self.conditions["solver"], {Sees.QUESTION: task.question})
        return await self._attempts(task, "solver", view, n, self.conditions["solver"])

    async def revise(self, task: Task, critique: Critique, index: int, name: object) -> Attempt:
        """A fresh attempt that is shown a critique; it knows what the critic knew."""
        gate = self.conditions["revision"]
        view = View(gate, {Sees.QUESTION: task.question, Sees.CRITIQUE: critique.text})
        sees = gate | critique.turn.sees
        [attempt] = await self._attempts(
            task, "revision", view, 1, sees, critique.index, index, name
        )
        return attempt

    async def _attempts(
        self,
        task: Task,
        prompt: str,
        view: View,
        n: int,
        sees: Condition,
        critique: int | None = None,
        index: int = 0,
        name: object = "",
    ) -> list[Attempt]:
        prompt_ids = self.solver.renderer.prompt_ids(self.prompts[prompt], view)
        self._check_room(task, prompt, len(prompt_ids), self.sampling.max_tokens)
        names = (task.id, prompt, index, name)
        opening = self.solver.sampling(self.sampling.max_tokens, self.draw(*names))
        completions = await self.solver.policy.sample(prompt_ids, n, opening)
        return await asyncio.gather(
            *(
                self._play(task, prompt_ids, completion, sees, critique, index, (*names, i))
                for i, completion in enumerate(completions)
            )
        )

    async def _play(
        self,
        task: Task,
        prompt_ids: Ids,
        completion: Completion,
        sees: Condition,
        critique: int | None,
        index: int,
        names: tuple[object, ...],
    ) -> Attempt:
        """Turn by turn from the first completion to the result."""
        turns = [self._turn(prompt_ids, completion, sees)]
        said = [self.solver.renderer.text(completion.ids)]
        story = list(said)
        play = Guarded(self.env, task)
        try:
            while (step := await play.step(said[-1])).result is None:
                story.append(f"[{step.observation[:OBSERVATION_SHOWN]}]")
                prompt_ids = self._next_prompt(turns[-1], step.observation)
                if len(turns) >= self.env.max_turns or self._too_long(prompt_ids):
                    step = Step(result=await play.out_of_turns())
                    break
                draw = self.draw(*names, "turn", len(turns))
                spec = self.solver.sampling(self.sampling.max_tokens, draw)
                [completion] = await self.solver.policy.sample(prompt_ids, 1, spec)
                turns.append(self._turn(prompt_ids, completion, sees))
                said.append(self.solver.renderer.text(completion.ids))
                story.append(said[-1])
        finally:
            fault = await play.close()
        result = fault or step.result
        assert result is not None
        return Attempt(
            index=index,
            turns=tuple(turns),
            grade=result.grade,
            reward=result.reward,
            text="\n".join(story),
            critique=critique,
            feedback=result.feedback,
        )

    def _turn(self, prompt_ids: Ids, completion: Completion, sees: Condition) -> Turn:
        return Turn(Role.SOLVER, prompt_ids, completion, sees, self.solver.behaviour)

    def _next_prompt(self, turn: Turn, observation: str) -> Ids:
        tail = self.solver.renderer.continuation_ids(turn.completion, observation)
        return turn.prompt_ids + turn.completion.ids + tail

    def check_question(self, task: Task) -> None:
        """Raise TooLong where a task's question leaves no room for an answer."""
        view = View(self.conditions["solver"], {Sees.QUESTION: task.question})
        prompt_ids = self.solver.renderer.prompt_ids(self.prompts["solver"], view)
        self._check_room(task, "solver", len(prompt_ids), self.sampling.max_tokens)

    def _check_room(self, task: Task, prompt: str, tokens: int, answer: int) -> None:
        limit = self.sampling.max_context
        if limit is not None and tokens + answer > limit:
            raise TooLong(
                f"The {prompt} prompt of task {task.id} has {tokens} tokens: with {answer} to "
                f"sample, more than {limit}.",
                "Leave the task out, or change sampling.max_context or sampling.max_tokens.",
            )

    def _too_long(self, prompt_ids: Ids) -> bool:
        limit = self.sampling.max_context
        return limit is not None and len(prompt_ids) + self.sampling.max_tokens > limit

    # ------------------------------------------------------------------ critiques

    async def criticise(self, task: Task, attempt: Attempt, index: int, name: object) -> Critique:
        """The critic reads a whole attempt, as far as its condition allows, and comments on it."""
        view = View(
            self.conditions["critic"],
            {
                Sees.QUESTION: task.question,
                Sees.ATTEMPT: attempt.text,
                Sees.OUTCOME: OUTCOMES.get(attempt.grade, ""),
                Sees.FEEDBACK: attempt.feedback,
                Sees.REFERENCE: task.reference,
            },
        )
        if isinstance(self.critic, Actor):
            shown = self.critic.renderer.prompt_ids(self.prompts["critic"], view)
            self._check_room(task, "critic", len(shown), self.sampling.critic_max_tokens)
        turn, text = await self.critic.say(
            self.prompts["critic"],
            view,
            self.conditions["critic"],
            self.sampling.critic_max_tokens,
            self.draw(task.id, "critic", index, name),
        )
        # an endpoint shows no tokens: then the solver's count stands for its own
        tokens = len(turn.completion.ids) or self.solver.renderer.length(text)
        size = self.env.critique_size(text, tokens)
        return Critique(index, attempt.index, turn, text, size)
