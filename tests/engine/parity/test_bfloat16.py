"""The bundled checkpoint's talker in bfloat16, made to follow the reference's codes, against its float32.

Left to itself it soon takes the other of two codes that are about equally good, and says the same in
another way; so each step is compared with the same past behind it.
"""

import numpy as np
import pytest

from tests.engine.parity.conftest import ObservedEngine
from tests.reference.captures import BUNDLED, Capture, capture

# Measured on the CPU: logits are up to 0.07 off (of a standard deviation of 1.5), no code of group 0 was
# another, and codes of other groups only where the best two were within 0.03.
LOGITS_TOLERANCE = 0.15
PREDICTOR_TOLERANCE = 0.05


@pytest.fixture
def greedy() -> Capture:
    return capture(BUNDLED, "x_vector")


async def test_in_bfloat16_only_near_ties_are_decided_otherwise(
    bfloat16_engine: ObservedEngine, greedy: Capture
) -> None:
    speech = await bfloat16_engine.speak(greedy.request(), forced=greedy.codes)
    assert speech.report.frames == len(greedy.codes)
    seen = bfloat16_engine.seen
    logits = np.concatenate(seen["logits"])
    for ours, theirs in zip(logits, greedy.arrays["talker_logits"], strict=False):
        allowed = np.isfinite(ours)
        np.testing.assert_allclose(ours[allowed], theirs[allowed], rtol=0, atol=LOGITS_TOLERANCE)
    tokens = greedy.arrays["talker_tokens"]
    otherwise = logits.argmax(axis=1) != tokens
    assert (greedy.arrays["talker_margins"][otherwise] < 2 * LOGITS_TOLERANCE).all()
    assert otherwise.mean() < 0.1

    codes, margins = np.concatenate(seen["codes"]), greedy.arrays["predictor_margins"]
    frames_otherwise = np.flatnonzero((codes != greedy.codes).any(axis=1))
    for frame in frames_otherwise:
        # From the first other code on, the rest of the frame follows that one.
        group = int(np.flatnonzero(codes[frame] != greedy.codes[frame])[0])
        assert margins[frame, group - 1] < PREDICTOR_TOLERANCE, (frame, group)
    assert len(frames_otherwise) < 0.25 * len(codes)


async def test_what_the_reference_sampled_could_have_been_sampled_here(
    bfloat16_engine: ObservedEngine,
) -> None:
    made = capture(BUNDLED, "x_vector_sampled")
    await bfloat16_engine.speak(made.request(), forced=made.codes)
    logits = np.concatenate(bfloat16_engine.seen["logits"])
    tokens = made.arrays["talker_tokens"].astype(int)
    assert len(logits) == len(tokens)
    least = np.sort(logits, axis=1)[:, -made.facts["generation"]["top_k"]]
    assert (logits[np.arange(len(tokens)), tokens] > least - LOGITS_TOLERANCE).all()
    # Nor is it the best every time: the capture was sampled.
    assert (logits.argmax(axis=1) != tokens).any()
