"""The torch engine: one process, one device, full fine-tuning or LoRA."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from inwit.engines.base import OptimizerSettings, Sampling, UpdateStats
from inwit.engines.torch.backbone import Backbone
from inwit.engines.torch.learner import Learner, score
from inwit.engines.torch.loading import Loaded, digest
from inwit.engines.torch.process import hold_memory, spare_collector
from inwit.engines.torch.sampler import Sampler
from inwit.errors import InwitError
from inwit.objectives import Objective
from inwit.rows import Completion, Floats, Ids, Row

FastPath = Literal[
    "packing",
    "sharing",
    "in_place",
    "adding",
    "blocked_draw",
    "packed_weights",
    "retaining",
    "cascade",
    "holding",
]
"""`packing`: rows in one pass without padding. `sharing`: what rows have in common computed once.
`in_place`: log-probs and their gradient without copies of the logits. `adding`: weights' gradients
added up by the products that make them. `blocked_draw`: tokens of a large vocabulary drawn by
blocks. `packed_weights`: weights laid out by MKL for decoding. `retaining`: prompts that go on from
a finished sequence compute the rest. `cascade`: a prompt held once, and read once a token, for all
its samples. `holding`: freed memory is kept by the process. None of them changes a result beyond
rounding."""

PASS_LEAST, PASS_MOST = 160 << 20, 2 << 30
"""Bytes that a training pass may take, about: as many as weights, gradients and the optimizer's
state, within these bounds. Smaller passes of a large model spend their time on adding gradients."""

STATE = 16
"""Bytes of a parameter in training: itself, its gradient, and two moments in fp32."""

SAVED = ("model.safetensors", "optimizer.pt", "random.pt")
"""What a checkpoint holds beside engine.json, which knows their sums."""


class LoraSettings(BaseModel):
    """Low-rank adapters (peft). The reference policy is the base with the adapter off."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    targets: str | tuple[str, ...] = Field("all-linear", description="modules that get one")


class TorchSettings(BaseModel):
    """Settings of the torch engine, written in the recipe's `[engine]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["torch"] = "torch"
    device: str = Field("auto", description="auto, cpu, or cuda")
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = Field(0, ge=0, description="CPU threads; 0 leaves torch's choice")
    max_batch: int = Field(256, ge=1, description="sequences decoded at once")
    cache_tokens: int = Field(1 << 18, ge=1, description="tokens that the key-value cache holds")
    tokens_at_once: int = Field(
        0, ge=0, description="tokens in one training pass; 0: by the memory that they take"
    )
    gradient_checkpointing: bool = False
    without: tuple[FastPath, ...] = Field(
        (), description="fast paths to leave out, to find what makes a difference"
    )
    lora: LoraSettings | None = None

    def pick_device(self) -> torch.device:
        """The device asked for. Raises InwitError where this machine does not have it."""
        wanted = self.device
        if wanted == "auto":
            wanted = "cuda" if torch.cuda.is_available() else "cpu"
        if wanted.startswith("cuda") and not torch.cuda.is_available():
            raise InwitError(
                "The recipe asks for a CUDA device, and torch sees none.",
                'Set engine.device = "cpu", or install a CUDA build of torch.',
            )
        try:
            return torch.device(wanted)
        except RuntimeError as error:
            raise InwitError(
                f"No device is called '{wanted}'.", "Use auto, cpu or cuda."
            ) from error


class TorchPolicy:
    """Sampling and scoring with one backbone. Frozen, unless an engine trains it."""

    def __init__(self, backbone: Backbone, settings: TorchSettings) -> None:
        self.backbone = backbone
        self.tokens_at_once = settings.tokens_at_once or _tokens_at_once(backbone)
        self.sampler = Sampler(
            backbone,
            settings.max_batch,
            self.tokens_at_once,
            settings.cache_tokens,
            settings.without,
        )

    @classmethod
    def frozen(cls, loaded: Loaded, settings: TorchSettings) -> TorchPolicy:
        """A policy that is only asked, such as an external critic."""
        model: torch.nn.Module = loaded.model.to(settings.pick_device())
        model.requires_grad_(False)
        return cls(Backbone(loaded.model, without=settings.without), _forgetful(settings))

    async def sample(self, prompt_ids: Ids, n: int, sampling: Sampling) -> list[Completion]:
        return await self.sampler.sample(prompt_ids, n, sampling)

    async def logprobs(self, rows: Sequence[Row], temperature: float = 1.0) -> list[Floats]:
        return score(self.backbone, rows, temperature, self.tokens_at_once)


class TorchEngine:
    """See `Engine`.

    Args:
        loaded: the model to train.
        keep_reference: hold the policy as it is now, for `reference()` and KL terms. With LoRA this
            costs nothing; with full fine-tuning it is a second copy of the weights.
        seed: of LoRA's random start.
    """

    def __init__(
        self,
        loaded: Loaded,
        settings: TorchSettings,
        *,
        keep_reference: bool = False,
        seed: int = 0,
    ) -> None:
        if settings.threads:
            torch.set_num_threads(settings.threads)
        spare_collector()
        self.tokenizer = loaded.tokenizer
        self.settings = settings
        self._peft: Any = None
        device = settings.pick_device()
        if device.type == "cpu" and "holding" not in settings.without:
            hold_memory()
        loaded.model.to(device)
        self.start = digest(loaded.model)
        self._adapter = settings.lora.model_dump(mode="json") if settings.lora else None
        reference_model = loaded.model
        if settings.lora:
            self._add_adapter(loaded, settings.lora, seed)
        elif keep_reference:
            reference_model = copy.deepcopy(loaded.model).requires_grad_(False)
        if settings.gradient_checkpointing:
            loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
            loaded.model.enable_input_require_grads()
            # transformers checkpoints in training mode only; there is no dropout left to mind
            loaded.model.train()
        self._policy = TorchPolicy(Backbone(loaded.model, without=settings.without), settings)
        self._learner = Learner(self._policy.backbone, self._policy.tokens_at_once)
        self._reference: TorchPolicy | None = None
        if settings.lora or keep_reference:
            off = self._peft.disable_adapter if self._peft else nullcontext
            backbone = Backbone(reference_model, off, settings.without)
            self._reference = TorchPolicy(backbone, _forgetful(settings))

    def _add_adapter(self, loaded: Loaded, lora: LoraSettings, seed: int) -> None:
        from peft import LoraConfig, get_peft_model

        targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=0.0,
            target_modules=targets,
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            try:
                self._peft = get_peft_model(loaded.model, config)
            except ValueError as error:
                raise InwitError(
                    f"LoRA does not fit the model: {error}", "Check engine.lora.targets."
                ) from error
        self._peft.eval()

    @property
    def longest(self) -> int:
        """The most positions, prompt and completion together, that the model was made for."""
        return self._policy.backbone.longest

    async def sample(self, prompt_ids: Ids, n: int, sampling: Sampling) -> list[Completion]:
        return await self._policy.sample(prompt_ids, n, sampling)

    async def logprobs(self, rows: Sequence[Row], temperature: float = 1.0) -> list[Floats]:
        return await self._policy.logprobs(rows, temperature)

    async def update(
        self,
        rows: Sequence[Row],
        objective: Objective,
        optimizer: OptimizerSettings,
        total_steps: int,
    ) -> UpdateStats:
        if self._policy.sampler.busy:
            raise RuntimeError("update was called while sampling was under way")
        self._policy.sampler.release()
        if self._reference:
            self._reference.sampler.release()
        reference = self.reference().backbone if objective.kl else None
        return self._learner.update(rows, objective, optimizer, total_steps, reference)

    def reference(self) -> TorchPolicy:
        if self._reference is None:
            raise InwitError(
                "The reference policy was not kept.", "Build the engine with keep_reference=True."
            )
        return self._reference

    # ------------------------------------------------------------------ saving

    def _trainable(self) -> dict[str, Tensor]:
        model = self._policy.backbone.model
        return {name: p for name, p in model.named_parameters() if p.requires_grad}

    def save(self, folder: Path) -> None:
        self._policy.sampler.release()  # a run that goes on from here has nothing retained either
        tensors = {name: p.detach().cpu().contiguous() for name, p in self._trainable().items()}
        save_file(tensors, folder / "model.safetensors")
        optimizer = self._learner.optimizer
        torch.save(optimizer.state_dict() if optimizer else None, folder / "optimizer.pt")
        random = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            random["cuda"] = torch.cuda.get_rng_state()
        torch.save(random, folder / "random.pt")
        state = {
            "updates": self._learner.updates,
            "start": self.start,
            "adapter": self._adapter,
        }
        state["sha256"] = {name: _sha256(folder / name) for name in SAVED}
        (folder / "engine.json").write_text(json.dumps(state, indent=2), encoding="utf-8")

    def load(self, folder: Path, optimizer: OptimizerSettings | None = None) -> None:
        state = self._read_state(folder)
        try:
            tensors = load_file(folder / "model.safetensors")
        except SafetensorError as error:
            raise _broken(folder, str(error)) from error
        own = self._trainable()
        if set(tensors) != set(own):
            odd = sorted(set(tensors) ^ set(own))[0]
            raise _broken(folder, f"it belongs to another model (tensor {odd})")
        for name, parameter in own.items():
            if tensors[name].shape != parameter.shape:
                raise _broken(
                    folder,
                    f"{name} is {tuple(tensors[name].shape)}, the model's {tuple(parameter.shape)}",
                )
        if state.get("adapter") != self._adapter:
            raise _broken(folder, f"its adapter is {state.get('adapter')}, ours {self._adapter}")
        if self._policy.sampler.busy:
            raise RuntimeError("load was called while sampling was under way")
        self._policy.sampler.release()
        with torch.no_grad():
            for name, parameter in own.items():
                parameter.copy_(tensors[name])
        saved = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
        self._learner.optimizer = None  # saved before the first update, there is none to go on with
        if saved is not None:
            self._learner.prepare(optimizer or OptimizerSettings()).load_state_dict(saved)
        random = torch.load(folder / "random.pt", map_location="cpu", weights_only=True)
        torch.set_rng_state(random["cpu"])
        if "cuda" in random and torch.cuda.is_available():
            torch.cuda.set_rng_state(random["cuda"])
        self._learner.updates = state["updates"]

    def _read_state(self, folder: Path) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((folder / "engine.json").read_text("utf-8"))
            for name in SAVED:
                if _sha256(folder / name) != state["sha256"][name]:
                    raise _broken(folder, f"{name} is not what was written")
            start, _ = state["start"], int(state["updates"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _broken(folder, f"{type(error).__name__}: {error}") from error
        if start != self.start:
            raise _broken(folder, "the run began from other weights than the recipe now names")
        return state

    async def recover(self) -> None:
        raise RuntimeError("nothing of an engine in this process is lost while it runs")

    def close(self) -> None:
        """Nothing is held elsewhere."""

    def export(self, folder: Path) -> None:
        model = self._policy.backbone.model
        if self._peft is not None:
            model = copy.deepcopy(self._peft).merge_and_unload()
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _forgetful(settings: TorchSettings) -> TorchSettings:
    """For a policy that nobody goes on with; what it kept would outlive a checkpoint."""
    return settings.model_copy(update={"without": (*settings.without, "retaining")})


def _tokens_at_once(backbone: Backbone) -> int:
    """Tokens of a training pass: as many as its memory has room for.

    For the gradient each layer keeps some twelve vectors of the hidden size and four of the
    feed-forward's; logits are kept once.
    """
    config = backbone.config
    wide = int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)
    layers = int(config.num_hidden_layers) * (12 * int(config.hidden_size) + 4 * wide)
    parameters = sum(int(p.numel()) for p in backbone.model.parameters())
    room = min(max(STATE * parameters, PASS_LEAST), PASS_MOST)
    tokens = room // (4 * (layers + backbone.vocabulary))
    return max(512, min(16_384, tokens))


def _broken(folder: Path, why: str) -> InwitError:
    return InwitError(
        f"The checkpoint {folder} cannot be loaded: {why}.", "Resume from an earlier one."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
