"""The sampler: requests of many episodes decoded together in one running batch.

A request asks for n completions of one prompt. Each distinct prompt is computed once (prefill; what
prompts have in common too) and copied to its n samples; then all sequences advance one token a
pass. Who is finished leaves, who waits joins at the next pass. Log-probs are recorded as tokens are
drawn.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from inwit.engines.base import Sampling
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.cache import Demand, Prefilled, SlotCache, closing
from inwit.engines.torch.drawing import BLOCK, blocked_draw, plain_draw
from inwit.engines.torch.retaining import Retained
from inwit.errors import InwitError
from inwit.rows import Completion, Ids, Stop
from inwit.seeding import derive

SETTLED = 4
"""Rounds of the event loop without a new request after which the batch goes on."""

PASSES = 32
"""Most passes before the event loop gets a turn: environments may be waiting for their replies."""


@dataclass(slots=True)
class Request:
    """n completions of one prompt, and the future that is given them once all are there."""

    prompt: Ids
    sampling: Sampling
    n: int
    done: asyncio.Future[list[Completion]]
    results: dict[int, Completion] = field(default_factory=dict)


class Slots:
    """What the running batch knows of each sequence: tensors over slots, of which n are in use."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.n = 0
        self.owner: list[tuple[Request, int]] = []
        self.capacity = capacity
        self.device = device
        none = torch.zeros(capacity, dtype=torch.long, device=device)
        self.length = none  # tokens in the cache
        self.last = none.clone()  # sampled, not yet in the cache
        self.count = none.clone()  # sampled so far
        self.limit = none.clone()
        self.stops = none[:, None] - 1
        self.temperature = torch.ones(capacity, device=device)
        self.ids = none[:, None][:, :0].clone()
        self.logprobs = torch.zeros(capacity, 0, device=device)
        self.uniform = torch.zeros(capacity, 0, device=device)

    def widen(self, tokens: int, stops: int) -> None:
        """Make room for completions of `tokens` tokens with `stops` stop ids."""
        if (more := tokens - self.ids.shape[1]) > 0:
            self.ids = torch.nn.functional.pad(self.ids, (0, more))
            self.logprobs = torch.nn.functional.pad(self.logprobs, (0, more))
            self.uniform = torch.nn.functional.pad(self.uniform, (0, more))
        if (more := stops - self.stops.shape[1]) > 0:
            self.stops = torch.nn.functional.pad(self.stops, (0, more), value=-1)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        for tensor in (
            self.length, self.last, self.count, self.limit, self.stops,
            self.temperature, self.ids, self.logprobs, self.uniform,
        ):  # fmt: skip
            tensor[targets] = tensor[sources]
        for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
            self.owner[target] = self.owner[source]


class Sampler:
    """Samples from one backbone.

    Args:
        capacity: most sequences decoded at once.
        prefill_tokens: most prompt tokens (padding included) in one prefill pass.
        cache_tokens: most tokens that the key-value cache has room for, over all sequences; one
            sequence always goes on.
        without: fast paths to leave out: `blocked_draw` (see `drawing`), `retaining`, `cascade`.
    """

    def __init__(
        self,
        backbone: Backbone,
        capacity: int = 256,
        prefill_tokens: int = 8192,
        cache_tokens: int = 1 << 18,
        without: Collection[str] = (),
    ) -> None:
        self._backbone = backbone
        blocked = "blocked_draw" not in without and backbone.vocabulary > 2 * BLOCK
        self._choose = blocked_draw if blocked else plain_draw
        retains = backbone.packs and "retaining" not in without
        self._retained = Retained() if retains else None
        # on a GPU it is many small kernels instead of one, and has not been measured there
        on_cpu = backbone.device.type == "cpu"
        self._cascade = on_cpu and backbone.packs and "cascade" not in without
        self._prefill_tokens = prefill_tokens
        self._cache_tokens = cache_tokens
        self._slots = Slots(capacity, backbone.device)
        self._cache = self._empty()
        self._waiting: deque[tuple[Request, int]] = deque()
        self._wanted: Counter[Ids] = Counter()  # of the waiting, by prompt
        self._prefilled: dict[Ids, Prefilled] = {}
        self._driver: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._slots.n)

    async def sample(self, prompt_ids: Ids, n: int, sampling: Sampling) -> list[Completion]:
        """See `Policy.sample`. Raises InwitError where the prompt leaves no room to answer."""
        if len(prompt_ids) + sampling.max_tokens > self._backbone.longest:
            raise InwitError(
                f"A prompt of {len(prompt_ids)} tokens and {sampling.max_tokens} to sample exceed "
                f"the model's {self._backbone.longest} positions.",
                "Shorten the question, or lower max_tokens.",
            )
        if not prompt_ids or sampling.max_tokens < 1 or n < 0:
            raise ValueError("sampling takes a prompt, at least one token, and a count")
        if n == 0:
            return []
        loop = asyncio.get_running_loop()
        request = Request(prompt_ids, sampling, n, loop.create_future())
        self._waiting.extend((request, i) for i in range(n))
        self._wanted[prompt_ids] += n
        if self._driver is None or self._driver.done():
            self._driver = loop.create_task(self._drive())
        return await request.done

    def release(self) -> None:
        """Give the caches' memory back, for the policy is to change; requests fill them anew."""
        if not self.busy:
            self._backbone.release()
            self._cache = self._empty()
            self._wanted.clear()
            if self._retained:
                self._retained.clear()

    def _empty(self) -> SlotCache:
        return SlotCache(self._slots.capacity, self._slots.device, self._cascade)

    async def _drive(self) -> None:
        try:
            while True:
                await self._settle()
                if not self.busy:
                    return
                with torch.inference_mode():
                    for _ in range(PASSES):
                        if not self.busy or self._advance():
                            break
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):  # an error is the callers', who all have it now
                raise

    async def _settle(self) -> None:
        """Let every episode that can go on do so, so that their requests join together."""
        quiet, before = 0, len(self._waiting)
        while quiet < SETTLED:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == before else 0
            before = len(self._waiting)

    def _fail(self, error: BaseException) -> None:
        everyone = [*self._slots.owner[: self._slots.n], *self._waiting]
        self._slots.n = 0
        self._slots.owner.clear()
        self._cache = self._empty()
        self._waiting.clear()
        self._wanted.clear()
        self._prefilled.clear()
        for request, _ in everyone:
            if not request.done.done():
                request.done.set_exception(
                    error if isinstance(error, Exception) else RuntimeError("sampling was stopped")
                )

    def _advance(self) -> bool:
        """One token for every sequence. True if one finished."""
        if joining := self._joining():
            fresh = self._admit(joining)
            if self._draw(self._first_logits(fresh), fresh):
                return True
        slots = self._slots
        if slots.n == 0:
            return False
        rows = torch.arange(slots.n, device=slots.device)
        lengths = slots.length[: slots.n]
        positions, cascade = self._cache.point(lengths)
        more = {} if cascade is None else {"cascade": cascade}
        with self._backbone.decoding(slots.n):
            hidden = self._backbone.hidden(
                slots.last[: slots.n, None],
                lengths[:, None],
                self._backbone.decode_mask(lengths, positions),
                self._cache.transformers,
                **more,
            )
            logits = self._backbone.logits(hidden[:, 0])
        lengths += 1
        return self._draw(logits, rows)

    # ------------------------------------------------------------------ joining

    def _joining(self) -> list[tuple[Request, int]]:
        """Who of the waiting finds room: a free slot, and columns for all it may sample."""
        slots = self._slots
        if not self._waiting:
            return []
        demand = self._demand(slots.owner)
        joining: list[tuple[Request, int]] = []
        for request, index in islice(self._waiting, slots.capacity - slots.n):
            demand.add(request.prompt, request.sampling.max_tokens)
            if demand.samples > 1 and demand.tokens > self._cache_tokens:
                break
            joining.append((request, index))
        return joining

    def _demand(self, samples: list[tuple[Request, int]]) -> Demand:
        demand = Demand(self._cascade)
        for request, _ in samples:
            demand.add(request.prompt, request.sampling.max_tokens)
        return demand

    def _admit(self, joining: list[tuple[Request, int]]) -> Tensor:
        """Move waiting samples into free slots; returns those slots."""
        slots = self._slots
        prompts = dict.fromkeys(request.prompt for request, _ in joining)
        self._prefill([p for p in prompts if p not in self._prefilled])
        for request, _ in joining:  # only now: were the prefill to fail, they would be told
            self._waiting.popleft()
            self._wanted[request.prompt] -= 1
        start = slots.n
        slots.owner[start:] = joining
        slots.n += len(joining)
        fresh = torch.arange(start, slots.n, device=slots.device)
        self._describe(joining, fresh)
        demand = self._demand(slots.owner)
        room = demand.slots(slots.capacity, self._cache_tokens)
        found = [self._prefilled[request.prompt] for request, _ in joining]
        asked = [request.prompt for request, _ in joining]
        self._cache.join(asked, found, fresh, room=room, columns=demand.columns)
        return fresh

    def _describe(self, joining: list[tuple[Request, int]], fresh: Tensor) -> None:
        slots = self._slots
        specs = [request.sampling for request, _ in joining]
        slots.widen(max(s.max_tokens for s in specs), max(len(s.stop_ids) for s in specs))
        device = slots.device
        slots.length[fresh] = torch.tensor([len(r.prompt) for r, _ in joining], device=device)
        slots.count[fresh] = 0
        slots.limit[fresh] = torch.tensor([s.max_tokens for s in specs], device=device)
        slots.temperature[fresh] = torch.tensor(
            [float(s.temperature) for s in specs], device=device
        )
        width = slots.stops.shape[1]
        stops = [[*s.stop_ids, *[-1] * (width - len(s.stop_ids))] for s in specs]
        slots.stops[fresh] = torch.tensor(stops, device=device)
        for slot, (request, index) in zip(fresh.tolist(), joining, strict=True):
            spec = request.sampling
            source = torch.Generator().manual_seed(derive(spec.seed, index))
            slots.uniform[slot, : spec.max_tokens] = torch.rand(
                spec.max_tokens, generator=source, dtype=torch.float32
            ).to(device)

    def _prefill(self, prompts: list[Ids]) -> None:
        """Compute prompts once each."""
        for indices in self._backbone.batches(prompts, self._prefill_tokens):
            batch = [prompts[i] for i in indices]
            cache, past = self._retained.past(batch) if self._retained else (DynamicCache(), None)
            layout = self._backbone.layout(batch, past)
            states = self._backbone.states(layout, cache)
            last = [places[-1] - layout.past for places in layout.places]
            logits = self._backbone.logits(states[last])
            for prompt, places, after in zip(batch, layout.places, logits, strict=True):
                self._prefilled[prompt] = Prefilled(cache, places, after)

    def _first_logits(self, fresh: Tensor) -> Tensor:
        """The logits after each fresh sequence's prompt; prompts nobody waits for are let go."""
        owners = [self._slots.owner[i][0] for i in fresh.tolist()]
        logits = torch.stack([self._prefilled[r.prompt].logits for r in owners])
        self._prefilled = {p: v for p, v in self._prefilled.items() if self._wanted[p]}
        return logits

    # ------------------------------------------------------------------ drawing and leaving

    def _draw(self, logits: Tensor, rows: Tensor) -> bool:
        """Draw a token for each of `rows`. True if one finished."""
        slots = self._slots
        count = slots.count[rows]
        token, logprob = self._choose(logits, slots.uniform[rows, count], slots.temperature[rows])
        slots.ids[rows, count] = token
        slots.logprobs[rows, count] = logprob
        slots.last[rows] = token
        slots.count[rows] = count + 1
        stopped = (token[:, None] == slots.stops[rows]).any(-1)
        ended = stopped | (count + 1 >= slots.limit[rows])
        if not bool(ended.any()):
            return False
        self._leave(rows[ended], stopped[ended])
        return True

    def _leave(self, ended: Tensor, stopped: Tensor) -> None:
        """Hand over finished completions and close the gaps they leave."""
        slots = self._slots
        counts = slots.count[ended].tolist()
        ids, logprobs = slots.ids[ended].tolist(), slots.logprobs[ended].tolist()
        for i, slot in enumerate(ended.tolist()):
            request, index = slots.owner[slot]
            request.results[index] = Completion(
                tuple(ids[i][: counts[i]]),
                tuple(logprobs[i][: counts[i]]),
                Stop.TOKEN if bool(stopped[i]) else Stop.LENGTH,
            )
            if len(request.results) == request.n and not request.done.done():
                request.done.set_result([request.results[k] for k in range(request.n)])
        if self._retained:
            self._retain(ended)
        staying = torch.ones(slots.n, dtype=torch.bool, device=slots.device)
        staying[ended] = False
        slots.n, movers, holes = closing(staying)
        slots.move(movers, holes)
        del slots.owner[slots.n :]
        self._cache.leave(movers, holes, slots.length[: slots.n])

    def _retain(self, ended: Tensor) -> None:
        """Keep what finished sequences have in the cache: all but their last token."""
        assert self._retained is not None
        slots, sequences = self._slots, []
        ids, fed = slots.ids[ended].tolist(), (slots.count[ended] - 1).tolist()
        for i, slot in enumerate(ended.tolist()):
            sequences.append(slots.owner[slot][0].prompt + tuple(ids[i][: fed[i]]))
        self._retained.keep(sequences, ended.tolist(), self._cache)
