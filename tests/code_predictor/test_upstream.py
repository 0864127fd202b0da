"""Against vLLM-Omni's own predictor on the same weights, as the benchmark sets it up."""

import pytest
import torch

from backend.benchmark.__main__ import measure_predictor, print_table
from backend.code_predictor import CodePredictor
from tests.code_predictor.making import EQUALLY_WIDE, SMALL, random_frame, random_weights, sampled

pytest.importorskip("vllm_omni", reason="vLLM-Omni is not installed")


@pytest.mark.parametrize("shape", [SMALL, EQUALLY_WIDE], ids=["projected", "equally wide"])
def test_greedy_codes_are_upstream_s(shape: object) -> None:
    from backend.benchmark.upstream import upstream_predictor

    weights = random_weights(shape, 12)  # type: ignore[arg-type]
    code0, embed, hidden, text = random_frame(weights, 3)
    theirs = upstream_predictor(weights)(
        layer0_code=code0[:, None],
        layer0_embed=embed[:, None],
        last_talker_hidden=hidden[:, None],
        do_sample=False,
    )
    ours = CodePredictor(weights).predict(code0, embed, hidden, text, sampled(3, temperature=0.0))
    assert torch.equal(ours.codes, theirs)


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it measures more than a test should")
def test_the_benchmark_measures_every_way_and_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        rows = measure_predictor("tiny", [1, 2], calls=3)
    finally:
        torch.set_num_threads(threads)
    ways = ["plain PyTorch, eager", "upstream, eager", "ours, eager"]
    assert [(row["way"], row["batch"]) for row in rows] == [(way, batch) for batch in (1, 2) for way in ways]
    assert all(0 < row["p10_ms"] <= row["median_ms"] <= row["p90_ms"] for row in rows)
    print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| way | batch | median_ms | p10_ms | p90_ms |"
    assert len([line for line in lines if line.startswith("| ours")]) == 2
