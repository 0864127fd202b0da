"""Which frames a graph makes, and what goes in and out; on the CPU, where replay calls the plain frame."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from backend.code_predictor import CodePredictor, plain
from backend.code_predictor.frame import predict_frame
from backend.code_predictor.graph import CodePredictorGraph
from backend.code_predictor.predictor import buckets_for
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
    return with_graph(graph)


def with_graph(graph: ReplayedGraph) -> CodePredictor:
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


def test_rows_that_want_no_graph_do_not_make_a_batch_too_large_for_one(
    predictor: CodePredictor, graph: ReplayedGraph
) -> None:
    rows = sampled(11)
    rows[7:] = [replace(row, graph=False) for row in rows[7:]]
    result = predictor.predict(*random_frame(graph._weights, 11), rows)
    assert graph.replayed == [8]
    assert set(result.fallbacks) == {None}


@pytest.mark.parametrize(("places", "largest"), [(1, 1), (4, 4), (5, 8), (64, 64), (65, 64), (300, 64)])
def test_graphs_are_recorded_for_as_many_places_as_there_are_up_to_64(places: int, largest: int) -> None:
    assert buckets_for(places)[-1] == largest
    assert buckets_for(places)[0] == 1


def test_with_over_64_places_smaller_batches_have_graphs_and_larger_ones_run_eager_and_are_counted() -> None:
    graph = ReplayedGraph(plain, random_weights(SMALL, 3), buckets_for(100))
    graph.capture()
    predictor = with_graph(graph)
    assert predictor.predict(*random_frame(graph._weights, 64), sampled(64)).fallbacks == (None,) * 64
    assert graph.replayed == [64]
    over = predictor.predict(*random_frame(graph._weights, 65), sampled(65))
    assert over.fallbacks == ("a batch of 65 is over the largest graph, 64",) * 65
    assert graph.replayed == [64]


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


def test_a_failed_recording_leaves_the_current_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """On torch.cuda's names alone: its graph leaves its own stream current when a recording fails."""
    current = ["the caller's"]

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    class Nothing:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> None: ...

        def __exit__(self, *_: Any) -> None: ...

    class FailingGraph(Nothing):
        def __enter__(self) -> None:
            current[0] = "the graph's"
            raise RuntimeError("out of memory")

    class Current(Stream):
        name = "the caller's"

    for name, value in {
        "graph_pool_handle": lambda: (0, 0),
        "current_stream": Current,
        "set_stream": lambda stream: current.__setitem__(0, stream.name),
        "Stream": Stream,
        "stream": Nothing,
        "synchronize": lambda: None,
        "CUDAGraph": object,
        "graph": FailingGraph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    graph = CodePredictorGraph(plain, random_weights(SMALL, 3), (1, 2))
    with pytest.raises(RuntimeError, match="out of memory"):
        graph.capture()
    assert current == ["the caller's"]
