"""TextMeter: the line under the text box, counted in the browser."""

from pathlib import Path
from typing import Any

import gradio as gr


class TextMeter(gr.HTML):
    """Length, limit and estimated duration of the text that is its value; also Ctrl+Enter to speak."""

    def __init__(
        self,
        value: str | None = None,
        *,
        text_selector: str = "",
        speak_selector: str = "",
        max_chars: int = 0,
        chars_per_s: float = 14.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            value,
            text_selector=text_selector,
            speak_selector=speak_selector,
            max_chars=max_chars,
            chars_per_s=chars_per_s,
            html_template='<div class="meter"><output></output><kbd>Ctrl + Enter</kbd></div>',
            css_template=_CSS,
            js_on_load=(Path(__file__).parent / "text_meter.js").read_text(),
            apply_default_css=False,
            **kwargs,
        )


_CSS = """
.meter {
  display: flex;
  justify-content: space-between;
  gap: 1rem;
  color: var(--body-text-color-subdued);
  font-size: var(--text-sm);
  font-variant-numeric: tabular-nums;
}
output[data-over="true"] {
  color: var(--error-text-color);
  font-weight: 600;
}
kbd {
  font-family: inherit;
  font-size: var(--text-xs);
  white-space: nowrap;
}
@media (pointer: coarse) {
  kbd {
    display: none;
  }
}
"""
