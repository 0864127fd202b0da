"""Clones by the bundled checkpoint, in float32 and greedy, against the reference package's."""

import numpy as np
import pytest

from backend.checkpoint import BUNDLED_DIR
from backend.contract import FinishReason
from backend.engine import OmniSpeechEngine
from tests.codec import load_decoder, one_thread, waveform
from tests.engine.in_process.speaking import SAMPLES_PER_FRAME, speak
from tests.reference.captures import (
    BUNDLED,
    INT16_MAX,
    WAVEFORM_TOLERANCE,
    capture,
    check_checkpoint,
    same_arithmetic,
)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", ["x_vector", "in_context"])
async def test_a_clone_says_the_reference_s_codes_frame_by_frame(
    engine: OmniSpeechEngine, case: str, stream: bool
) -> None:
    """Told from the audio: every code in use is heard (tests/reference/test_codec.py)."""
    check_checkpoint(BUNDLED, BUNDLED_DIR)
    made = capture(BUNDLED, case)
    with one_thread():
        expected = waveform(load_decoder(BUNDLED_DIR), made)
    speech = await speak(engine, made.request(stream=stream))
    frames = made.facts["frames"]
    assert (speech.report.frames, len(speech.pcm)) == (frames, frames * SAMPLES_PER_FRAME)
    ended = made.facts["ended_by"] == "end of speech"
    assert speech.report.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
    # The reference may leave a sample of the clip in front.
    pcm = np.rint(np.clip(expected, -1, 1)[-len(speech.pcm) :] * INT16_MAX)
    by_frame = np.abs(speech.pcm - pcm).reshape(frames, -1).max(axis=1)
    # Bits agree where it decodes the same frames at once; else the last digit is rounded another way.
    steps = 0 if case == "x_vector" and not stream else 1
    limit = steps if same_arithmetic(BUNDLED) else WAVEFORM_TOLERANCE * np.abs(pcm).max() + 1
    assert by_frame.max() <= limit, f"first at frame {np.flatnonzero(by_frame > limit)[0]}"
