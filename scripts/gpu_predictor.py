"""Proves and tunes the code predictor on an NVIDIA GPU in one go: tests, tuning, table.

    python scripts/gpu_predictor.py --out predictor.json --seconds 480

Needs torch, triton, numba, numpy, safetensors, scipy and pytest; vLLM-Omni only for upstream's rows.
The report is written after every part, so that what was measured is kept if time runs out.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from backend.benchmark.__main__ import about, print_table  # noqa: E402
from backend.benchmark.predictors import (  # noqa: E402
    random_predictor,
    shape_of,
    time_call,
    ways,
)
from backend.code_predictor import CodePredictor, PredictorWeights, kernels  # noqa: E402

TESTS = ("test_weights", "test_drawing", "test_kernels", "test_graph", "test_predictor")
TUNED_ROWS = (1, 16)
CANDIDATES = (1, 2, 4)
CHAIN_REPEATS = 4


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="1.7b")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--seconds", type=float, default=480, help="no new part of the work begins after")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--no-tuning", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    report: dict[str, Any] = {"about": about(), "size": options.size}

    def keep(**parts: Any) -> None:
        report.update(parts)
        options.out.write_text(json.dumps(report, indent=2, default=str) + "\n")

    weights = random_predictor(shape_of(options.size), torch.bfloat16, "cuda")
    # First what cannot be had otherwise, in case something later fails.
    keep(untuned=table(weights, options.batches, deadline))
    passed = True
    if not options.no_tests:
        passed, output = run_tests()
        keep(tests_passed=passed, tests_output=output[-6000:])
        print(output[-3000:], flush=True)
    if not options.no_tuning:
        tuning: dict[str, Any] = {}
        for kind in ("wide", "gated", "narrow"):
            tuning[kind] = tune(weights, kind, deadline)
            keep(tuning=tuning, launch=asdict(kernels.launch))
        keep(overlap=try_overlap(weights, deadline), launch=asdict(kernels.launch))
        keep(tuned=table(weights, options.batches, deadline))
    keep(floor=floor(weights))
    # Last, since it is compiled anew for every batch size.
    keep(with_upstream=table(weights, options.batches, deadline, with_upstream=True))
    print(json.dumps({"launch": asdict(kernels.launch), "floor": report["floor"]}, indent=2), flush=True)
    return 0 if passed else 1


def run_tests() -> tuple[bool, str]:
    files = [f"tests/code_predictor/{name}.py" for name in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr[-2000:]


def table(
    weights: PredictorWeights, batches: list[int], deadline: float, with_upstream: bool = False
) -> list[dict[str, Any]]:
    rows = []
    for batch in batches:
        if time.monotonic() > deadline:
            break
        for name, call in ways(weights, batch, with_upstream):
            slow = "plain" in name or name == "upstream, eager"
            times = time_call(call, True, 10 if slow else 100)
            rows.append({"way": name, "batch": batch} | {key: round(ms, 3) for key, ms in times.items()})
    print_table(rows)
    return rows


def tune(weights: PredictorWeights, kind: str, deadline: float) -> list[dict[str, Any]]:
    """Tries outputs of one program on a chain of this kind's products over all layers, longer than the L2
    cache, in a graph.

    The winner by the sum over `TUNED_ROWS` is set for what follows.
    """
    results = []
    for outputs in CANDIDATES:
        if time.monotonic() > deadline:
            break
        setattr(kernels.launch, kind, outputs)
        times = {rows: chain_ms(weights, kind, rows) for rows in TUNED_ROWS}
        results.append({"outputs": outputs, "us_each": {r: round(1e3 * ms, 2) for r, ms in times.items()}})
    results.sort(key=lambda result: sum(result["us_each"].values()))
    if results:
        setattr(kernels.launch, kind, results[0]["outputs"])
    print(kind, results, flush=True)
    return results


def chain_ms(weights: PredictorWeights, kind: str, rows: int) -> float:
    """Milliseconds of one product, on average over all layers (and heads, for `wide`)."""
    s, w, eps = weights.shape, weights, weights.shape.norm_eps
    stream = torch.randn(rows, s.hidden, device="cuda")
    qkv = torch.empty(rows, s.qkv_rows, device="cuda", dtype=w.dtype)
    gated = torch.randn(rows, s.mlp, device="cuda").to(w.dtype)
    attended = torch.randn(rows, s.heads * s.head_dim, device="cuda").to(w.dtype)
    logits = torch.empty(rows, s.codes, device="cuda")

    def chain() -> int:
        count = 0
        for _ in range(CHAIN_REPEATS):
            for i in range(s.layers):
                if kind == "wide":
                    kernels.norm_linear(stream, w.input_norm[i], w.qkv[i], qkv, eps)
                elif kind == "gated":
                    kernels.gated_mlp(stream, w.mlp_norm[i], w.gate_up[i], gated, eps)
                else:
                    kernels.linear_add(attended, w.attention_out[i], stream)
                    kernels.linear_add(gated, w.mlp_out[i], stream)
                count += 1
        if kind == "wide":
            for group in range(s.groups - 1):
                kernels.norm_linear(stream, w.final_norm, w.heads[group], logits, eps)
                count += 1
        return count

    with torch.inference_mode():
        chain()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            count = chain()
        return time_call(graph.replay, True, 20)["median_ms"] / count


def try_overlap(weights: PredictorWeights, deadline: float) -> dict[str, Any]:
    """Whether kernels that start early give the same bits, and what that saves; kept if both are good."""
    from tests.code_predictor.making import random_frame, sampled

    found: dict[str, Any] = {}
    frame = random_frame(weights, 8)
    codes = {}
    for overlap in (False, True):
        if time.monotonic() > deadline:
            return found
        kernels.launch.overlap = overlap
        try:
            predictor = CodePredictor(weights, 16)
            if predictor.graph_unavailable is not None:
                raise RuntimeError(predictor.graph_unavailable)
            same = [predictor.predict(*frame, sampled(8)).codes for _ in range(50)]
            codes[overlap] = same[0]
            assert predictor._graph is not None
            replay = predictor._graph.replay
            found[f"overlap={overlap}"] = {
                "repeats_equal": all(torch.equal(same[0], other) for other in same),
                "replay_ms": {
                    batch: round(time_call(partial(replay, batch), True, 100)["median_ms"], 3)
                    for batch in TUNED_ROWS
                },
            }
        except Exception as error:
            found[f"overlap={overlap}"] = {"error": f"{type(error).__name__}: {error}"[:300]}
    good = len(codes) == 2 and torch.equal(codes[False], codes[True])
    found["equal"] = good
    kernels.launch.overlap = bool(
        good
        and found["overlap=True"]["repeats_equal"]
        and found["overlap=True"]["replay_ms"][1] < found["overlap=False"]["replay_ms"][1]
    )
    print(found, flush=True)
    return found


def floor(weights: PredictorWeights) -> dict[str, float]:
    """What reading the weights takes by themselves, at the rate of a large copy on this card."""
    w, s = weights, weights.shape
    layers = (w.qkv, w.attention_out, w.gate_up, w.mlp_out)
    per_pass = sum(tensor.numel() * tensor.element_size() for tensor in layers)
    heads = w.heads.numel() * w.heads.element_size()
    total = per_pass * (s.groups - 1) + heads
    block = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    half = len(block) // 2
    ms = time_call(lambda: block[:half].copy_(block[half:]), True, 20)["median_ms"]
    rate = len(block) / ms
    return {
        "frame_mbytes": round(total / 1e6, 1),
        "copy_tb_s": round(rate / 1e9, 3),
        "ms": round(total / rate, 3),
    }


if __name__ == "__main__":
    sys.exit(main())
