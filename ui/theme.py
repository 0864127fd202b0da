"""How the page looks and behaves, and what Gradio's launch() needs besides."""

from pathlib import Path
from typing import Any

import gradio as gr

# Private handlers: quick, unqueued, and no spinner over what they update.
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}

# System fonts: nothing is fetched from another site.
_THEME = gr.themes.Default(
    primary_hue="indigo",
    secondary_hue="indigo",
    neutral_hue="slate",
    radius_size="lg",
    font=["system-ui", "-apple-system", "Segoe UI", "sans-serif"],
    font_mono=["ui-monospace", "SFMono-Regular", "Menlo", "monospace"],
)


def launch_options() -> dict[str, Any]:
    """Arguments for `launch()` that belong to the page rather than to where it runs."""
    return {
        "theme": _THEME,
        "css": (Path(__file__).parent / "page.css").read_text(),
        "footer_links": ["api", "gradio", "settings"],
        # Reference clips are people's voices: keep no copies of them in the visitor's browser.
        "run_history": False,
        "ssr_mode": False,
        "max_file_size": "10mb",
    }
