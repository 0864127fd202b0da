"""What the engine says before it reports ready: every path a first user could take, briefly."""

from collections.abc import Iterator
from dataclasses import replace

from backend.contract import SpeechRequest, Task
from backend.model_info import ModelInfo
from backend.reference_audio import load_reference_clip
from backend.voices import load_preset_voices

TEXT = "Hello, and welcome. This is the first sentence, spoken to warm up."
INSTRUCTION = "A calm voice."


def rounds(model: ModelInfo, most_at_once: int) -> Iterator[list[SpeechRequest]]:
    """Requests to speak together: first as many at once as there are places, then each alone.

    The GPU stages compile or record a batch size when they first meet it, and runs of unequal
    length pass through all of them as they end. The last round's RTF is the first estimate.
    """
    each = list(requests(model))
    if most_at_once > 1:
        yield [replace(each[-1], max_frames=20 + i, stream=True) for i in range(most_at_once)]
    for request in each:
        yield [request]


def requests(model: ModelInfo) -> Iterator[SpeechRequest]:
    """Requests that cover the checkpoint's task, the plainest last."""
    match model.task:
        case Task.VOICE_CLONE:
            voice = load_preset_voices()[0]
            clip = load_reference_clip(voice.audio_path)
            cloned = SpeechRequest(
                TEXT, model.task, reference=clip, transcript=voice.transcript, max_frames=30
            )
            yield cloned
            yield replace(cloned, x_vector_only=True, stream=False)
            yield replace(cloned, x_vector_only=True, max_frames=60)
        case Task.NAMED_SPEAKER:
            named = SpeechRequest(TEXT, model.task, speaker=model.speakers[0], max_frames=30)
            yield replace(named, stream=False)
            yield replace(named, max_frames=60)
        case Task.VOICE_DESIGN:
            designed = SpeechRequest(TEXT, model.task, instruction=INSTRUCTION, max_frames=30)
            yield replace(designed, stream=False)
            yield replace(designed, max_frames=60)
