"""Ways to predict a frame, each as a function to call again and again, and what a call takes."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from backend.checkpoint.sizes import SIZES
from backend.code_predictor import CodePredictor, Controls, PredictorShape, PredictorWeights, plain
from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.controls import write_controls
from backend.code_predictor.frame import predict_frame

Call = Callable[[], Any]
WARM_UP_CALLS = 5
TEMPERATURE, TOP_K = 0.9, 50


def shape_of(size: str) -> PredictorShape:
    """The predictor of one of our checkpoint sizes; 0.6b and 1.7b are as published."""
    s = SIZES[size].predictor
    return PredictorShape(
        hidden=s.hidden,
        mlp=s.mlp,
        layers=s.layers,
        heads=s.heads,
        kv_heads=s.kv_heads,
        head_dim=s.head_dim,
        groups=16,
        codes=2048,
        talker_hidden=SIZES[size].talker.hidden,
        norm_eps=1e-6,
        rope_theta=1e6,
    )


def random_predictor(shape: PredictorShape, dtype: torch.dtype, device: str) -> PredictorWeights:
    """Weights of the size of trained ones, so that no value overflows or vanishes; bfloat16 holds them."""
    torch.manual_seed(0)
    weights = PredictorWeights(shape, dtype).to(device)
    for name, parameter in weights.named_parameters():
        scale = parameter.shape[-1] ** -0.5 if name != "embeddings" else 1.0
        value = torch.ones_like(parameter) if "norm" in name else scale * torch.randn_like(parameter)
        parameter.data.copy_(value.bfloat16())
    return weights


def ways(weights: PredictorWeights, batch: int, with_upstream: bool = True) -> Iterator[tuple[str, Call]]:
    """(name, call), the slowest first; all draw with the same temperature and top_k on the same inputs."""
    s = weights.shape
    torch.manual_seed(batch)
    embed, hidden, text = (
        torch.randn(batch, s.talker_hidden, device=weights.device).to(weights.dtype) for _ in range(3)
    )
    code0 = torch.randint(1, s.codes, (batch,), device=weights.device)
    rows = [Controls(seed=i, temperature=TEMPERATURE, top_k=TOP_K) for i in range(batch)]

    buffers = FrameBuffers(weights, batch)
    buffers.inputs.copy_(torch.cat([hidden, embed]))
    buffers.codes[:, 0] = code0
    write_controls(rows, buffers)
    yield "plain PyTorch, eager", lambda: predict_frame(plain, weights, buffers)

    if with_upstream:
        yield from _upstream(weights, code0, embed, hidden)

    predictor = CodePredictor(weights, batch)
    eager = [replace(row, graph=False) for row in rows]
    yield "ours, eager", lambda: predictor.predict(code0, embed, hidden, text, eager)
    if predictor.graph_unavailable is None:
        yield "ours, CUDA graph", lambda: predictor.predict(code0, embed, hidden, text, rows)
        assert predictor._graph is not None
        graph, bucket = predictor._graph, predictor._graph.bucket(batch)
        assert bucket is not None
        yield "ours, CUDA graph, replay alone", lambda: graph.replay(bucket)


def _upstream(
    weights: PredictorWeights, code0: torch.Tensor, embed: torch.Tensor, hidden: torch.Tensor
) -> Iterator[tuple[str, Call]]:
    """vLLM-Omni's predictor with the same weights, where it is installed; on a GPU also in a graph as its
    second runner records it: compiled, with its noise drawn before each replay.
    """
    try:
        from backend.benchmark.upstream import upstream_predictor
    except ImportError:
        return
    predictor = upstream_predictor(weights)
    noise = torch.empty(len(code0), weights.shape.groups - 1, weights.shape.codes, device=weights.device)

    def call() -> Any:
        return predictor(
            layer0_code=code0[:, None],
            layer0_embed=embed[:, None],
            last_talker_hidden=hidden[:, None],
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            top_p=1.0,
            sample_uniforms=noise,
        )

    def with_noise(run: Call) -> Call:
        def both() -> Any:
            noise.uniform_(1e-20, 1.0 - 1e-20)
            return run()

        return both

    yield "upstream, eager", with_noise(call)
    if weights.device.type == "cuda":
        with_noise(call)()
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            call()
        yield "upstream, CUDA graph", with_noise(graph.replay)


def time_call(call: Call, on_gpu: bool, calls: int) -> dict[str, float]:
    """Milliseconds of one call: median, and the lowest and highest tenth."""
    with torch.inference_mode():
        for _ in range(WARM_UP_CALLS):
            call()
        times = sorted(_gpu_times(call, calls) if on_gpu else _cpu_times(call, calls))
    tenth = len(times) // 10
    return {
        "median_ms": statistics.median(times),
        "p10_ms": times[tenth],
        "p90_ms": times[-1 - tenth],
    }


def _cpu_times(call: Call, calls: int) -> list[float]:
    times = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - started))
    return times


def _gpu_times(call: Call, calls: int) -> list[float]:
    """From a drained GPU to the end of the work: a frame waits for the one before it."""
    times = []
    for _ in range(calls):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return times
