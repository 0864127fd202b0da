"""What is spoken for a capture, by the kind of checkpoint."""

from dataclasses import dataclass

TEXT = "The old harbour lights were burning low when the last of the fishing boats came home."


@dataclass(frozen=True)
class Case:
    """One utterance. Greedy in both the talker and the code predictor unless `sampled`.

    `voice` names a clip of assets/voices, with `in_context` also its transcript; `speaker` is one of
    the checkpoint's own. `eager_to_end` raises the logit of the end of speech at every step.
    """

    name: str
    text: str = TEXT
    language: str = "English"
    voice: str = ""
    in_context: bool = False
    speaker: str = ""
    instruction: str = ""
    sampled: bool = False
    seed: int = 7
    max_new_tokens: int = 150
    eager_to_end: bool = False


CASES: dict[str, tuple[Case, ...]] = {
    "base": (
        Case("x_vector", voice="clara"),
        Case("in_context", voice="clara", in_context=True),
        Case("x_vector_sampled", voice="hugo", language="Auto", sampled=True, max_new_tokens=60),
        Case("in_context_sampled", voice="hugo", in_context=True, sampled=True, max_new_tokens=60),
    ),
    "custom_voice": (
        Case("named_speaker", speaker="Ryan"),
        Case(
            "named_speaker_dialect",
            text="Hello there, how are you doing today?",
            speaker="Eric",
            language="Chinese",
            instruction="Speak slowly.",
            max_new_tokens=60,
        ),
        Case("named_speaker_sampled", speaker="Vivian", sampled=True, max_new_tokens=60),
        Case("named_speaker_eager_to_end", speaker="Ryan", eager_to_end=True),
    ),
}
