"""Which frames a graph makes, and what goes in and out; on the CPU, where replay calls the plain frame."""

from dataclasses import replace

import pytest
import torch

from backend.code_predictor import CodePredictor, plain
from backend.code_predictor.frame import predict_frame
from backend.code_predictor.graph import CodePredictorGraph
from tests.code_predictor.making import SMALL, random_frame, random_weights, sampled

BUCKETS = (1, 2, 4, 8)


class ReplayedGraph(CodePredictorGraph):
    """Notes the buckets that are replayed."""

    def capture(self) -> None:
        self.replayed: list[int] = []
        self._graphs = dict.fromkeys(self.buffers)  # type: ignore[arg-type]

    def replay(self, bucket: int) -> None:
        self.replayed.append(bucket)
        predict_frame(self._stages, self._weights, self.buffers[bucket])


@pytest.fixture
def graph() -> ReplayedGraph:
    graph = ReplayedGraph(plain, random_weights(SMALL, 3), BUCKETS)
    graph.capture()
    return graph


@pytest.fixture
def predictor(graph: ReplayedGraph) -> CodePredictor:
    predictor = CodePredictor(graph._weights)
    predictor.graph_unavailable = None
    predictor._graph = graph
    return predictor


@pytest.mark.parametrize(("batch", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_a_batch_takes_the_next_larger_graph_and_gets_its_own_rows(
    predictor: CodePredictor, graph: ReplayedGraph, batch: int, bucket: int
) -> None:
    frame = random_frame(graph._weights, batch)
    rows = sampled(batch, seed=40)
    graph.buffers[bucket].poison()
    result = predictor.predict(*frame, rows)
    assert graph.replayed == [bucket]
    assert result.fallbacks == (None,) * batch
    eager = predictor.predict(*frame, [replace(row, graph=False) for row in rows])
    assert graph.replayed == [bucket]
    assert torch.equal(result.codes, eager.codes)
    torch.testing.assert_close(result.next_embeds, eager.next_embeds, rtol=1e-5, atol=1e-5)


def test_results_outlive_the_next_replay(predictor: CodePredictor, graph: ReplayedGraph) -> None:
    first = predictor.predict(*random_frame(graph._weights, 2), sampled(2))
    kept = first.codes.clone()
    predictor.predict(*random_frame(graph._weights, 2), sampled(2, seed=90))
    assert torch.equal(first.codes, kept)


def test_a_larger_batch_runs_eager_and_says_why(predictor: CodePredictor, graph: ReplayedGraph) -> None:
    result = predictor.predict(*random_frame(graph._weights, 9), sampled(9))
    assert set(result.fallbacks) == {"a batch of 9 is over the largest graph, 8"}
    assert not graph.replayed


def test_requests_of_one_batch_can_go_different_ways(predictor: CodePredictor, graph: ReplayedGraph) -> None:
    frame = random_frame(graph._weights, 4)
    rows = sampled(4)
    expected = predictor.predict(*frame, rows).codes
    graph.replayed.clear()
    mixed = [rows[0], replace(rows[1], graph=False), rows[2], replace(rows[3], top_p=0.9)]
    result = predictor.predict(*frame, mixed)
    assert graph.replayed == [2]
    assert result.fallbacks == (None, None, None, "top_p is below 1")
    assert torch.equal(result.codes[:3], expected[:3])
