"""What a request asks of the code predictor, on its way to the talker's process."""

import msgspec
import pytest

from backend.contract import Mode, SpeechRequest, Task
from backend.predictor_request import PredictorRequest

DEFAULTS = PredictorRequest(temperature=0.9, top_k=50, top_p=1.0)


def arrived(request: SpeechRequest, default: Mode = Mode.GRAPH) -> PredictorRequest:
    info: dict[str, list[object]] = {"text": ["Hello."]}
    PredictorRequest.of(request, "run-1", 2**31 - 1, default).write(info)
    return PredictorRequest.read(msgspec.msgpack.decode(msgspec.msgpack.encode(info)), DEFAULTS)


def test_a_plain_request_gets_the_stage_configuration_s_sampling() -> None:
    asked = arrived(SpeechRequest("Hello.", Task.VOICE_CLONE))
    assert asked == PredictorRequest("run-1", 2**31 - 1, 0.9, 50, 1.0, graph=True)


def test_its_own_values_win_and_zero_is_a_value() -> None:
    request = SpeechRequest("Hello.", Task.VOICE_CLONE, predictor_temperature=0.0, predictor_top_k=3)
    controls = arrived(request).controls(7)
    assert (controls.temperature, controls.top_k, controls.frame) == (0.0, 3, 7)


@pytest.mark.parametrize("default", Mode)
@pytest.mark.parametrize("mode", [None, *Mode])
def test_the_mode_is_the_request_s_or_the_default(mode: Mode | None, default: Mode) -> None:
    request = SpeechRequest("Hello.", Task.VOICE_CLONE, mode=mode)
    assert arrived(request, default).graph is ((mode or default) is Mode.GRAPH)


def test_a_request_made_by_somebody_else_gets_the_defaults() -> None:
    assert PredictorRequest.read({"text": ["Hello."]}, DEFAULTS) == DEFAULTS
