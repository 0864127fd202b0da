"""The Speak tab's inputs, by the names of `ui.request.Fields`, and what belongs to them."""

from typing import Any

import gradio as gr

from ui.mode_switch import mode_switch
from ui.text_meter import TextMeter

EXAMPLES = (
    "The kettle has just boiled, and there is fresh bread on the table.",
    "Could you read that back to me once more, a little slower this time?",
    "At nine o'clock the rain stopped, the clouds opened, and the whole harbour turned to silver.",
)


def text_fields() -> dict[str, Any]:
    text = gr.Textbox(
        value=EXAMPLES[0],
        label="Text",
        placeholder="What should be said?",
        lines=4,
        max_lines=12,
        elem_id="speech-text",
    )
    meter = TextMeter(
        EXAMPLES[0], text_selector="#speech-text", speak_selector="#speak-button", elem_id="text-meter"
    )
    gr.Examples([[sentence] for sentence in EXAMPLES], text, label="Examples", api_visibility="private")
    return {"text": text, "meter": meter}


def voice_fields() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    fields["task"] = gr.Radio(choices=[], value=None, label="Task", visible=False)
    with gr.Row():
        # Custom values reach the engine's own check, whose sentence names the choices.
        fields["voice"] = gr.Dropdown(
            choices=[],
            value=None,
            label="Voice",
            allow_custom_value=True,
            elem_id="voice",
            scale=3,
            min_width=220,
        )
        fields["language"] = gr.Dropdown(
            choices=["Auto"], value="Auto", label="Language", allow_custom_value=True, scale=2, min_width=120
        )
    with gr.Row(elem_id="voice-about", visible=False) as fields["preset_voice"]:
        fields["voice_note"] = gr.Markdown()
        fields["listen"] = gr.Button("Listen", size="sm", elem_id="listen-button", scale=0, min_width=96)
    fields["preset_audio"] = gr.Audio(
        visible="hidden",
        interactive=False,
        elem_id="preset-audio",
        waveform_options=gr.WaveformOptions(show_recording_waveform=False),
    )
    with gr.Group(visible=False) as fields["own_voice"]:
        fields["own_clip"] = gr.Audio(
            sources=["upload", "microphone"],
            type="filepath",
            label="Clip of the voice, 1 to 30 s",
            elem_id="own-clip",
        )
        fields["clip_note"] = gr.Markdown(visible=False, padding=True, elem_id="clip-note")
        fields["transcript"] = gr.Textbox(label="Transcript of the clip")
    fields["x_vector_only"] = gr.Checkbox(
        value=True,
        visible=False,
        label="x-vector only",
        info="Take only the sound of the voice. Off: the clip and its transcript guide the delivery as well.",
    )
    fields["instruction"] = gr.Textbox(label="Instruction", visible=False, elem_id="instruction")
    fields["stream"] = gr.Checkbox(
        value=True, label="Streaming", info="Play while the speech is being made", elem_id="streaming"
    )
    return fields


def advanced_fields() -> dict[str, Any]:
    with gr.Accordion("Advanced", open=False), gr.Row():
        return {
            "seed": gr.Textbox(label="Seed", placeholder="random", max_lines=1, elem_id="seed"),
            "temperature": gr.Number(label="Temperature", minimum=0, step=0.05),
            "top_k": gr.Number(label="Top-k", precision=0, minimum=1),
            "predictor_temperature": gr.Number(label="Predictor temperature", minimum=0, step=0.05),
            "predictor_top_k": gr.Number(label="Predictor top-k", precision=0, minimum=1),
            "max_length_s": gr.Number(label="Max length (s)", minimum=0.1),
            "first_chunk_frames": gr.Number(label="First chunk (frames)", precision=0, minimum=1),
            "mode": mode_switch(),
        }
