"""The page: handlers first, layout last."""

import dataclasses
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from backend.contract import InvalidRequest, Phase, ReferenceClip, SpeechEngine, Task
from backend.reference_audio import load_reference_clip
from backend.voices import ClipLoader, PresetVoice
from ui.api_description import DESCRIPTION
from ui.compare import CompareTab
from ui.engine_chip import EngineChip
from ui.engine_state import (
    capability_updates,
    chip_value,
    task_updates,
    voice_updates,
)
from ui.fields import advanced_fields, text_fields, voice_fields
from ui.player import SpeechPlayer
from ui.request import Fields
from ui.run_panel import RunPanel
from ui.speaker import Speaker, Update
from ui.theme import QUIET

POLL_WHILE_STARTING_S = 1.0
POLL_S = 3.0


class Page:
    """Handlers of one page, which serves every visitor."""

    def __init__(self, engine: SpeechEngine, voices: Sequence[PresetVoice], load_clip: ClipLoader) -> None:
        self.engine = engine
        self.voices = voices
        self.load_clip = load_clip
        self.speaker = Speaker(engine, voices, load_clip)

    async def speak(
        self,
        text: str,
        voice: str | None = None,
        language: str | None = None,
        stream: bool = True,
        own_clip: str | None = None,
        transcript: str | None = None,
        x_vector_only: bool = True,
        instruction: str | None = None,
        seed: str | None = None,
        temperature: float | None = None,
        top_k: float | None = None,
        max_length_s: float | None = None,
        first_chunk_frames: float | None = None,
        mode: str | None = None,
        predictor_temperature: float | None = None,
        predictor_top_k: float | None = None,
        task: str | None = None,
        run_id: str | None = None,
    ) -> AsyncGenerator[Update, None]:
        """Streams speech: each value has a chunk of int16 PCM, the last the whole clip and all figures."""
        fields = Fields(
            text=text or "",
            voice=voice,
            own_clip=own_clip,
            transcript=transcript or "",
            x_vector_only=x_vector_only,
            instruction=instruction or "",
            language=language,
            stream=stream,
            seed=seed or "",
            temperature=temperature,
            top_k=_whole(top_k),
            max_length_s=max_length_s,
            first_chunk_frames=_whole(first_chunk_frames),
            mode=mode,
            predictor_temperature=predictor_temperature,
            predictor_top_k=_whole(predictor_top_k),
        )
        async for update in self.speaker.speak(fields, task, run_id):
            yield update

    def refresh(self, fields: dict[str, Any], shown: dict[str, str] | None) -> dict[Any, Any]:
        """Brings a page up to date; the fields only when the engine's phase has changed since `shown`."""
        status, capabilities = self.engine.status, self.engine.capabilities
        updates: dict[str, Any] = {"chip": chip_value(status, capabilities)}
        if not shown or shown.get("phase") != status.phase:
            starting = status.phase in (Phase.LOADING, Phase.WARMING)
            updates["poll"] = gr.Timer(POLL_WHILE_STARTING_S if starting else POLL_S)
            updates["speak"] = gr.Button(interactive=status.phase is Phase.READY)
            if status.phase is Phase.READY and capabilities is not None:
                updates |= capability_updates(capabilities, self.voices)
        return {fields[name]: update for name, update in updates.items()}

    def speak_button(self) -> Any:
        """Speak, once no run of this visitor is being made."""
        return gr.Button(interactive=self.engine.status.phase is Phase.READY)

    def check_clip(self, clip: str | None) -> Any:
        """Says at once whether an uploaded or recorded clip can be used."""
        if not clip:
            return gr.Markdown(value="", visible=False)
        try:
            reference: ReferenceClip = self.load_clip(Path(clip))
        except InvalidRequest as error:
            return gr.Markdown(value=f"**{error}**", visible=True)
        return gr.Markdown(value=f"{reference.duration_s:.1f} s, good to use.", visible=True)


def build_page(
    engine: SpeechEngine,
    voices: Sequence[PresetVoice] = (),
    load_clip: ClipLoader = load_reference_clip,
    title: str = "Speak",
) -> gr.Blocks:
    """The page for `engine`, which may still be loading. Launch it with `ui.theme.launch_options()`.

    The engine has its own queue, so the speak event has no concurrency limit: a run that is one
    too many is refused by the engine, with a sentence.
    """
    page = Page(engine, voices, load_clip)
    player = SpeechPlayer(render=False, elem_id="speech-player")
    fields: dict[str, Any] = {}

    with gr.Blocks(title=title, delete_cache=(3600, 3600), analytics_enabled=False) as demo:
        with gr.Row(elem_id="page-head"):
            gr.Markdown(f"# {title}", container=False)
            fields["chip"] = EngineChip(chip_value(engine.status, engine.capabilities), elem_id="engine-chip")
        fields["notice"] = gr.Markdown(visible=False, elem_id="notice")
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Speak"), gr.Row():
                with gr.Column(scale=6, min_width=320):
                    fields |= text_fields()
                    fields |= voice_fields()
                    fields |= advanced_fields()
                with gr.Column(scale=5, min_width=320, elem_id="result"):
                    with gr.Row():
                        fields["speak"] = gr.Button(
                            "Speak",
                            variant="primary",
                            size="lg",
                            interactive=False,
                            elem_id="speak-button",
                            scale=3,
                        )
                        fields["stop"] = gr.Button(
                            "Stop",
                            size="lg",
                            interactive=False,
                            elem_id="stop-button",
                            scale=1,
                            min_width=96,
                        )
                    with gr.Column(elem_id="run-card"):
                        panel = RunPanel(elem_id="run-panel")
                        player.render()
                    clip = gr.Audio(
                        label="Finished clip",
                        interactive=False,
                        format="wav",
                        buttons=["download"],
                        elem_id="finished-clip",
                    )
            with gr.Tab("Compare", elem_id="compare-tab"):
                comparing = CompareTab(engine, voices, load_clip)
                fields |= comparing.fields
        run_id = gr.Textbox(visible=False, label="Run id")
        fields["poll"] = gr.Timer(POLL_WHILE_STARTING_S)

        _wire_run(page, fields, run_id, player, clip, panel)
        _wire_fields(page, fields)
        comparing.wire(fields)
        everything = list(fields.values())

        def refresh(shown: dict[str, str] | None) -> dict[Any, Any]:
            return page.refresh(fields, shown)

        demo.load(lambda: refresh(None), None, everything, **QUIET)
        fields["poll"].tick(refresh, fields["chip"], everything, **QUIET)
    return demo


def _wire_run(
    page: Page,
    fields: dict[str, Any],
    run_id: gr.Textbox,
    player: SpeechPlayer,
    clip: gr.Audio,
    panel: RunPanel,
) -> None:
    speak, stop = fields["speak"], fields["stop"]
    names = [field.name for field in dataclasses.fields(Fields)]
    run = speak.click(
        page.speak,
        [*(fields[name] for name in names), fields["task"], run_id],
        [player, clip, panel],
        js=f"(...inputs) => [...inputs.slice(0, -1), {player.start_js}]",
        api_name="speak",
        api_description=DESCRIPTION,
        concurrency_limit=None,
        trigger_mode="once",
        show_progress="hidden",
    )
    busy = "() => [{interactive: false, __type__: 'update'}, {interactive: true, __type__: 'update'}]"
    player.began(None, None, [speak, stop], js=busy, **QUIET)
    run.success(page.speak_button, None, speak, **QUIET)
    run.failure(page.speak_button, None, speak, js=f"() => {{ {player.fail_js}; return []; }}", **QUIET)
    # Fast engines are done long before the audio has been played, so Stop outlives the run.
    player.silent(None, None, stop, js="() => ({interactive: false, __type__: 'update'})", **QUIET)
    stop.click(page.speaker.stop, run_id, None, js=f"() => {player.stop_js}", **QUIET)
    panel.reuse_seed(_event_seed, None, fields["seed"], **QUIET)


def _wire_fields(page: Page, fields: dict[str, Any]) -> None:
    def pick(updates: dict[str, Any]) -> dict[Any, Any]:
        return {fields[name]: update for name, update in updates.items()}

    def task_of(name: str | None) -> Task:
        return Task(name) if name else Task.VOICE_CLONE

    def task_chosen(name: str) -> dict[Any, Any]:
        capabilities = page.engine.capabilities
        return pick(task_updates(Task(name), capabilities, page.voices)) if capabilities else {}

    def voice_chosen(voice: str | None, task: str | None) -> dict[Any, Any]:
        capabilities = page.engine.capabilities
        if capabilities is None:
            return {}
        return pick(voice_updates(voice, task_of(task), capabilities, page.voices))

    by_voice = [
        fields[n] for n in ("preset_voice", "preset_audio", "voice_note", "own_voice", "x_vector_only")
    ]
    fields["task"].input(
        task_chosen,
        fields["task"],
        [fields["meter"], fields["voice"], fields["instruction"], *by_voice],
        **QUIET,
    )
    fields["voice"].input(voice_chosen, [fields["voice"], fields["task"]], by_voice, **QUIET)
    fields["own_clip"].change(page.check_clip, fields["own_clip"], fields["clip_note"], **QUIET)
    # In-context cloning is what a transcript is for, so giving one asks for it.
    fields["transcript"].input(
        None, fields["transcript"], fields["x_vector_only"], js="(words) => !words.trim()", **QUIET
    )
    fields["listen"].click(None, None, None, js=_LISTEN_JS, **QUIET)
    fields["text"].change(None, fields["text"], fields["meter"], js="(text) => text", **QUIET)


def _event_seed(event: gr.EventData) -> str:
    return str(event.seed)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


_LISTEN_JS = """() => {
  const audio = document.querySelector('#preset-audio audio');
  if (!audio) return;
  if (audio.paused) { audio.currentTime = 0; audio.play(); } else audio.pause();
}"""
