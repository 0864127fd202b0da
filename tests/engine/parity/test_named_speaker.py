"""A named speaker, of the random checkpoint in float32: rows, logits, codes and audio are the reference's."""

import numpy as np
import pytest

from backend.contract import FinishReason
from tests.engine.parity.conftest import ObservedEngine
from tests.reference.captures import SAMPLES_PER_FRAME, TINY, capture, manifest, same_arithmetic

# Of float32 on a processor that adds up in another order; logits have a standard deviation of 3.
ROWS_TOLERANCE, LOGITS_TOLERANCE = 1e-5, 1e-3


@pytest.mark.parametrize("case", ["named_speaker", "named_speaker_dialect"])
async def test_rows_logits_and_codes_are_the_reference_s(
    named_speaker_engine: ObservedEngine, case: str
) -> None:
    made = capture(TINY, case)
    speech = await named_speaker_engine.speak(made.request(stream=False))
    seen = named_speaker_engine.seen
    rows = made.arrays["prompt_embeddings"]
    assert seen["prompt_embeddings"][0].shape == rows.shape
    np.testing.assert_allclose(seen["prompt_embeddings"][0], rows, rtol=0, atol=ROWS_TOLERANCE)
    for ours, theirs in zip(seen["logits"], made.arrays["talker_logits"], strict=False):
        allowed = np.isfinite(ours[0])
        np.testing.assert_allclose(ours[0][allowed], theirs[allowed], rtol=0, atol=LOGITS_TOLERANCE)
    np.testing.assert_array_equal(np.concatenate(seen["codes"])[: len(made.codes)], made.codes)
    assert speech.report.finish_reason is FinishReason.STOP
    assert made.facts["ended_by"] == "end of speech"
    assert len(speech.pcm) == made.facts["samples"] == made.facts["frames"] * SAMPLES_PER_FRAME
    head = speech.pcm[: len(made.pcm)]
    if same_arithmetic(TINY):
        np.testing.assert_array_equal(head, made.pcm)
    np.testing.assert_allclose(head, made.pcm, rtol=0, atol=1e-3 * np.abs(made.pcm).max() + 1)


async def test_the_penalty_on_repetition_takes_the_reference_s_decisions(
    named_speaker_engine: ObservedEngine,
) -> None:
    made = capture(TINY, "named_speaker")
    assert made.facts["generation"]["repetition_penalty"] == 1.05
    await named_speaker_engine.speak(made.request())
    best = [int(logits[0].argmax()) for logits in named_speaker_engine.seen["logits"]]
    tokens = made.arrays["talker_tokens"].tolist()
    against = [step for step, (raw, token) in enumerate(zip(best, tokens, strict=True)) if raw != token]
    assert len(against) == made.facts["steps_decided_by_penalty"] > 0
    spoken = np.concatenate(named_speaker_engine.seen["codes"])[:, 0].tolist()
    assert spoken[: len(made.codes)] == tokens[: len(made.codes)]


async def test_what_may_be_sampled_is_what_the_reference_does_not_suppress(
    named_speaker_engine: ObservedEngine,
) -> None:
    made = capture(TINY, "named_speaker_dialect")
    await named_speaker_engine.speak(made.request(max_frames=4))
    rows = manifest(TINY)["constants"]["talker_rows"]
    first, last, count = made.facts["generation"]["suppressed"]
    end = made.facts["generation"]["eos_token_id"]
    expected = {*range(first), end}
    assert (last, count, len(expected)) == (rows - 1, rows - first - 1, first + 1)
    for logits in named_speaker_engine.seen["logits"]:
        assert set(np.flatnonzero(np.isfinite(logits[0])).tolist()) == expected


async def test_speech_that_wants_to_end_at_once_has_the_reference_s_least_frames(
    named_speaker_engine: ObservedEngine,
) -> None:
    made = capture(TINY, "named_speaker_eager_to_end")
    assert made.facts["frames"] == made.facts["generation"]["min_new_tokens"] == 2
    speech = await named_speaker_engine.speak(made.request(), eager_to_end=True)
    assert speech.report.frames == made.facts["frames"]
    assert speech.report.finish_reason is FinishReason.STOP
    np.testing.assert_array_equal(np.concatenate(named_speaker_engine.seen["codes"])[:2], made.codes)
