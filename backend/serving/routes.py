"""The API's routes, for the page's own server: /v1, /health and /metrics."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, Request, UploadFile
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.contract import Capabilities, InvalidRequest, SpeechEngine
from backend.health import health_route
from backend.reference_audio import load_reference_clip
from backend.serving.errors import ApiError, install_error_handlers
from backend.serving.formats import MEDIA_TYPES, encode
from backend.serving.guard import Guard
from backend.serving.metrics import CountAnswers, Metrics
from backend.serving.request import DEFAULT_VOICE, VoiceChoice
from backend.serving.saved_voices import (
    MAX_VOICES,
    SavedVoice,
    SavedVoices,
    TooManyVoices,
    VoiceExists,
    default_folder,
)
from backend.serving.schema import (
    ErrorBody,
    Model,
    ModelList,
    SavedVoiceInfo,
    SpeechBody,
    VoiceDeleted,
    VoiceList,
    VoiceSaved,
)
from backend.serving.streaming import (
    ClientLeft,
    EventWire,
    StreamedSpeech,
    Wire,
    close,
    first_chunk,
    unless_client_leaves,
    whole,
)
from backend.settings import Settings
from backend.voices import ClipLoader, PresetVoice

logger = logging.getLogger(__name__)

_PREFIX = "/v1"
# What clients written for OpenAI call their model; here there is only the one that is loaded.
MODEL_ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts")
# For a client that is no longer there; nginx's number.
CLIENT_CLOSED_REQUEST = 499

_SPEECH: dict[str, Any] = {
    media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in MEDIA_TYPES.values()
} | {"text/event-stream": {}}
_NOT_READY = (503,)
_GUARDED = (401, 403, 413)


def api_routes(
    engine: SpeechEngine,
    presets: Sequence[PresetVoice],
    settings: Settings,
    load_clip: ClipLoader = load_reference_clip,
) -> list[BaseRoute]:
    """Routes to put before the page's own; `load_clip` reads the clips of presets and saved voices."""
    metrics = Metrics(engine)
    voices = VoiceChoice(
        presets,
        SavedVoices(settings.saved_voices or default_folder()),
        load_clip,
        settings.allowed_media_domains or (),
    )
    app = FastAPI(
        title="Speech API",
        description="OpenAI's speech API, with vLLM-Omni's fields for Qwen3-TTS.",
        version="1",
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(CountAnswers, metrics=metrics),
            Middleware(Guard, api_key=settings.api_key, closed=_why_closed(settings)),
        ],
    )
    install_error_handlers(app)
    _add_models(app, engine)
    _add_speech(app, engine, voices)
    _add_voices(
        app,
        engine,
        voices,
        saving_refused=_why_no_saving(settings),
        notes_shown=settings.api_key is not None or not settings.open_to_others,
    )
    return [health_route(engine), metrics.route(), Mount(_PREFIX, _under_root_path(app))]


def _under_root_path(app: ASGIApp) -> ASGIApp:
    """Gradio sets a root path without putting it in front of the path, as ASGI has it and a Mount
    relies on: a proxy has taken it off.
    """

    async def with_whole_path(scope: Scope, receive: Receive, send: Send) -> None:
        outer = scope["root_path"].removesuffix(_PREFIX)
        if not scope["path"].startswith(f"{outer}/"):
            scope = {**scope, "path": outer + scope["path"]}
        await app(scope, receive, send)

    return with_whole_path


def _why_closed(settings: Settings) -> str:
    if settings.auth and not settings.api_key:
        return "The page asks for a login and this API would not: start the app with --api-key to use it."
    return ""


def _why_no_saving(settings: Settings) -> str:
    if not settings.api_key and settings.open_to_others:
        return "Others can reach this server: start it with --api-key to save or delete voices."
    return ""


def _add_models(app: FastAPI, engine: SpeechEngine) -> None:
    started = int(time.time())

    @app.get("/models", responses=_errors(*_GUARDED, *_NOT_READY))
    async def list_models() -> ModelList:
        """The one model that is loaded."""
        return ModelList(data=[Model(id=_ready(engine).model, created=started)])

    @app.get("/models/{model:path}", responses=_errors(*_GUARDED, 404, *_NOT_READY))
    async def retrieve_model(model: str) -> Model:
        _check_model(model, _ready(engine))
        return Model(id=_ready(engine).model, created=started)


def _add_speech(app: FastAPI, engine: SpeechEngine, voices: VoiceChoice) -> None:
    @app.post(
        "/audio/speech",
        response_class=Response,
        responses={200: {"content": _SPEECH}, **_errors(400, *_GUARDED, 404, 429, 500, *_NOT_READY)},
    )
    async def create_speech(body: SpeechBody, request: Request) -> Response:
        """Speaks `input`. Headers tell the run's id, its seed and the sample rate in Hz."""
        capabilities = _ready(engine)
        if body.model is not None:
            _check_model(body.model, capabilities)
        run = engine.synthesize(await voices.request(body, capabilities))
        response: StreamedSpeech | None = None
        try:
            # The status can tell of a failure only until the first audio is sent.
            first = await unless_client_leaves(request.receive, first_chunk(run))
            headers = {
                "x-request-id": run.request_id,
                "x-seed": str(run.seed),
                "x-sample-rate": str(first.sample_rate_hz),
            }
            if body.is_streaming():
                kind = EventWire if body.is_sse_stream() else Wire
                wire = kind(body.response_format, first.sample_rate_hz, body.speed)
                # From here on it is the response that closes the run.
                response = StreamedSpeech(run, first, wire, headers)
                return response
            pcm = await unless_client_leaves(request.receive, whole(run, first))
        except ClientLeft:
            logger.info("%s: the client has left.", run.request_id)
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        finally:
            if response is None:
                await close(run)
        content = await asyncio.to_thread(encode, pcm, first.sample_rate_hz, body.response_format, body.speed)
        return Response(content, headers=headers, media_type=MEDIA_TYPES[body.response_format])


def _add_voices(
    app: FastAPI, engine: SpeechEngine, voices: VoiceChoice, saving_refused: str, notes_shown: bool
) -> None:
    """`notes_shown` tells whether callers may read what saved voices' owners have told."""

    def check_saving() -> None:
        if saving_refused:
            raise ApiError(403, saving_refused)

    @app.get("/audio/voices", responses=_errors(*_GUARDED))
    async def list_voices() -> VoiceList:
        """The voices that speech can be asked for, and what is known of the saved ones."""
        saved = await asyncio.to_thread(voices.saved.all)
        return VoiceList(
            voices=voices.names(engine.capabilities),
            uploaded_voices=[_info(voice, notes_shown) for voice in saved],
        )

    @app.post("/audio/voices", responses=_errors(400, *_GUARDED, 409))
    async def save_voice(
        audio_sample: Annotated[UploadFile, File(description="A clip of the voice, 1 to 30 s.")],
        consent: Annotated[str, Form(description="Whose voice it is and that they agreed to its use.")],
        name: Annotated[str, Form()],
        ref_text: Annotated[str, Form(description="What the clip says.")] = "",
        speaker_description: Annotated[str, Form()] = "",
    ) -> VoiceSaved:
        """Keeps a voice under a name, also over restarts."""
        check_saving()
        if voices.is_preset(name.strip()) or name.strip().casefold() == DEFAULT_VOICE:
            raise ApiError(409, f"The name {name!r} belongs to a voice of the app; choose another.", "name")
        data = await audio_sample.read()

        def save() -> SavedVoice:
            try:
                clip = load_reference_clip(data)
            except InvalidRequest as error:
                raise InvalidRequest(str(error), "audio_sample") from None
            return voices.saved.save(name, clip, consent, ref_text, speaker_description)

        try:
            return VoiceSaved(voice=_info(await asyncio.to_thread(save), notes_shown=True))
        except VoiceExists:
            raise ApiError(
                409, f"There is a voice named {name!r} already; delete it first.", "name"
            ) from None
        except TooManyVoices:
            raise ApiError(409, f"{MAX_VOICES} voices are saved already; delete one first.") from None

    @app.delete("/audio/voices/{name}", responses=_errors(*_GUARDED, 404))
    async def delete_voice(name: str) -> VoiceDeleted:
        """Deletes a saved voice and its clip."""
        check_saving()
        if voices.is_preset(name):
            raise ApiError(403, f"The voice {name!r} belongs to the app and stays.")
        if not await asyncio.to_thread(voices.saved.delete, name):
            raise ApiError(404, f"There is no saved voice named {name!r}.")
        return VoiceDeleted(message=f"The voice {name!r} is deleted.")


def _ready(engine: SpeechEngine) -> Capabilities:
    if (unavailable := engine.status.unavailable) is not None:
        raise unavailable
    capabilities = engine.capabilities
    assert capabilities is not None
    return capabilities


def _check_model(name: str, capabilities: Capabilities) -> None:
    known = capabilities.model
    if name not in (known, known.rpartition("/")[2], *MODEL_ALIASES):
        raise ApiError(404, f"There is no model {name!r}; {known} is loaded.", "model", "model_not_found")


def _info(voice: SavedVoice, notes_shown: bool) -> SavedVoiceInfo:
    return SavedVoiceInfo(
        name=voice.name,
        consent=voice.consent if notes_shown else None,
        created_at=voice.created_at,
        duration_s=voice.duration_s,
        ref_text=(voice.transcript or None) if notes_shown else None,
        speaker_description=voice.description or None,
    )


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody} for status in statuses}
