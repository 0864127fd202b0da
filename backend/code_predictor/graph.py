"""The frame as one CUDA graph a batch size: static buffers, warm-up, capture, replay."""

import logging
from typing import Any

import torch

from backend.code_predictor.buffers import FrameBuffers
from backend.code_predictor.controls import Controls, write_controls
from backend.code_predictor.frame import Stages, predict_frame
from backend.code_predictor.weights import PredictorWeights

logger = logging.getLogger(__name__)

# Triton compiles on first use and picks nothing at run time; the second pass shows that nothing is left.
WARM_UP_PASSES = 2


class CodePredictorGraph:
    """Records `predict_frame` once for each batch size in `buckets`, and replays it.

    A replay reads the bucket's buffers at the addresses that were recorded, so inputs are copied into
    them and results copied out; rows beyond the batch at hand compute something nobody reads. What the
    graph holds is a fixed sequence of kernels: no branch on the host, no allocation, no wait.
    """

    def __init__(self, stages: Stages, weights: PredictorWeights, buckets: tuple[int, ...]) -> None:
        self._stages = stages
        self._weights = weights
        self.buffers = {batch: FrameBuffers(weights, batch) for batch in sorted(buckets)}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    @property
    def largest(self) -> int:
        return max(self.buffers)

    def capture(self) -> None:
        """Raises whatever the driver or a kernel raises; buckets recorded until then stay usable."""
        # Tables that are computed on first use must exist before: a graph would record their making.
        _ = self._weights.prepared
        pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.current_stream()
        try:
            # Largest first: the smaller ones fit into the pool's memory then.
            for batch in reversed(self.buffers):
                self._graphs[batch] = self._recorded(self.buffers[batch], pool)
        finally:
            # torch.cuda.graph goes back to it only where the recording ends well.
            torch.cuda.set_stream(before)
        logger.info("Code predictor recorded as CUDA graphs for batches of %s.", list(self.buffers))

    def _recorded(self, buffers: FrameBuffers, pool: Any) -> torch.cuda.CUDAGraph:
        self._make_realistic(buffers)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.inference_mode():
            for _ in range(WARM_UP_PASSES):
                predict_frame(self._stages, self._weights, buffers)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads of a serving process may allocate meanwhile; only this one must not.
        with (
            torch.inference_mode(),
            torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"),
        ):
            predict_frame(self._stages, self._weights, buffers)
        return graph

    def bucket(self, batch: int) -> int | None:
        """The smallest recorded batch size that holds `batch` rows."""
        return min((size for size in self._graphs if size >= batch), default=None)

    def replay(self, bucket: int) -> None:
        """Predicts the frame in `buffers[bucket]`, on the current stream; returns before it is done."""
        self._graphs[bucket].replay()

    def _make_realistic(self, buffers: FrameBuffers) -> None:
        """Inputs like real ones, so that no kernel is warmed up on zeros or only draws greedily."""
        buffers.inputs.normal_()
        buffers.codes[:, 0] = 1
        buffers.inputs[buffers.batch :] = self._weights.embeddings[0, 1]
        write_controls([Controls(seed=i) for i in range(buffers.batch)], buffers)
