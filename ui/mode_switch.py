"""The switch for how the code predictor runs."""

from typing import Any

import gradio as gr

from backend.contract import Capabilities, Mode


def mode_switch(capabilities: Capabilities | None = None) -> Any:
    """Fixed, with the reason, where there is no choice; until the engine is ready there is none either."""
    reason = "the engine is not ready" if capabilities is None else capabilities.graph_unavailable
    return gr.Radio(
        choices=[str(mode) for mode in Mode],
        value=str(Mode.EAGER if reason else Mode.GRAPH),
        label="Code predictor",
        info=f"No choice: {reason}." if reason else "One CUDA graph a frame, or one launch after another",
        interactive=not reason,
        elem_id="mode",
    )
