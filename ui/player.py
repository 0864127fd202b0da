"""SpeechPlayer: plays int16 PCM in the browser while a handler is still yielding it."""

import base64
from pathlib import Path
from typing import Any

import gradio as gr

from backend.contract import AudioChunk

_HERE = Path(__file__).parent


class SpeechPlayer(gr.HTML):
    """A `gr.HTML` whose value is one chunk of a run; each new value is queued and played without gaps.

    The chunks travel in Gradio's own event stream, so playback works wherever events do: behind a
    root path, a login or a share link, and inside an iframe. `start_js` must run in the click
    that starts a run; it returns the run id, which every chunk has to carry.
    """

    def __init__(
        self,
        value: dict[str, Any] | None = None,
        *,
        player_id: str = "speech",
        sample_rate_hz: int = 24_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            value,
            player_id=player_id,
            sample_rate_hz=sample_rate_hz,
            worklet_source=(_HERE / "pcm_fifo.js").read_text(),
            html_template=_TEMPLATE,
            css_template=(_HERE / "player.css").read_text(),
            js_on_load=(_HERE / "player.js").read_text(),
            apply_default_css=False,
            **kwargs,
        )

    @property
    def start_js(self) -> str:
        """An expression: unlocks audio, forgets any earlier run, gives the new run's id."""
        return f"window.speechPlayers[{self.props['player_id']!r}].start()"

    @property
    def stop_js(self) -> str:
        """An expression: silence at once; gives the id of the run that was playing, or ''."""
        return f"window.speechPlayers[{self.props['player_id']!r}].stop()"

    @property
    def fail_js(self) -> str:
        """An expression: as `stop_js`, for a run that ended in an error."""
        return f"window.speechPlayers[{self.props['player_id']!r}].stop('failed')"

    @staticmethod
    def chunk_value(run_id: str, chunk: AudioChunk, hold_s: float) -> dict[str, Any]:
        """A piece of audio; `hold_s` is how much a player that is not playing should hold first."""
        return {
            "run_id": run_id,
            "seq": chunk.index,
            "pcm": base64.b64encode(chunk.pcm.astype("<i2", copy=False).tobytes()).decode(),
            "sample_rate_hz": chunk.sample_rate_hz,
            "hold_s": round(hold_s, 3),
            "end": False,
        }

    @staticmethod
    def end_value(run_id: str, seq: int, sample_rate_hz: int) -> dict[str, Any]:
        """Closes a run: what is held is played out, however little it is."""
        return {
            "run_id": run_id,
            "seq": seq,
            "pcm": "",
            "sample_rate_hz": sample_rate_hz,
            "hold_s": 0.0,
            "end": True,
        }

    def preprocess(self, payload: Any) -> Any:
        return payload

    def postprocess(self, value: Any) -> Any:
        return value

    def api_info(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {
                "run_id": {"type": "string"},
                "seq": {"type": "integer"},
                "pcm": {"type": "string", "description": "base64 of little-endian int16 mono samples"},
                "sample_rate_hz": {"type": "integer"},
                "hold_s": {"type": "number", "description": "seconds of audio to hold before playing"},
                "end": {"type": "boolean"},
            },
        }

    def example_payload(self) -> Any:
        return self.end_value("", 0, 24_000)

    def example_value(self) -> Any:
        return self.example_payload()


_TEMPLATE = """
<div class="transport" data-state="idle" role="group" aria-label="Live playback">
  <span class="bar" aria-hidden="true"><span></span></span>
  <span class="time">0.0 s</span>
  <label class="volume">Volume <input type="range" min="0" max="1" step="0.05" value="1"></label>
</div>
"""
