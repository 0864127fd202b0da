"""Our speech request against vLLM-Omni's own."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from backend.serving.schema import UNSUPPORTED_FIELDS, SpeechBody


def test_the_fields_are_vllm_omnis() -> None:
    upstream = SpeechBody.__mro__[1]
    assert upstream.__name__ == "OpenAICreateSpeechRequest"
    ours = set(SpeechBody.model_fields) - set(upstream.model_fields)
    assert ours == {"temperature", "top_k", "predictor_temperature", "predictor_top_k"}
    assert set(UNSUPPORTED_FIELDS) < set(upstream.model_fields)


def test_unsupported_fields_are_not_advertised() -> None:
    properties = SpeechBody.model_json_schema()["properties"]
    assert set(properties) == set(SpeechBody.model_fields) - set(UNSUPPORTED_FIELDS)
    assert "aac" in properties["response_format"]["enum"]


def test_defaults_of_unsupported_fields_may_be_sent() -> None:
    SpeechBody(input="x", word_timestamps=False, speaker_embedding=None)
    with pytest.raises(ValidationError, match="speaker_embedding"):
        SpeechBody(input="x", speaker_embedding=[])


@pytest.mark.parametrize(
    ("fields", "raw", "sse"),
    [
        ({}, False, False),
        ({"stream": True}, True, False),
        ({"stream_format": "audio"}, True, False),
        ({"stream_format": "sse"}, False, True),
        ({"stream": True, "stream_format": "sse"}, False, True),
    ],
)
def test_stream_means_raw_audio(fields: dict[str, object], raw: bool, sse: bool) -> None:
    body = SpeechBody(input="x", **fields)
    assert (body.is_raw_audio_stream(), body.is_sse_stream()) == (raw, sse)
    assert body.is_streaming() == (raw or sse)


def test_importing_it_imports_no_engine() -> None:
    code = (
        "import sys, backend.serving.routes; "
        "print([name for name in ('torch', 'vllm', 'vllm_omni', 'transformers') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
