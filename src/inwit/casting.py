"""Who plays what: a recipe's model, tokenizer, prompts and critic, loaded and checked."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from pydantic import ValidationError

from inwit import seeding
from inwit.engines import Engine, Policy
from inwit.engines.openai import KEYS, ChatEndpoint, EndpointError, OpenAISettings
from inwit.engines.tinker import TinkerSettings
from inwit.engines.torch import TorchEngine, TorchPolicy, TorchSettings, load_model
from inwit.engines.torch.loading import digest, load_tokenizer
from inwit.envs import Split, Task
from inwit.errors import InwitError
from inwit.methods.base import ExternalCritic
from inwit.playing import Stage
from inwit.recipe import Recipe
from inwit.roles import CONDITIONS, Prompt, Renderer, load_prompt
from inwit.rows import Behaviour, Condition
from inwit.speaking import Actor, Correspondent, Speaker

T = TypeVar("T")


@dataclass(frozen=True)
class Cast:
    """All that it takes to play a recipe's roles, and to train the policy that plays them.

    Attributes:
        engine: None where the solver is behind an endpoint.
        identity: what tells this solver from others: a digest of weights, or address and name.
        reference: the policy as it was at the start, for a method that needs it.
        critic_name: `own`, or which other model criticises.
    """

    recipe: Recipe
    engine: Engine | None
    solver: Speaker
    critic: Speaker
    prompts: Mapping[str, Prompt]
    conditions: Mapping[str, Condition]
    identity: str
    critic_name: str
    reference: Policy | None = None

    @classmethod
    def of(
        cls, recipe: Recipe, critic: ExternalCritic | None = None, *, learns: bool = False
    ) -> Cast:
        """Load and check. Raises InwitError before anything is written.

        Args:
            critic: who criticises, where it is not whom the recipe says.
            learns: whether the policy is to be trained, and the method's reference is needed.
        """
        conditions = {**CONDITIONS, **recipe.method.conditions}
        folders = (recipe.prompts, recipe.env.prompts)
        prompts = {name: load_prompt(name, folders) for name in conditions}
        for name, prompt in prompts.items():
            prompt.check(conditions[name])
        engine: Engine | None = None
        needs = recipe.method.needs_reference
        solver: Speaker
        if isinstance(recipe.engine, OpenAISettings):
            endpoint = _endpoint(recipe.engine, recipe.model.path, recipe)
            solver, identity = Correspondent(endpoint), f"{recipe.engine.url} {endpoint.model}"
        else:
            engine = _engine(recipe, recipe.method.frozen_critic or (learns and needs))
            solver = Actor(engine, Renderer(engine.tokenizer, recipe.model.template))
            identity = engine.start
        other = critic or recipe.method.external_critic
        with ExitStack() as given_up:
            if engine is not None:
                given_up.callback(engine.close)
            heard, named = _critic(recipe, other, engine, solver)
            anchor = engine.reference() if engine and learns and needs else None
            cast = cls(recipe, engine, solver, heard, prompts, conditions, identity, named, anchor)
            cast._check_words()
            given_up.pop_all()
        return cast

    async def closing(self, work: Coroutine[Any, Any, T]) -> T:
        """What the work returns; its connections to endpoints are closed in every case."""
        try:
            return await work
        finally:
            for speaker in (self.solver, self.critic):
                if isinstance(speaker, Correspondent):
                    await speaker.endpoint.aclose()
            if self.engine is not None:
                self.engine.close()

    @property
    def learner(self) -> Engine:
        """The engine that trains. Raises InwitError where there is none."""
        if self.engine is None:
            raise InwitError(
                "A model behind an endpoint shows neither tokens nor log-probs: it cannot learn.",
                'Train a model of the torch engine, [engine] name = "torch", or of the tinker one.',
            )
        return self.engine

    def _check_words(self) -> None:
        """A tokenizer that cannot write the questions is to show it now."""
        task = _first_task(self.recipe)
        try:
            self.solver.length(task.question)
        except Exception as error:
            raise InwitError(
                f"The tokenizer of '{self.recipe.model.path}' cannot write the question of task "
                f"{task.id}: {error}",
                "The model does not belong to this environment.",
            ) from error

    def stage(self, *scene: object, temperature: float | None = None) -> Stage:
        """Where episodes are played; each scene has random choices of its own."""
        recipe, engine = self.recipe, self.engine
        sampling = recipe.sampling
        if sampling.max_context is None and engine is not None:
            sampling = sampling.model_copy(update={"max_context": engine.longest})
        if temperature is not None:  # evaluation may be greedy, which training may not
            sampling = sampling.model_copy(update={"temperature": temperature})
        return Stage(
            env=recipe.env,
            solver=self.solver,
            critic=self.critic,
            prompts=self.prompts,
            conditions=self.conditions,
            sampling=sampling,
            seed=recipe.seed,
            scene=scene,
            reference=self.reference,
        )


def _engine(recipe: Recipe, keep_reference: bool) -> Engine:
    """The engine that the recipe names, with its model."""
    settings, path = recipe.engine, recipe.model.path
    seed = seeding.derive(recipe.seed, "lora")
    if isinstance(settings, TinkerSettings):
        if importlib.util.find_spec("tinker") is None:
            raise InwitError(
                "The tinker engine needs the package tinker.", "Run: pip install 'inwit[tinker]'"
            )
        from inwit.engines.tinker.engine import TinkerEngine

        tokenizer, longest = load_tokenizer(path, seed=recipe.seed)
        return TinkerEngine(settings, tokenizer, path, longest, seed)
    assert isinstance(settings, TorchSettings)
    loaded = load_model(path, seed=recipe.seed, dtype=settings.dtype)
    return TorchEngine(loaded, settings, keep_reference=keep_reference, seed=seed)


def _critic(
    recipe: Recipe, external: ExternalCritic | None, engine: Engine | None, solver: Speaker
) -> tuple[Speaker, str]:
    """Who criticises, and a name that tells this critic from others."""
    if external and external.url:
        settings = _reached(external.url, recipe)
        endpoint = _endpoint(settings, external.model, recipe, _keys_for(settings, recipe))
        return Correspondent(endpoint), f"{external.url} {endpoint.model}"
    if external:
        own = recipe.engine if isinstance(recipe.engine, TorchSettings) else TorchSettings()
        loaded = load_model(external.model, seed=recipe.seed, dtype=own.dtype)
        policy = TorchPolicy.frozen(loaded, own)
        named = f"{external.model} {digest(loaded.model)[:12]}"
        return Actor(policy, Renderer(loaded.tokenizer), Behaviour.EXTERNAL), named
    if recipe.method.frozen_critic and engine is not None and isinstance(solver, Actor):
        return Actor(engine.reference(), solver.renderer, Behaviour.REFERENCE), "as at the start"
    return solver, "own"


CRITIC_KEY = "INWIT_CRITIC_API_KEY"


def _keys_for(critic: OpenAISettings, recipe: Recipe) -> Sequence[str]:
    """Where a critic's key is: the solver's goes to the solver's own server and to no other."""
    own = recipe.engine
    same = not isinstance(own, OpenAISettings) or _origin(own.url) == _origin(critic.url)
    return (CRITIC_KEY, *KEYS) if same else (CRITIC_KEY,)


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def _endpoint(
    settings: OpenAISettings, model: str, recipe: Recipe, keys: Sequence[str] = KEYS
) -> ChatEndpoint:
    """The endpoint, having answered once; without a model's name, the only one that it has."""

    async def ask() -> ChatEndpoint:
        name = model
        if not name:
            nameless = ChatEndpoint(settings, "", keys)
            known = await nameless.models()
            await nameless.aclose()
            if len(known) != 1:
                raise EndpointError(
                    f"The endpoint {settings.url} has {len(known)} models: {', '.join(known[:8])}.",
                    "Say which one: --model NAME.",
                )
            [name] = known
        endpoint = ChatEndpoint(settings, name, keys)
        await endpoint.check(_first_task(recipe).question)
        return endpoint

    return asyncio.run(ask())


def _reached(url: str, recipe: Recipe) -> OpenAISettings:
    """Another endpoint, asked as the recipe's own is, if it has one."""
    own = recipe.engine.model_dump() if isinstance(recipe.engine, OpenAISettings) else {}
    try:
        return OpenAISettings(**{**own, "url": url})
    except ValidationError as error:
        reason = error.errors()[0]["ctx"]["error"]
        raise InwitError(
            f"'{url}' {reason}.", "Give the API's root, such as http://…/v1."
        ) from error


def _first_task(recipe: Recipe) -> Task:
    splits = (Split.DEV, Split.TEST, Split.TRAIN)
    first = (task for split in splits for task in recipe.env.tasks(split)[:1])
    task: Task | None = next(first, None)
    if task is None:
        raise InwitError("The environment has no tasks.", "Check its settings.")
    return task
