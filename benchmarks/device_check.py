"""Does the torch engine hold its contract on this device, and how fast is it there?

    python benchmarks/device_check.py --device cuda --json
    python benchmarks/device_check.py --model runs/smollm2/model --prompt-tokens 60

One run: sample groups of completions, update on them, sample again. Reported: step-0 parity (the
largest difference between sampler and learner on one token, nats), the worst later one, tokens
sampled and trained a second (median over the steps after the first), peak memory. Without --model,
a random Qwen3 of about 260,000 parameters on the CPU, and of about 140 million on CUDA.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import time
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from inwit.engines import OptimizerSettings, Sampling
from inwit.engines.torch import Loaded, TorchEngine, TorchSettings, load_model
from inwit.objectives import Objective
from inwit.rows import Completion, GroupKey, Ids, Role, Row, context_id


@dataclass(frozen=True)
class Size:
    vocabulary: int
    hidden: int
    layers: int
    heads: int


SIZES = {"cpu": Size(196, 96, 2, 4), "cuda": Size(49152, 768, 8, 12)}


def random_model(kind: str) -> Loaded:
    size = SIZES[kind]
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.hidden * 8 // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(size.vocabulary)}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1")
    return Loaded(Qwen3ForCausalLM(config).eval(), tokenizer, f"random-{kind}")


def rows_of(prompts: list[Ids], groups: list[list[Completion]]) -> list[Row]:
    """Rows with advantages +1 and -1, as if half of each group had succeeded."""
    rows = []
    for q, (prompt, group) in enumerate(zip(prompts, groups, strict=True)):
        for i, c in enumerate(group):
            n = len(c.ids)
            rows.append(
                Row(
                    prompt_ids=prompt,
                    completion_ids=c.ids,
                    mask=(True,) * n,
                    logprobs=c.logprobs,
                    advantages=(1.0 if i % 2 else -1.0,) * n,
                    role=Role.SOLVER,
                    group=GroupKey(str(q), "solver"),
                    episode=f"{q}/{i}",
                    turn=0,
                    sampled_context=context_id(prompt),
                    trained_context=context_id(prompt),
                    sees=frozenset(),
                )
            )
    return rows


async def check(engine: TorchEngine, args: argparse.Namespace) -> dict[str, object]:
    vocabulary = len(engine.tokenizer)
    g = torch.Generator().manual_seed(0)
    size = (args.prompts, args.prompt_tokens)
    prompts = [tuple(p) for p in torch.randint(2, vocabulary, size, generator=g).tolist()]
    sampled, trained, parity = [], [], []
    for step in range(args.steps):
        spec = [Sampling(args.tokens, (), 1.0, seed=step * 1000 + q) for q in range(args.prompts)]
        start = time.perf_counter()
        groups = await asyncio.gather(
            *(engine.sample(p, args.group, s) for p, s in zip(prompts, spec, strict=True))
        )
        synchronise(args.device)
        middle = time.perf_counter()
        optimizer = OptimizerSettings(lr=1e-6)
        stats = await engine.update(rows_of(prompts, groups), Objective(), optimizer, args.steps)
        synchronise(args.device)
        end = time.perf_counter()
        n = args.prompts * args.group * args.tokens
        sampled.append(n / (middle - start))
        trained.append(stats.tokens / (end - middle))
        parity.append(stats.parity)
    return {
        "step0_parity": parity[0],
        "worst_parity": max(p for p in parity if p is not None),
        "sampled_tokens_per_second": statistics.median(sampled[1:]),
        "trained_tokens_per_second": statistics.median(trained[1:]),
    }


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def peak_mib(device: str) -> float:
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", help="a directory, a hub name, or a scheme of load_model")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=7, help="completion tokens, forced")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.steps < 2:
        parser.error("--steps must be at least 2: the first one warms up")
    kind = "cuda" if args.device.startswith("cuda") else "cpu"
    loaded = load_model(args.model, dtype=args.dtype) if args.model else random_model(kind)
    settings = TorchSettings(
        device=args.device, dtype=args.dtype, threads=args.threads, max_batch=512
    )
    engine = TorchEngine(loaded, settings)
    parameters = sum(p.numel() for p in loaded.model.parameters())
    found = {
        "model": args.model or loaded.source,
        "parameters": parameters,
        "device": args.device,
        "dtype": args.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **asyncio.run(check(engine, args)),
        "peak_mib": round(peak_mib(args.device)),
    }
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        for name, value in found.items():
            print(f"{name:28} {value:,.4g}" if isinstance(value, float) else f"{name:28} {value}")


if __name__ == "__main__":
    main()
