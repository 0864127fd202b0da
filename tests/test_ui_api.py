"""The page's public endpoint, for programs."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile
from gradio_client import Client
from gradio_client.exceptions import AppError

from tests.fakes import NAMED_SPEAKERS, FakeSpeechEngine, served
from ui.api_description import PARAMETERS

ENGINE = FakeSpeechEngine(NAMED_SPEAKERS, ttfa_s=0.0, rtf=0.02)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(ENGINE) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(url, verbose=False)


def test_only_the_text_is_needed(client: Client) -> None:
    chunk, clip, figures = client.predict("Hello from a program.", api_name="/speak")
    assert chunk["end"] is True
    samples, rate = soundfile.read(Path(clip), dtype="int16")
    assert rate == 24_000
    np.testing.assert_array_equal(samples, ENGINE.runs[-1].pcm)
    assert figures["state"] == "finished"
    assert figures["seed"] == ENGINE.runs[-1].seed


def test_fields_are_named(client: Client) -> None:
    client.predict(
        text="Hello",
        voice="Ryan",
        language="German",
        seed="9",
        temperature=0.5,
        predictor_temperature=0.25,
        predictor_top_k=6,
        stream=False,
        api_name="/speak",
    )
    request = ENGINE.requests[-1]
    assert (request.speaker, request.language, request.seed) == ("Ryan", "German", 9)
    assert (request.temperature, request.stream, request.top_k) == (0.5, False, None)
    assert (request.predictor_temperature, request.predictor_top_k) == (0.25, 6)


def test_every_chunk_is_seen_in_order(client: Client) -> None:
    job = client.submit("Hello", api_name="/speak")
    pieces = {chunk["seq"]: chunk["pcm"] for chunk, _, _ in job if isinstance(chunk, dict) and "pcm" in chunk}
    assert sorted(pieces) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"text": ""}, "There is no text to say."),
        ({"text": "Hello", "language": "Klingon"}, "There is no language 'Klingon'."),
        ({"text": "Hello", "voice": "Nobody"}, "There is no speaker 'Nobody'."),
        ({"text": "Hello", "seed": "lucky"}, "The seed must be a whole number"),
    ],
)
def test_bad_input_is_an_error_with_one_sentence(
    fields: dict[str, str], sentence: str, client: Client
) -> None:
    with pytest.raises(AppError, match=sentence):
        client.predict(**fields, api_name="/speak")


def test_a_lone_surrogate_is_an_error_and_not_a_crash(url: str) -> None:
    call = f"{url}gradio_api/call/speak"
    rest = [None, None, True, None, None, True, *[None] * 11]
    body = json.dumps({"data": ["half \ud800 a pair", *rest]})
    event = httpx.post(call, content=body, headers={"content-type": "application/json"}).json()["event_id"]
    answer = httpx.get(f"{call}/{event}", timeout=20).text
    assert "event: error" in answer
    assert "surrogate" in json.dumps(answer)


def test_speak_is_the_only_public_endpoint(client: Client) -> None:
    endpoints = client.view_api(return_format="dict", print_info=False)
    assert list(endpoints["named_endpoints"]) == ["/speak"]
    assert endpoints["unnamed_endpoints"] == {}


def test_every_parameter_that_a_program_may_give_is_described(client: Client) -> None:
    endpoint = client.view_api(return_format="dict", print_info=False)["named_endpoints"]["/speak"]
    names = [parameter["parameter_name"] for parameter in endpoint["parameters"]]
    # The page's own: the task follows from the checkpoint, the id belongs to the player.
    assert [name for name in names if name not in PARAMETERS] == ["task", "run_id"]
    for name, about in PARAMETERS.items():
        assert name in names
        assert f"{name}: {about}" in endpoint["description"]
    assert all(parameter["parameter_has_default"] for parameter in endpoint["parameters"])
