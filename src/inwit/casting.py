"""Who plays what: a recipe's model, tokenizer, prompts and critic, loaded and checked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from inwit import seeding
from inwit.engines.openai import ChatEndpoint
from inwit.engines.torch import TorchEngine, TorchPolicy, load_model
from inwit.envs import Split, Task
from inwit.errors import InwitError
from inwit.playing import Actor, Correspondent, Speaker, Stage
from inwit.recipe import Recipe
from inwit.roles import CONDITIONS, Prompt, Renderer, load_prompt
from inwit.rows import Behaviour, Condition


@dataclass(frozen=True)
class Cast:
    """All that it takes to play a recipe's roles, and to train the policy that plays them."""

    recipe: Recipe
    engine: TorchEngine
    solver: Actor
    critic: Speaker
    prompts: Mapping[str, Prompt]
    conditions: Mapping[str, Condition]

    @classmethod
    def of(cls, recipe: Recipe) -> Cast:
        """Load and check. Raises InwitError before anything is written."""
        conditions = {**CONDITIONS, **recipe.method.conditions}
        folders = (recipe.prompts, recipe.env.prompts)
        prompts = {name: load_prompt(name, folders) for name in conditions}
        for name, prompt in prompts.items():
            prompt.check(conditions[name])
        loaded = load_model(recipe.model.path, seed=recipe.seed, dtype=recipe.engine.dtype)
        renderer = Renderer(loaded.tokenizer, recipe.model.template)
        engine = TorchEngine(
            loaded,
            recipe.engine,
            keep_reference=recipe.method.needs_reference,
            seed=seeding.derive(recipe.seed, "lora"),
        )
        solver = Actor(engine, renderer)
        cast = cls(recipe, engine, solver, _critic(recipe, engine, solver), prompts, conditions)
        cast._check_words()
        return cast

    def _check_words(self) -> None:
        """A tokenizer that cannot write the questions is to show it now."""
        splits = (Split.DEV, Split.TEST, Split.TRAIN)
        first = (task for split in splits for task in self.recipe.env.tasks(split)[:1])
        task: Task | None = next(first, None)
        if task is None:
            raise InwitError("The environment has no tasks.", "Check its settings.")
        try:
            self.solver.renderer.completion_ids(task.question)
        except Exception as error:
            raise InwitError(
                f"The tokenizer of '{self.recipe.model.path}' cannot write the question of task "
                f"{task.id}: {error}",
                "The model does not belong to this environment.",
            ) from error

    def stage(self, *scene: object, temperature: float | None = None) -> Stage:
        """Where episodes are played; each scene has random choices of its own."""
        sampling = self.recipe.sampling
        if sampling.max_context is None:
            sampling = sampling.model_copy(update={"max_context": self.engine.longest})
        if temperature is not None:  # evaluation may be greedy, which training may not
            sampling = sampling.model_copy(update={"temperature": temperature})
        return Stage(
            env=self.recipe.env,
            solver=self.solver,
            critic=self.critic,
            prompts=self.prompts,
            conditions=self.conditions,
            sampling=sampling,
            seed=self.recipe.seed,
            scene=scene,
        )


def _critic(recipe: Recipe, engine: TorchEngine, solver: Actor) -> Speaker:
    method = recipe.method
    if (external := method.external_critic) and external.url:
        endpoint = ChatEndpoint(external.url, external.model)
        asyncio.run(endpoint.check())
        return Correspondent(endpoint)
    if external:
        loaded = load_model(external.model, seed=recipe.seed, dtype=recipe.engine.dtype)
        policy = TorchPolicy.frozen(loaded, recipe.engine)
        return Actor(policy, Renderer(loaded.tokenizer), Behaviour.EXTERNAL)
    if method.frozen_critic:
        return Actor(engine.reference(), solver.renderer, Behaviour.REFERENCE)
    return solver
