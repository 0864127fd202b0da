"""EngineChip: the engine's state in one line."""

from pathlib import Path
from typing import Any

import gradio as gr

_HERE = Path(__file__).parent


class EngineChip(gr.HTML):
    """A `gr.HTML` whose value is {phase, text}; the phase sets the colour of its dot."""

    def __init__(self, value: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(
            value,
            html_template=_TEMPLATE,
            css_template=(_HERE / "engine_chip.css").read_text(),
            js_on_load=(_HERE / "engine_chip.js").read_text(),
            apply_default_css=False,
            **kwargs,
        )

    def preprocess(self, payload: Any) -> Any:
        return payload

    def postprocess(self, value: Any) -> Any:
        return value


_TEMPLATE = """
<div class="chip" role="status" aria-live="polite" data-phase="loading">
  <span class="dot" aria-hidden="true"></span><span class="text"></span>
</div>
"""
