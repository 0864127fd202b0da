"""What the API takes and gives. The speech request is vLLM-Omni's own model, with what this app adds.

Imports neither torch nor vLLM: the page, and these routes, are up before vLLM has been imported.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from backend.prompt import MAX_TOP_K

_UPSTREAM_FILE = Path("entrypoints", "openai", "protocol", "audio.py")


def _upstream() -> ModuleType:
    """vLLM-Omni's protocol/audio.py, which itself needs only pydantic and numpy, without the packages
    around it: importing those takes as long as importing vLLM.
    """
    package = importlib.util.find_spec("vllm_omni")
    assert package is not None
    assert package.submodule_search_locations is not None
    path = Path(package.submodule_search_locations[0]) / _UPSTREAM_FILE
    name = "vllm_omni_audio_protocol"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_OpenAICreateSpeechRequest: Any = _upstream().OpenAICreateSpeechRequest

# Of other model families, or of stages that this app's engine does not have.
UNSUPPORTED_FIELDS = (
    "sample_rate",
    "ref_audio_2",
    "ambient_sound",
    "duration_seconds",
    "speaker_embedding",
    "non_streaming_mode",
    "extra_params",
    "word_timestamps",
)

STREAMED_FORMATS = ("pcm", "wav")
AudioFormat = Literal["wav", "pcm", "flac", "mp3", "opus", "aac"]


def _only_supported(schema: dict[str, Any]) -> None:
    schema["title"] = "SpeechBody"
    schema["description"] = SpeechBody.__doc__
    for name in UNSUPPORTED_FIELDS:
        schema["properties"].pop(name)


class SpeechBody(_OpenAICreateSpeechRequest):
    """The body of POST /v1/audio/speech: OpenAI's fields, and vLLM-Omni's for Qwen3-TTS.

    Beside what is upstream, sampling can be set, `response_format` may be aac, and `stream` means raw
    audio unless `stream_format` is sse, so that one field is enough to hear speech while it is made.
    """

    model_config = ConfigDict(json_schema_extra=_only_supported)

    input: str = Field(description="The text to speak.", examples=["Good morning."])
    model: str | None = Field(
        default=None, description="The id that /v1/models gives; left out, the loaded model."
    )
    voice: str | None = Field(
        default=None,
        validation_alias=AliasChoices("voice", "speaker"),
        description="One of the names that /v1/audio/voices gives; left out or default, the first of them, "
        "or the model's own choice where it speaks without a clip. OpenAI's object with an id is taken too.",
    )
    response_format: AudioFormat = "wav"
    stream_format: Literal["audio", "sse"] | None = Field(
        default=None,
        description="How to stream: audio is raw bytes, sse OpenAI's speech.audio events. "
        "Either turns streaming on.",
    )
    stream: bool = Field(
        default=False,
        description="Send the audio while it is made, as raw bytes unless stream_format says otherwise; "
        "for the formats pcm and wav.",
    )
    ref_audio: str | None = Field(
        default=None,
        description="Clip of a voice to clone: a data URL, the name of a saved voice, or a URL on a host "
        "that the server allows. Wins over voice.",
    )
    x_vector_only_mode: bool | None = Field(
        default=None,
        description="Take only the sound of the clip's voice. False also follows the delivery of the clip, "
        "and needs its transcript. Left out: false where ref_text is given, else true.",
    )

    temperature: float | None = Field(
        default=None,
        ge=0.0,
        le=2.0,
        description="Of the talker, which draws each frame's first code. 0 takes the most likely.",
    )
    top_k: int | None = Field(
        default=None, ge=1, le=MAX_TOP_K, description="The talker draws from this many codes."
    )
    predictor_temperature: float | None = Field(
        default=None,
        ge=0.0,
        le=2.0,
        description="Of the code predictor, which draws each frame's other codes. 0 takes the most likely.",
    )
    predictor_top_k: int | None = Field(
        default=None, ge=1, le=MAX_TOP_K, description="The code predictor draws from this many codes."
    )

    @field_validator("ref_audio", mode="before")
    @classmethod
    def normalize_ref_audio(cls, value: Any) -> Any:
        return value

    @field_validator("speed")
    @classmethod
    def default_speed(cls, value: float | None) -> float:
        return 1.0 if value is None else value

    @model_validator(mode="after")
    def refuse_unsupported(self) -> "SpeechBody":
        for name in UNSUPPORTED_FIELDS:
            if getattr(self, name) not in (None, False):
                raise _refusal(name, f"This server has no {name}; leave it out.")
        return self

    @model_validator(mode="after")
    def validate_streaming_constraints(self) -> "SpeechBody":
        if self.is_streaming() and self.response_format not in STREAMED_FORMATS:
            raise _refusal(
                "response_format", "Only pcm and wav can be streamed; choose one, or do not stream."
            )
        return self

    def is_raw_audio_stream(self) -> bool:
        return self.stream_format == "audio" or (self.stream and self.stream_format is None)

    def is_sse_stream(self) -> bool:
        return self.stream_format == "sse"


def _refusal(param: str, sentence: str) -> PydanticCustomError:
    """A validation error of the whole body that still names the field at fault."""
    return PydanticCustomError("unsupported", sentence, {"param": param})


class Error(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    error: Error


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="When this server started, in Unix seconds.")
    owned_by: str = "vllm-omni"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class SavedVoiceInfo(BaseModel):
    """A voice saved through this API, as vLLM-Omni describes one."""

    name: str
    consent: str | None = Field(
        default=None,
        description="Whose voice it is and what they agreed to, as told when it was saved. This and ref_text "
        "are left out where others can reach the server and it asks for no key.",
    )
    created_at: int = Field(description="Unix seconds.")
    duration_s: float
    ref_text: str | None = None
    speaker_description: str | None = None


class VoiceList(BaseModel):
    voices: list[str] = Field(description="Every name that `voice` may have.")
    uploaded_voices: list[SavedVoiceInfo]


class VoiceSaved(BaseModel):
    success: Literal[True] = True
    voice: SavedVoiceInfo


class VoiceDeleted(BaseModel):
    success: Literal[True] = True
    message: str
