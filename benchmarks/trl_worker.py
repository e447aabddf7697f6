"""TRL's GRPOTrainer doing a case's work, one step each time it is asked for one.

Runs in the peer's virtual environment and imports nothing of inwit. TRL is given the fastest
settings that were found for it on a CPU, where it has a choice that does not change the work:

- no gradient checkpointing (its default; a quarter less to compute);
- fp32 and the fused AdamW, as inwit has;
- no KL term and one update a batch, so neither reference nor old log-probs are computed;
- the length is forced by taking away its end-of-sequence ids. `min_new_tokens` would force it too,
  at the price of one more pass over all logits for each token;
- rows in one pass, or in passes of `rows_at_once` with accumulated gradients (see `cases.py`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks import wire

NEVER = 1 << 30
"""An id that no token has: as the end of a sequence, it never comes."""


class Clock:
    """Seconds and tokens of the step under way."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.started = time.perf_counter()
        self.sampling = 0.0
        self.sampled = 0
        self.trained = 0


class TimedTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with a clock beside it; it computes what it always does."""

    clock: Clock
    job: wire.Job

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """TRL samples here, at the first pass of a step; later passes find their share ready."""
        start = time.perf_counter()
        inputs = super()._prepare_inputs(generation_batch)
        self.clock.sampling += time.perf_counter() - start
        return inputs

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        widths = set(inputs["prompt_mask"].sum(-1).tolist())
        if widths != {self.job.prompt_tokens}:
            raise ValueError(f"trained under prompts of {widths} tokens")
        mask = inputs["completion_mask"]
        self.clock.trained += int(mask[inputs["advantages"] != 0].sum())
        return super().compute_loss(model, inputs, *args, **kwargs)


ENOUGH = object()
"""In the place of a request where none will come."""


class StepOnRequest(TrainerCallback):  # type: ignore[misc]
    """Holds the trainer between steps until the coordinator asks for the next."""

    def __init__(self, line: wire.Line, clock: Clock) -> None:
        self._line = line
        self._requests: Iterator[object] = line.requests()
        self._clock = clock

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if next(self._requests, ENOUGH) is ENOUGH:
            raise SystemExit
        self._clock.clear()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Comes after the optimizer's step and after the gradients were dropped."""
        clock = self._clock
        total = time.perf_counter() - clock.started
        self._line.say(
            wire.Step(
                sampling=clock.sampling,
                training=total - clock.sampling,
                sampled=clock.sampled,
                trained=clock.trained,
                peak_mb=wire.peak_mb(),
            )
        )


def settings(job: wire.Job, folder: str) -> trl.GRPOConfig:
    rows = job.options.get("rows_at_once") or job.completions
    if job.completions % rows:
        raise ValueError(f"{job.completions} completions do not split into passes of {rows}")
    return trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=job.completions // rows,
        num_generations=job.group,
        max_completion_length=job.completion_tokens,
        # one more, never made: to end its training would take time from the other's last step
        max_steps=job.steps + 1,
        num_iterations=1,
        beta=0.0,
        epsilon=wire.CLIP[0],
        epsilon_high=wire.CLIP[1],
        loss_type="dapo",  # the mean over the batch's tokens, as in inwit
        scale_rewards="group",
        temperature=1.0,
        generation_kwargs={"eos_token_id": NEVER, **job.options.get("generation", {})},
        optim="adamw_torch_fused",
        learning_rate=wire.LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=wire.BETAS[0],
        adam_beta2=wire.BETAS[1],
        adam_epsilon=wire.EPS,
        weight_decay=0.0,
        max_grad_norm=wire.MAX_GRAD_NORM,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        dataloader_pin_memory=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **job.options.get("config", {}),
    )


def trainer_of(job: wire.Job, line: wire.Line, folder: str) -> TimedTrainer:
    tokenizer = AutoTokenizer.from_pretrained(job.folder)
    model = AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    clock = Clock()

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        clock.sampled += sum(map(len, completion_ids))
        return [wire.reward(ids) for ids in completion_ids]

    trainer = TimedTrainer(
        model=model,
        args=settings(job, folder),
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": list(job.texts)}),
        processing_class=tokenizer,
        callbacks=[StepOnRequest(line, clock)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.clock, trainer.job = clock, job
    trainer.eos_token_ids = [NEVER]  # else it would cut completions at an end that was sampled
    return trainer


def main() -> None:
    line = wire.Line()
    job = line.job()
    torch.set_num_threads(job.threads)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(job, line, folder)
        prompts = trainer.processing_class(text=list(job.texts))["input_ids"]
        wire.check_prompts(prompts, job)
        versions = {m.__name__: m.__version__ for m in (torch, transformers, trl)}
        line.say(wire.Ready(wire.digest(prompts), versions))
        trainer.train()


if __name__ == "__main__":
    main()
