"""Playing roles: prompts built, turns sampled, actions taken, attempts graded."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from inwit import seeding
from inwit.engines import Policy
from inwit.envs import Env, Play, Result, Step, Task
from inwit.errors import InwitError, TooLong
from inwit.roles import Prompt, View
from inwit.rows import Attempt, Behaviour, Condition, Critique, Grade, Sees, Turn
from inwit.speaking import Actor, Draw, Shown, Speaker

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

    def read(self, text: str, later: bool) -> tuple[str, bool | None, Result | None]:
        """What it comes down to, its verdict on an earlier one, and the error if that broke."""
        try:
            verdict = self._env.verdict(text) if later else None
            return self._env.answer_of(self._task, text), verdict, None
        except Exception as error:
            return text, None, _broken(error)

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
        prompts, conditions: by name (`solver`, `again`, `revision`, `critic`, ...).
        scene: names that set this step's random choices apart from all others.
        reference: the policy as it was at the start, where it was kept.
    """

    env: Env
    solver: Speaker
    critic: Speaker
    prompts: Mapping[str, Prompt]
    conditions: Mapping[str, Condition]
    sampling: SamplingSettings
    seed: int
    scene: tuple[object, ...]
    reference: Policy | None = None

    def episode_id(self, task: Task, sample: int) -> str:
        return "/".join(map(str, (*self.scene, task.id, sample)))

    def rng(self, *names: object) -> Random:
        """A generator for a choice of this step."""
        return seeding.rng(self.seed, *self.scene, *names)

    def draw(self, *names: object) -> Draw:
        """How the turn called `names` is drawn in this step."""
        seed = seeding.derive(self.seed, *self.scene, *names)
        return Draw(self.sampling.temperature, seed)

    @property
    def actor(self) -> Actor:
        """The solver, where it is a policy that shows its tokens; InwitError where it is not."""
        if not isinstance(self.solver, Actor):
            raise InwitError(
                "A model behind an endpoint shows neither tokens nor log-probs: it cannot learn.",
                "Train a model of the torch engine.",
            )
        return self.solver

    @property
    def understudy(self) -> Actor:
        """The policy as it was at the start, in the solver's place."""
        assert self.reference is not None, "the method needs the reference and does not say so"
        return Actor(self.reference, self.actor.renderer, Behaviour.REFERENCE)

    # ------------------------------------------------------------------ attempts

    async def first_attempts(
        self, task: Task, n: int, by: Speaker | None = None, name: object = ""
    ) -> list[Attempt]:
        """n attempts at a task from its question alone; its prompt is computed once.

        Args:
            by: who makes them, where it is not the solver.
        """
        speaker = by or self.solver
        shown = self._opening(task, speaker, "solver")
        return await self._attempts(task, speaker, shown, n, (task.id, "solver", 0, name))

    async def again(self, task: Task, attempt: Attempt, index: int, name: object) -> Attempt:
        """Another attempt in the same conversation, after an instruction that reveals nothing."""
        gate = self.conditions["again"]
        view = View(gate, {Sees.QUESTION: task.question, Sees.ATTEMPT: attempt.text})
        last = attempt.turns[-1]
        shown = self.solver.follow(last, self.prompts["again"].instruction(view), gate | last.sees)
        [second] = await self._attempts(
            task, self.solver, shown, 1, (task.id, "again", index, name), index
        )
        return second

    async def revise(self, task: Task, critique: Critique, index: int, name: object) -> Attempt:
        """A fresh attempt that is shown a critique; it knows what the critic knew."""
        return await self._after(task, "revision", critique, "", index, name)

    async def refine(
        self, task: Task, attempt: Attempt, critique: Critique, index: int, name: object
    ) -> Attempt:
        """An attempt that is shown the one before it and a critique of it."""
        return await self._after(task, "refine", critique, attempt.text, index, name)

    async def _after(
        self, task: Task, prompt: str, critique: Critique, before: str, index: int, name: object
    ) -> Attempt:
        gate = self.conditions[prompt]
        fields = {
            Sees.QUESTION: task.question,
            Sees.ATTEMPT: before,
            Sees.CRITIQUE: critique.text,
        }
        sees = gate | critique.turn.sees
        shown = self.solver.open(self.prompts[prompt], View(gate, fields), sees)
        names = (task.id, prompt, index, name)
        [attempt] = await self._attempts(
            task, self.solver, shown, 1, names, index, critique=critique.index
        )
        return attempt

    async def mend(self, task: Task, wrong: str, prompt: str, name: object = 0) -> Attempt:
        """An attempt under a prompt (`repair`, `given`) that shows somebody's wrong answer."""
        shown = self._opening(task, self.solver, prompt, wrong)
        [attempt] = await self._attempts(task, self.solver, shown, 1, (task.id, prompt, 0, name))
        return attempt

    async def go_on(self, task: Task, wrong: str, name: object = 0) -> Attempt:
        """An attempt that begins with words put into the solver's mouth; graded with them."""
        shown = self.solver.begin(self._opening(task, self.solver, "solver"), wrong)
        names = (task.id, "go on", wrong, name)
        [attempt] = await self._attempts(task, self.solver, shown, 1, names, begun=wrong)
        return attempt

    def _opening(self, task: Task, speaker: Speaker, prompt: str, attempt: str = "") -> Shown:
        sees = self.conditions[prompt]
        fields = {
            Sees.QUESTION: task.question,
            Sees.ATTEMPT: attempt,
            Sees.OUTCOME: OUTCOMES[Grade.WRONG],
        }
        return speaker.open(self.prompts[prompt], View(sees, fields), sees)

    async def _attempts(
        self,
        task: Task,
        speaker: Speaker,
        shown: Shown,
        n: int,
        names: tuple[object, ...],
        index: int = 0,
        critique: int | None = None,
        begun: str = "",
    ) -> list[Attempt]:
        self._check_room(task, str(names[1]), len(shown.prompt_ids), self.sampling.max_tokens)
        turns = await speaker.say(shown, n, self.sampling.max_tokens, self.draw(*names))
        return await asyncio.gather(
            *(
                self._play(task, speaker, turn, (*names, i), index, critique, begun)
                for i, turn in enumerate(turns)
            )
        )

    async def _play(
        self,
        task: Task,
        speaker: Speaker,
        first: Turn,
        names: tuple[object, ...],
        index: int,
        critique: int | None,
        begun: str,
    ) -> Attempt:
        """Turn by turn from the first one to the result."""
        turns = [first]
        said = speaker.joined(begun, first) if begun else first.text
        story = [said]
        play = Guarded(self.env, task)
        try:
            while (step := await play.step(said)).result is None:
                story.append(f"[{step.observation[:OBSERVATION_SHOWN]}]")
                shown = speaker.follow(turns[-1], step.observation, first.sees)
                if len(turns) >= self.env.max_turns or self._too_long(shown):
                    step = Step(result=await play.out_of_turns())
                    break
                draw = self.draw(*names, "turn", len(turns))
                [turn] = await speaker.say(shown, 1, self.sampling.max_tokens, draw)
                turns.append(turn)
                said = turn.text
                story.append(said)
        finally:
            fault = await play.close()
        text = "\n".join(story)
        answer, verdict, broken = play.read(text, later=index > 0)
        result = fault or broken or step.result
        assert result is not None
        return Attempt(
            index=index,
            turns=tuple(turns),
            grade=result.grade,
            reward=result.reward,
            text=text,
            critique=critique,
            feedback=result.feedback,
            answer=answer,
            verdict=verdict,
        )

    # ------------------------------------------------------------------ room

    def check_question(self, task: Task) -> None:
        """Raise TooLong where a task's question leaves no room for an answer."""
        shown = self._opening(task, self.solver, "solver")
        self._check_room(task, "solver", len(shown.prompt_ids), self.sampling.max_tokens)

    def _check_room(self, task: Task, prompt: str, tokens: int, answer: int) -> None:
        limit = self.sampling.max_context
        if limit is not None and tokens + answer > limit:
            raise TooLong(
                f"The {prompt} prompt of task {task.id} has {tokens} tokens: with {answer} to "
                f"sample, more than {limit}.",
                "Leave the task out, or change sampling.max_context or sampling.max_tokens.",
            )

    def _too_long(self, shown: Shown) -> bool:
        limit = self.sampling.max_context
        return limit is not None and len(shown.prompt_ids) + self.sampling.max_tokens > limit

    # ------------------------------------------------------------------ critiques

    async def criticise(
        self, task: Task, attempt: Attempt, index: int, name: object, prompt: str = "critic"
    ) -> Critique:
        """The critic reads a whole attempt, as far as its condition allows, and comments on it."""
        sees = self.conditions[prompt]
        view = View(
            sees,
            {
                Sees.QUESTION: task.question,
                Sees.ATTEMPT: attempt.text,
                Sees.OUTCOME: OUTCOMES.get(attempt.grade, ""),
                Sees.FEEDBACK: attempt.feedback,
                Sees.REFERENCE: task.reference,
            },
        )
        shown = self.critic.open(self.prompts[prompt], view, sees)
        limit = self.sampling.critic_max_tokens
        self._check_room(task, prompt, len(shown.prompt_ids), limit)
        draw = self.draw(task.id, prompt, index, name)
        [turn] = await self.critic.say(shown, 1, limit, draw)
        # an endpoint may give no count: then the solver's stands for its own
        tokens = turn.sampled_tokens or self.solver.length(turn.text)
        size = self.env.critique_size(turn.text, tokens)
        return Critique(index, attempt.index, turn, turn.text, size)
