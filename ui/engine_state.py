"""What the page shows for the engine's state: its one line, and every field the model decides."""

from collections.abc import Sequence
from typing import Any

import gradio as gr

from backend.contract import Capabilities, EngineStatus, Phase, Task
from backend.voices import PresetVoice
from ui.mode_switch import mode_switch
from ui.request import OWN_CLIP


def chip_value(status: EngineStatus, capabilities: Capabilities | None) -> dict[str, str]:
    """`phase`, and the sentence to show for it."""
    return {"phase": str(status.phase), "text": _chip_text(status, capabilities)}


def _chip_text(status: EngineStatus, capabilities: Capabilities | None) -> str:
    detail = f": {status.detail}" if status.detail else ""
    if status.phase is Phase.LOADING:
        return f"Loading{detail}"
    if status.phase is Phase.WARMING:
        return f"Warming up{detail}"
    if status.phase is Phase.FAILED:
        return f"Failed{detail}"
    if status.phase is Phase.CLOSED or capabilities is None:
        return "Shut down"
    text = f"Ready · {capabilities.model} · {capabilities.device}"
    if status.running:
        text += f" · {status.running} running"
    if status.queued:
        text += f" · {status.queued} waiting"
    return text


def voice_choices(
    task: Task, capabilities: Capabilities, voices: Sequence[PresetVoice]
) -> list[tuple[str, str]]:
    """(label, value) of every voice the task can speak with; none where the voice is described instead."""
    if task is Task.NAMED_SPEAKER:
        return [(name, name) for name in capabilities.speakers]
    if task is Task.VOICE_CLONE:
        return [(voice.label, voice.name) for voice in voices] + [("My own clip", OWN_CLIP)]
    return []


def task_updates(task: Task, capabilities: Capabilities, voices: Sequence[PresetVoice]) -> dict[str, Any]:
    """Updates by field name for the fields that depend on the task."""
    choices = voice_choices(task, capabilities, voices)
    voice = choices[0][1] if choices else None
    design = task is Task.VOICE_DESIGN
    return {
        "meter": gr.update(max_chars=capabilities.max_text_chars[task], chars_per_s=capabilities.chars_per_s),
        "voice": gr.Dropdown(choices=choices, value=voice, visible=bool(choices)),
        "instruction": gr.Textbox(
            visible=design or capabilities.supports_instruction,
            label="Describe the voice" if design else "Instruction",
            placeholder=_DESIGN_HINT if design else _INSTRUCTION_HINT,
            info=None if design else "How to say it (optional)",
        ),
        **voice_updates(voice, task, capabilities, voices),
    }


def voice_updates(
    voice: str | None, task: Task, capabilities: Capabilities, voices: Sequence[PresetVoice]
) -> dict[str, Any]:
    """Updates by field name for the fields that depend on the chosen voice."""
    preset = next((candidate for candidate in voices if candidate.name == voice), None)
    cloning = task is Task.VOICE_CLONE
    return {
        "preset_voice": gr.Row(visible=cloning and preset is not None),
        "preset_audio": gr.Audio(value=str(preset.audio_path) if cloning and preset else None),
        "voice_note": gr.Markdown(preset.description if preset else ""),
        "own_voice": gr.Group(visible=cloning and preset is None),
        "x_vector_only": gr.Checkbox(visible=cloning and capabilities.supports_x_vector),
    }


def capability_updates(capabilities: Capabilities, voices: Sequence[PresetVoice]) -> dict[str, Any]:
    """Updates by field name for everything the loaded model decides."""
    languages = capabilities.languages or ("Auto",)
    frame_s = capabilities.samples_per_frame / capabilities.sample_rate_hz
    longest_s = round(capabilities.max_frames * frame_s, 1)
    return {
        "notice": gr.Markdown(value=capabilities.notice, visible=bool(capabilities.notice)),
        "task": gr.Radio(
            choices=[(_TASK_LABELS[task], str(task)) for task in capabilities.tasks],
            value=str(capabilities.tasks[0]),
            visible=len(capabilities.tasks) > 1,
        ),
        "language": gr.Dropdown(
            choices=list(languages),
            value="Auto" if "Auto" in languages else languages[0],
            visible=len(languages) > 1,
        ),
        "transcript": gr.Textbox(
            info=_TRANSCRIPT_OPTIONAL if capabilities.supports_x_vector else _TRANSCRIPT_NEEDED
        ),
        # Values rather than placeholders: Gradio's number field turns an empty value into 0.
        "temperature": gr.Number(value=capabilities.defaults.get("temperature", 0.9)),
        "top_k": gr.Number(value=capabilities.defaults.get("top_k", 50)),
        "predictor_temperature": gr.Number(
            value=capabilities.defaults.get("predictor_temperature", 0.9),
            visible=capabilities.supports_predictor_sampling,
        ),
        "predictor_top_k": gr.Number(
            value=capabilities.defaults.get("predictor_top_k", 50),
            visible=capabilities.supports_predictor_sampling,
        ),
        "max_length_s": gr.Number(value=longest_s, maximum=longest_s),
        "first_chunk_frames": gr.Number(
            value=capabilities.chunk_schedule_frames[0],
            maximum=capabilities.max_first_chunk_frames or None,
            visible=capabilities.max_first_chunk_frames > 0,
        ),
        "mode": mode_switch(capabilities),
        **compare_updates(capabilities),
        **task_updates(capabilities.tasks[0], capabilities, voices),
    }


def compare_updates(capabilities: Capabilities) -> dict[str, Any]:
    """Updates by field name for the Compare tab: whether modes can be compared, and if not, why."""
    reason = capabilities.graph_unavailable
    sentence = f"Nothing to compare: {reason}." if reason else ""
    return {
        "compare_reason": gr.Markdown(value=sentence, visible=bool(reason)),
        "compare_start": gr.Button(interactive=not reason),
    }


_TASK_LABELS = {
    Task.VOICE_CLONE: "Clone a voice",
    Task.NAMED_SPEAKER: "Named voice",
    Task.VOICE_DESIGN: "Design a voice",
    Task.TEXT_ONLY: "A voice of the model's choice",
}
_TRANSCRIPT_OPTIONAL = "Optional; lets the model follow the clip's rhythm too"
_TRANSCRIPT_NEEDED = "What the clip says, word for word"
_DESIGN_HINT = "A calm, low male voice with a slight rasp, close to the microphone"
_INSTRUCTION_HINT = "Cheerfully, a little out of breath"
