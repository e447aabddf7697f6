"""The benchmark's own arithmetic, and its worker on a real engine."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks import limit, results, wire
from benchmarks.cases import CASES, QUICK, Case, chosen
from benchmarks.workers import Worker, WorkerFailed
from rich.console import Console

from inwit.envs.embedded import small_model, word_tokenizer

SIZES = limit.Sizes(
    layers=2, hidden=8, heads=4, kv_heads=2, head_dim=3, intermediate=10, vocabulary=50
)
CASE = Case("case", "tiny", prompts=3, group=2, prompt_tokens=5, completion_tokens=4, threads=1)
ASKED = {
    "model", "prompts", "group", "prompt_tokens", "completion_tokens", "threads", "seconds",
    "trl_seconds", "ratio_to_trl", "limit_seconds", "share_of_limit", "peak_mb", "trl_peak_mb",
}  # fmt: skip


class TestCounting:
    def test_weights_of_a_layer_by_hand(self):
        # q 12x8, k and v 6x8 each, o 8x12, gate and up 10x8 each, down 8x10
        assert SIZES.layer_weights == 96 + 48 + 48 + 96 + 80 + 80 + 80

    def test_work_by_hand(self):
        # a prompt of 5: 5 positions, which see 1 + 2 + 3 + 4 + 5 keys
        assert limit.prefill(3, 5) == limit.Work(15, 3, 45)
        # completions of 4: three tokens are fed, which see 6, 7 and 8 keys
        assert limit.decode(6, 5, 4) == limit.Work(18, 18, 6 * 21)
        # of a single token, nothing is left to decode
        assert limit.decode(6, 5, 1) == limit.Work(0, 0, 0)

    def test_operations_by_hand(self):
        assert limit.layer_operations(SIZES, 15) == 2 * 15 * 2 * 528
        assert limit.head_operations(SIZES, 3) == 2 * 3 * 8 * 50
        assert limit.attention_operations(SIZES, 45) == 4 * 45 * 2 * 4 * 3

    def test_layer_operations_match_a_models_linear_layers(self):
        words = word_tokenizer([f"w{i}" for i in range(30)], "")
        model = small_model(words, torch.Generator().manual_seed(0))
        sizes = limit.Sizes.of(model.config.to_dict())
        layers = [p for name, p in model.named_parameters() if "layers" in name and p.dim() == 2]
        assert sizes.layers * sizes.layer_weights == sum(p.numel() for p in layers)

    def test_seconds_by_hand(self):
        rate = limit.Rate(layers=1000.0, head=100.0)
        rates = limit.Rates(prefill=rate, decode=rate, training=limit.Rate(2000.0, 200.0))
        sampling, training = limit.limit_seconds(SIZES, 3, 2, 5, 4, rates)
        inner = 2 * (15 + 18) * 2 * 528 + 4 * (45 + 126) * 2 * 4 * 3
        head = 2 * (3 + 18) * 8 * 50
        assert sampling == pytest.approx(inner / 1000 + head / 100)
        assert training == pytest.approx(3 * sampling / 2)

    def test_a_longer_prompt_costs_the_same_whatever_the_group(self):
        """A group's prompt is counted once: the group adds attention to it, and no products."""
        two, four = (limit.prefill(1, 400) + limit.decode(g, 400, 2) for g in (2, 4))
        assert four.positions - two.positions == 2


def made_steps(seconds: list[float], tokens: int = CASE.tokens) -> list[wire.Step]:
    """A warm-up of 100 seconds, then these: a quarter sampling, the rest training."""
    return [
        wire.Step(s / 4, s * 3 / 4, tokens, tokens, peak_mb=100 + i)
        for i, s in enumerate([100.0, *seconds])
    ]


def limit_steps(seconds: list[float]) -> list[wire.Step]:
    return [
        replace(s, sampled=0, trained=0, extra={"decode_head": 7.0}) for s in made_steps(seconds)
    ]


STEPS = {
    "inwit": made_steps([4.0, 2.0, 8.0, 4.0, 4.0]),
    "trl": made_steps([12.0, 8.0, 9.0, 8.0, 7.0]),
    "limit": limit_steps([1.0] * 5),
}
VERSIONS = {side: {"torch": "0"} for side in STEPS}


class TestRecords:
    def record(self) -> results.Record:
        return results.record_of(CASE, STEPS, VERSIONS, load=0.0)

    def test_holds_what_was_asked_for(self):
        record = self.record()
        assert record.keys() >= ASKED
        for name in ("seconds", "trl_seconds", "ratio_to_trl", "limit_seconds", "share_of_limit"):
            assert tuple(record[name]) == results.PHASES
        json.dumps(record)

    def test_medians_leave_the_warm_up_out(self):
        record = self.record()
        assert record["seconds"] == {"sampling": 1.0, "training": 3.0, "total": 4.0}
        assert record["trl_seconds"]["total"] == 8.0
        assert record["ratio_to_trl"]["total"] == 2.0
        assert record["share_of_limit"]["total"] == 0.25
        assert record["tokens_per_second"]["sampling"] == 24.0

    def test_peak_is_of_the_whole_process(self):
        assert self.record()["peak_mb"] == 105

    def test_refuses_unequal_work(self):
        for side in ("inwit", "trl"):
            fewer = {**STEPS, side: made_steps([1.0] * 5, CASE.tokens - 1)}
            with pytest.raises(results.UnequalWork, match=rf"{side} sampled 23 tokens .* not 24"):
                results.record_of(CASE, fewer, VERSIONS, load=0.0)

    def test_refuses_tokens_sampled_and_not_trained(self):
        untrained = [replace(step, trained=12) for step in STEPS["trl"]]
        with pytest.raises(results.UnequalWork, match="trl trained 12"):
            results.record_of(CASE, {**STEPS, "trl": untrained}, VERSIONS, load=0.0)

    def test_a_file_keeps_other_cases_and_replaces_its_own(self, tmp_path: Path):
        path = tmp_path / "some" / "latest.json"
        for name, peak in (("a", 1), ("b", 2), ("a", 3)):
            results.write({"name": name, "peak_mb": peak}, path)
        read = json.loads(path.read_text())
        assert read == [{"name": "a", "peak_mb": 3}, {"name": "b", "peak_mb": 2}]

    def test_table(self):
        console = Console(width=120, file=io.StringIO())
        with console.capture() as shown:
            console.print(results.table([self.record()]))
        line = next(x for x in shown.get().splitlines() if " total " in x)
        for text in ("4", "8", "2.00x", "25%", "105 (105)"):
            assert text in line


class TestCases:
    def test_names_differ_and_the_quick_one_is_there(self):
        assert len({case.name for case in CASES}) == len(CASES)
        assert [case.name for case in chosen([], quick=True)] == [QUICK]
        assert chosen([], quick=False) == list(CASES)

    def test_an_unknown_case(self):
        with pytest.raises(ValueError, match="no case 'large'"):
            chosen(["large"], quick=False)

    def test_trl_rows_divide_every_step(self):
        assert all(case.prompts * case.group % case.trl_rows == 0 for case in CASES)


def test_rewards_differ_within_a_group():
    g = torch.Generator().manual_seed(0)
    group = torch.randint(0, 196, (16, 8), generator=g).tolist()
    assert len({wire.reward(ids) for ids in group}) == 16


def test_the_peers_worker_knows_nothing_of_inwit():
    for name in ("trl_worker", "wire"):
        spec = importlib.util.find_spec(f"benchmarks.{name}")
        assert spec and spec.origin
        assert "from inwit" not in Path(spec.origin).read_text(encoding="utf-8")


class TestWorker:
    @pytest.fixture
    def job(self, tmp_path: Path) -> wire.Job:
        words = word_tokenizer([f"w{i}" for i in range(30)], "")
        small_model(words, torch.Generator().manual_seed(0)).save_pretrained(tmp_path)
        words.save_pretrained(tmp_path)
        texts = ("w1 w2 w3 w4 w5", "w2 w2 w3 w4 w5", "w3 w2 w3 w4 w5")
        return wire.Job(str(tmp_path), texts, CASE.group, 5, 4, threads=1, steps=2)

    def test_inwit_does_the_work_it_is_given(self, job: wire.Job):
        with Worker("inwit", Path(sys.executable), "benchmarks.inwit_worker", job, 120) as worker:
            steps = [worker.step() for _ in range(2)]
        results.check_work(CASE, "inwit", steps)
        assert worker.ready.prompts
        assert all(step.sampling > 0 and step.training > 0 and step.peak_mb > 50 for step in steps)
        assert all(step.extra["parity"] < 1e-4 for step in steps)

    def test_a_worker_that_dies_says_why(self, job: wire.Job):
        wrong = replace(job, prompt_tokens=6)
        with pytest.raises(WorkerFailed, match=r"(?s)inwit worker died.*tokens, not 6"):
            Worker("inwit", Path(sys.executable), "benchmarks.inwit_worker", wrong, 120)


def test_where_the_time_goes_adds_up() -> None:
    """Every kind's share of the time that passed, and the rest of it outside torch."""
    from benchmarks.where import timed

    async def work() -> int:
        a = torch.randn(300, 300)
        for _ in range(30):
            a = torch.relu(a @ a).clamp(max=1.0)
        return len(a)

    result, found = timed(work)
    assert result == 300
    assert found["seconds"] > 0
    assert sum(found["shares"].values()) == pytest.approx(1.0, abs=0.05)
    assert found["shares"]["products"] > 0
    assert {"relu", "clamp"} & {name.partition("_")[0] for name in found["of the rest"]}
