"""Random numbers by counter, and codes drawn with them."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from backend.code_predictor.noise import ROUNDS, philox, uniforms
from backend.code_predictor.plain import choose

SEEDS = torch.tensor([0, 7, 2**31 - 1, 2**40 + 3])


def test_philox_is_the_published_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known answers of Random123 for Philox4x32 with 10 rounds (kat_vectors)."""
    monkeypatch.setattr("backend.code_predictor.noise.ROUNDS", 10)
    ones = 0xFFFFFFFF
    for counter, key, answer in (
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (ones,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ):
        words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))  # type: ignore[arg-type]
        assert tuple(int(word) for word in words) == answer


def test_fewer_rounds_are_still_many() -> None:
    assert ROUNDS >= 7


def test_uniform_numbers_are_uniform_and_never_0_or_1() -> None:
    drawn = uniforms(SEEDS, torch.arange(4), 3, 200_000)
    assert drawn.min() > 0
    assert drawn.max() < 1
    counts = np.histogram(drawn.numpy(), bins=256, range=(0, 1))[0]
    assert chisquare(counts).pvalue > 1e-4
    correlation = np.corrcoef(drawn.numpy())
    assert np.abs(correlation - np.eye(4)).max() < 0.01


def test_noise_depends_on_seed_frame_group_and_code_alone() -> None:
    frame = torch.full((4,), 5)
    together = uniforms(SEEDS, frame, 2, 64)
    for row in range(4):
        assert torch.equal(together[row], uniforms(SEEDS[row : row + 1], frame[:1], 2, 64)[0])
    assert torch.equal(together[:, :30], uniforms(SEEDS, frame, 2, 30))
    for other in (
        uniforms(SEEDS + 1, frame, 2, 64),
        uniforms(SEEDS, frame + 1, 2, 64),
        uniforms(SEEDS, frame, 3, 64),
    ):
        assert (other == together).float().mean() < 0.01


def _draws(
    logits: torch.Tensor, count: int, temperature: float, top_k: int, top_p: float = 1.0
) -> np.ndarray:
    """How often each code came out of `count` frames of one request."""
    codes = choose(
        logits.expand(count, -1),
        4,
        torch.full((count,), 11),
        torch.arange(count, dtype=torch.int32),
        torch.full((count,), 1 / temperature),
        torch.ones(count),
        torch.full((count,), top_k, dtype=torch.int32),
        top_p,
    )
    return np.bincount(codes.numpy(), minlength=logits.shape[-1])


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 64), (0.7, 12), (1.6, 5)])
def test_codes_are_drawn_from_the_softmax_over_the_top_k(temperature: float, top_k: int) -> None:
    logits = 2 * torch.randn(64, generator=torch.Generator().manual_seed(3))
    counts = _draws(logits, 20_000, temperature, top_k)
    kept = logits.topk(top_k).indices
    expected = (logits[kept] / temperature).softmax(0) * 20_000
    assert counts.sum() == counts[kept].sum(), "a code outside the top k came out"
    enough = expected > 5
    observed, wanted = counts[kept][enough], expected[enough].double().numpy()
    assert len(observed) > 3
    assert chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > 1e-4


def test_top_p_keeps_the_likeliest_codes_that_sum_up_to_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert (_draws(logits, 2_000, 1.0, 4, top_p=0.7) > 0).tolist() == [True, True, False, False]
    assert (_draws(logits, 2_000, 1.0, 4, top_p=0.01) > 0).tolist() == [True, False, False, False]


def test_codes_as_likely_as_the_last_of_the_top_k_are_kept() -> None:
    logits = torch.tensor([1.0, 0.0, 0.0, 0.0, -1.0])
    assert (_draws(logits, 4_000, 1.0, 2) > 0).tolist() == [True, True, True, True, False]


def test_without_noise_the_likeliest_code_comes_out() -> None:
    logits = torch.randn(5, 100)
    codes = choose(
        logits, 1, torch.arange(5), torch.arange(5), torch.ones(5), torch.zeros(5), torch.full((5,), 50)
    )
    assert torch.equal(codes, logits.argmax(-1))
