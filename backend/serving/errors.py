"""Every failure as OpenAI's error object: what went wrong, which field, and a code for programs."""

import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from backend.contract import UNEXPECTED_ERROR, EngineUnavailable, InvalidRequest, QueueFull, SpeechError
from backend.serving.schema import Error, ErrorBody

NOT_READY_RETRY_S = 5

# The engine's names of what the API calls otherwise.
_API_FIELD = {
    "text": "input",
    "speaker": "voice",
    "reference": "ref_audio",
    "transcript": "ref_text",
    "task": "task_type",
    "instruction": "instructions",
    "max_frames": "max_new_tokens",
    "first_chunk_frames": "initial_codec_chunk_frames",
}
_TYPES = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "forbidden"),
    404: ("invalid_request_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    409: ("invalid_request_error", "conflict"),
    413: ("invalid_request_error", "body_too_large"),
    415: ("invalid_request_error", "unsupported_media_type"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", "internal_error"),
    503: ("server_error", "engine_unavailable"),
}


class ApiError(Exception):
    """A refusal with an HTTP status of its own."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


def error_response(
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    kind, usual_code = _TYPES.get(status, ("invalid_request_error", "invalid_request"))
    # A message may quote what came in, half surrogate pairs included.
    readable = message.encode("utf-8", "replace").decode()
    error = Error(message=readable, type=kind, param=param, code=code or usual_code)
    return JSONResponse(ErrorBody(error=error).model_dump(), status, headers)


def speech_error_response(error: SpeechError) -> JSONResponse:
    match error:
        case InvalidRequest():
            param = _API_FIELD.get(error.param or "", error.param)
            return error_response(400, str(error), param, "invalid_value")
        case QueueFull():
            return error_response(429, str(error), headers=_retry_after(error.retry_after_s))
        case EngineUnavailable():
            return error_response(503, str(error), headers=_retry_after(NOT_READY_RETRY_S))
        case _:
            return error_response(500, str(error))


def install_error_handlers(app: FastAPI) -> None:
    async def on_speech_error(request: Request, error: SpeechError) -> JSONResponse:
        return speech_error_response(error)

    async def on_api_error(request: Request, error: ApiError) -> JSONResponse:
        return error_response(error.status, str(error), error.param, error.code)

    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        return error_response(400, *_field_at_fault(error.errors()[0]), code="invalid_value")

    async def on_http_exception(request: Request, error: HTTPException) -> JSONResponse:
        return error_response(error.status_code, str(error.detail), headers=error.headers)

    async def on_anything_else(request: Request, error: Exception) -> JSONResponse:
        return error_response(500, UNEXPECTED_ERROR)

    app.add_exception_handler(SpeechError, on_speech_error)  # type: ignore[arg-type]
    app.add_exception_handler(ApiError, on_api_error)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, on_validation_error)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, on_http_exception)  # type: ignore[arg-type]
    app.add_exception_handler(Exception, on_anything_else)


def _field_at_fault(error: Mapping[str, Any]) -> tuple[str, str | None]:
    """The sentence and the field of one of pydantic's errors."""
    if error["type"] == "json_invalid":
        return f"The body is not valid JSON: {error.get('ctx', {}).get('error', error['msg'])}.", None
    if error["type"] == "model_attributes_type":
        return "The body must be a JSON object, sent with Content-Type: application/json.", None
    message = str(error["msg"]).removeprefix("Value error, ")
    if param := error.get("ctx", {}).get("param"):
        return message, param
    # The first part says where the field was looked for: body, path or query.
    param = ".".join(str(part) for part in error["loc"][1:]).encode("utf-8", "replace").decode() or None
    return (f"{param}: {message}" if param else message), param


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
