"""RunPanel: the status line and figures of a run, from the server and from the browser's player."""

from pathlib import Path
from typing import Any

import gradio as gr

from ui.run_view import RunState, RunView

_HERE = Path(__file__).parent


class RunPanel(gr.HTML):
    """A `gr.HTML` whose value is a `RunView`; figures only the browser has are filled in there."""

    def __init__(
        self,
        value: dict[str, Any] | None = None,
        *,
        idle_text: str = "Press Speak to hear the text",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            value,
            idle_text=idle_text,
            html_template=_TEMPLATE,
            css_template=(_HERE / "run_panel.css").read_text(),
            js_on_load=(_HERE / "run_panel.js").read_text(),
            apply_default_css=False,
            **kwargs,
        )

    def preprocess(self, payload: Any) -> Any:
        return payload

    def postprocess(self, value: Any) -> Any:
        return value.value() if isinstance(value, RunView) else value

    def api_info(self) -> dict[str, Any]:
        kinds = {"str": "string", "int": "integer", "bool": "boolean", "float": "number"}
        names = {name: str(field.type).split(" ")[0] for name, field in RunView.__dataclass_fields__.items()}
        return {
            "type": "object",
            "properties": {name: {"type": kinds.get(kind, "string")} for name, kind in names.items()},
        }

    def example_payload(self) -> Any:
        return RunView(run_id="", state=RunState.FINISHED).value()

    def example_value(self) -> Any:
        return self.example_payload()


def _card(title: str, field: str, hint: str, classes: str = "card") -> str:
    return f'<div class="{classes}" title="{hint}"><dt>{title}</dt><dd data-field="{field}"></dd></div>'


_TEMPLATE = f"""
<section data-state="idle" aria-label="Run">
  <div class="status">
    <span class="dot" aria-hidden="true"></span>
    <span data-field="status" role="status" aria-live="polite"></span>
    <span data-field="elapsed" aria-label="Elapsed"></span>
  </div>
  <p data-field="note" role="status" aria-live="polite"></p>
  <dl class="cards">
    {_card("Audible TTFA", "audible", "From the click to the first sample rendered in this browser")}
    {_card("Engine TTFA", "ttfa", "From taking the request up to the first audio chunk")}
    {_card("Audio", "audio", "Speech made so far")}
    {_card("RTF", "rtf", "Generation time / audio time; below 1 is faster than real time", "card wide")}
    {_card("Underruns", "underruns", "Times playback ran out of audio")}
    {_card("Chunks", "chunks", "Pieces the audio was streamed in")}
    {_card("Queue", "queue", "Time spent waiting for other runs")}
    {_card("Mode", "mode", "How the engine ran the code predictor")}
    <div class="card" title="The same text and seed give the same speech"><dt>Seed</dt>
      <dd>
        <span data-field="seed"></span>
        <button type="button" data-field="reuse" hidden>Use again</button>
      </dd>
    </div>
  </dl>
</section>
"""
