"""Frames for a batch of requests, each by the way it asked for where that is possible."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.code_predictor import plain
from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.controls import Controls, pinned, write_controls
from backend.code_predictor.frame import Stages, predict_frame
from backend.code_predictor.graph import CodePredictorGraph
from backend.code_predictor.weights import PredictorWeights
from backend.contract import NO_GRAPH_ON_CPU

logger = logging.getLogger(__name__)

# From (code0, code0_embed, hidden, text_step, rows) to (codes, next_embeds).
Way = Callable[[Tensor, Tensor, Tensor, Tensor, list[Controls]], tuple[Tensor, Tensor]]
BUCKETS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class FrameResult:
    """codes [batch, groups] int64 and next_embeds [batch, talker_hidden], owned by the caller.

    `fallbacks` has, for each row, why it asked for the graph and did not get it, else None.
    """

    codes: Tensor
    next_embeds: Tensor
    fallbacks: tuple[str | None, ...]


class CodePredictor:
    """On CUDA: Triton kernels, in a graph or launched one by one. On the CPU: one compiled function.

    Whatever those cannot do falls back to plain PyTorch, and says why; it never raises for it.
    """

    def __init__(self, weights: PredictorWeights, max_batch: int = BUCKETS[-1]) -> None:
        self._weights = weights
        self._graph: CodePredictorGraph | None = None
        self._buffers: dict[int, FrameBuffers] = {}
        self._stages: Stages = plain
        self._run_eager: Callable[[FrameBuffers], None] = self._run_stages
        # Why no frame can use a graph, if so.
        self.graph_unavailable: str | None = None
        if weights.device.type == "cuda":
            self._set_up_cuda(buckets_for(max_batch))
        else:
            self.graph_unavailable = NO_GRAPH_ON_CPU
            self._set_up_cpu()

    @torch.inference_mode()
    def predict(
        self, code0: Tensor, code0_embed: Tensor, hidden: Tensor, text_step: Tensor, rows: Sequence[Controls]
    ) -> FrameResult:
        """Codes and next talker inputs for one frame of each row.

        code0 [batch]; code0_embed, hidden (the talker's last) and text_step [batch, talker_hidden].
        """
        together = sum(row.graph and not _needs_plain(row) for row in rows)
        reasons = tuple(self._why_eager(row, together) for row in rows)
        by_graph = [i for i, row in enumerate(rows) if row.graph and reasons[i] is None]
        in_plain = [i for i, row in enumerate(rows) if _needs_plain(row)]
        eager = [i for i in range(len(rows)) if i not in by_graph and i not in in_plain]
        given = (code0, code0_embed, hidden, text_step)
        parts: list[tuple[list[int], Way]] = [
            (picked, way)
            for picked, way in (
                (by_graph, self._by_graph),
                (eager, self._by_kernels),
                (in_plain, self._by_plain_top_p),
            )
            if picked
        ]
        if len(parts) == 1:
            codes, next_embeds = parts[0][1](*given, list(rows))
        else:
            codes = torch.empty(len(rows), self._weights.shape.groups, dtype=torch.long, device=code0.device)
            next_embeds = torch.empty_like(code0_embed)
            for picked, way in parts:
                index = pinned(torch.tensor(picked, device="cpu"), code0.device)
                index = index.to(code0.device, non_blocking=True)
                mine = (code0[index], code0_embed[index], hidden[index], text_step[index])
                some = way(*mine, [rows[i] for i in picked])
                codes[index], next_embeds[index] = some[0], some[1].to(next_embeds.dtype)
        return FrameResult(codes, next_embeds, reasons)

    def _why_eager(self, row: Controls, together: int) -> str | None:
        """Why `row` is not made by a graph; `together` rows of its batch could be."""
        if not row.graph:
            return None
        if self.graph_unavailable is not None:
            return self.graph_unavailable
        if _needs_plain(row):
            return "top_p is below 1"
        assert self._graph is not None
        if self._graph.bucket(together) is None:
            return f"a batch of {together} is over the largest graph, {self._graph.largest}"
        return None

    def _by_graph(
        self, code0: Tensor, code0_embed: Tensor, hidden: Tensor, text_step: Tensor, rows: list[Controls]
    ) -> tuple[Tensor, Tensor]:
        assert self._graph is not None
        bucket = self._graph.bucket(len(rows))
        assert bucket is not None
        buffers = self._graph.buffers[bucket]
        _fill(buffers, code0, code0_embed, hidden, text_step, rows)
        self._graph.replay(bucket)
        # The next replay overwrites the buffers.
        return buffers.codes[: len(rows)].clone(), buffers.next_embeds[: len(rows)].clone()

    def _by_kernels(
        self, code0: Tensor, code0_embed: Tensor, hidden: Tensor, text_step: Tensor, rows: list[Controls]
    ) -> tuple[Tensor, Tensor]:
        buffers = self._eager_buffers(len(rows))
        _fill(buffers, code0, code0_embed, hidden, text_step, rows)
        self._run_eager(buffers)
        return buffers.codes[: len(rows)].clone(), buffers.next_embeds[: len(rows)].clone()

    def _by_plain_top_p(
        self, code0: Tensor, code0_embed: Tensor, hidden: Tensor, text_step: Tensor, rows: list[Controls]
    ) -> tuple[Tensor, Tensor]:
        # Each alone: a cut-off of its own, and nobody should depend on who else asked for one.
        results = []
        for i, row in enumerate(rows):
            buffers = self._eager_buffers(1)
            one = slice(i, i + 1)
            _fill(buffers, code0[one], code0_embed[one], hidden[one], text_step[one], [row])
            predict_frame(plain.WithTopP(row.top_p), self._weights, buffers)
            results.append((buffers.codes[:1].clone(), buffers.next_embeds[:1].clone()))
        return torch.cat([codes for codes, _ in results]), torch.cat([embeds for _, embeds in results])

    def _run_stages(self, buffers: FrameBuffers) -> None:
        predict_frame(self._stages, self._weights, buffers)

    def _eager_buffers(self, batch: int) -> FrameBuffers:
        """As large as the graph's for the same batch: rounding must not depend on the way."""
        size = self._graph.bucket(batch) if self._graph is not None else None
        if size is None:
            # On a GPU they are kept for few sizes: each holds a cache of keys and values.
            size = _power_of_two(batch) if self._weights.device.type == "cuda" else batch
        if size not in self._buffers:
            self._buffers[size] = FrameBuffers(self._weights, size)
        return self._buffers[size]

    def _set_up_cuda(self, buckets: tuple[int, ...]) -> None:
        if self._weights.dtype not in (torch.bfloat16, torch.float32):
            self.graph_unavailable = f"no kernels for {self._weights.dtype}"
            return
        try:
            from backend.code_predictor import kernels

            kernels.check_shape(self._weights.shape)
            self._graph = CodePredictorGraph(kernels, self._weights, buckets)
            self._graph.capture()
            self._stages = kernels
        except Exception as error:
            # Speech is still possible without.
            logger.exception("The code predictor could not be recorded as a CUDA graph; it runs eager.")
            self._graph = None
            self.graph_unavailable = f"recording failed ({type(error).__name__})"

    def _set_up_cpu(self) -> None:
        try:
            from backend.code_predictor.cpu_kernel import CpuPredictor

            self._run_eager = CpuPredictor(self._weights)
        except Exception:
            logger.exception("The code predictor could not be compiled for this CPU; it runs in PyTorch.")


def buckets_for(max_batch: int) -> tuple[int, ...]:
    """The batch sizes to record; what is over the last runs eager."""
    return tuple(size for size in BUCKETS if size < 2 * max_batch)


def _needs_plain(row: Controls) -> bool:
    return row.top_p < 1.0 and not row.greedy


def _power_of_two(batch: int) -> int:
    """The smallest that is not below `batch`."""
    return 1 << (batch - 1).bit_length()


def _fill(
    buffers: FrameBuffers,
    code0: Tensor,
    code0_embed: Tensor,
    hidden: Tensor,
    text_step: Tensor,
    rows: list[Controls],
) -> None:
    batch, count = buffers.batch, len(rows)
    buffers.inputs[:count] = hidden
    buffers.inputs[batch : batch + count] = code0_embed
    buffers.text_step[:count] = text_step
    buffers.codes[:count, 0] = code0
    write_controls(rows, buffers)
