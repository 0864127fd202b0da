"""What the engine says before it reports ready: every path a first user could take, briefly."""

from collections.abc import Iterator
from dataclasses import replace

from backend.contract import SpeechRequest, Task
from backend.families.family import ModelInfo
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
    """Requests that cover the checkpoint's tasks, the plainest last."""
    for task in reversed(model.tasks):
        yield from _requests(task, model)


def _requests(task: Task, model: ModelInfo) -> Iterator[SpeechRequest]:
    first, last = model.family.warm_up_frames
    plain = SpeechRequest(TEXT, task, max_frames=first)
    match task:
        case Task.VOICE_CLONE:
            voice = load_preset_voices()[0]
            cloned = replace(
                plain, reference=load_reference_clip(voice.audio_path), transcript=voice.transcript
            )
            yield cloned
            if not model.supports_x_vector:
                return
            plain = replace(cloned, x_vector_only=True)
        case Task.NAMED_SPEAKER:
            plain = replace(plain, speaker=model.speakers[0])
        case Task.VOICE_DESIGN:
            plain = replace(plain, instruction=INSTRUCTION)
    yield replace(plain, stream=False)
    yield replace(plain, max_frames=last)
