"""The Compare tab: CUDA graph against eager, on what the Speak tab's fields say."""

import asyncio
import dataclasses
import logging
import secrets
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import gradio as gr
import pandas as pd

from backend.contract import UNEXPECTED_ERROR, Mode, SpeechEngine, SpeechError
from backend.voices import ClipLoader, PresetVoice
from ui.compare_export import about, as_csv, as_json
from ui.compare_runs import MAX_REPEATS, Comparison, compare, table
from ui.request import Fields, build_request
from ui.speaker import chosen_task
from ui.stops import Stops
from ui.theme import QUIET

logger = logging.getLogger(__name__)

COLUMNS = ["", str(Mode.GRAPH), str(Mode.EAGER), "Speed-up"]


class CompareTab:
    """Built inside a `gr.Tab`; `wire` connects it to the Speak tab's fields."""

    def __init__(self, engine: SpeechEngine, voices: Sequence[PresetVoice], load_clip: ClipLoader) -> None:
        self._engine = engine
        self._voices = voices
        self._load_clip = load_clip
        self._stops = Stops()
        gr.Markdown(
            "Speaks the text of the Speak tab, with its voice, seed and sampling, several times with the "
            "code predictor as one CUDA graph and as often without. Both warm up first, then take turns."
        )
        self.reason = gr.Markdown(visible=False, elem_id="compare-reason")
        with gr.Row():
            self.repeats = gr.Slider(1, MAX_REPEATS, value=5, step=1, label="Runs of each mode", scale=3)
            self.start = gr.Button("Compare", variant="primary", interactive=False, elem_id="compare-button")
            self.stop = gr.Button("Stop", interactive=False, elem_id="compare-stop")
        self.progress = gr.Markdown(elem_id="compare-progress")
        self.table = gr.Dataframe(
            headers=COLUMNS, value=[], interactive=False, visible=False, elem_id="compare-table"
        )
        # Bars of one place would be stacked, so each mode has a place of its own.
        self.chart = gr.BarPlot(
            x="figure",
            y="ms",
            color="mode",
            x_title=" ",
            title="Median, ms",
            height=280,
            visible=False,
            elem_id="compare-chart",
        )
        with gr.Row():
            self.json = gr.DownloadButton("Save as JSON", size="sm", visible=False, elem_id="compare-json")
            self.csv = gr.DownloadButton("Save as CSV", size="sm", visible=False, elem_id="compare-csv")
        self.about = gr.JSON(visible=False, label="Measured with", elem_id="compare-about")
        self._run_id = gr.Textbox(visible=False)

    def wire(self, fields: dict[str, Any]) -> None:
        """`fields` are the Speak tab's, by the names of `ui.request.Fields`, with `task`."""
        inputs = [fields[field.name] for field in dataclasses.fields(Fields)]
        results = [
            self.progress,
            self.table,
            self.chart,
            self.about,
            self.json,
            self.csv,
            self.start,
            self.stop,
        ]
        self.start.click(
            self.run,
            [*inputs, fields["task"], self.repeats, self._run_id],
            results,
            js=_START_JS,
            api_visibility="private",
            concurrency_limit=None,
            trigger_mode="once",
            show_progress="hidden",
        )
        self.stop.click(self._stops.stop, self._run_id, None, js=_STOP_JS, **QUIET)

    @property
    def fields(self) -> dict[str, Any]:
        """What the loaded model and device decide, by the names of `engine_state.capability_updates`."""
        return {"compare_reason": self.reason, "compare_start": self.start}

    async def run(self, *values: Any) -> AsyncGenerator[tuple[Any, ...], None]:
        *given, task, repeats, run_id = values
        names = [field.name for field in dataclasses.fields(Fields)]
        try:
            with self._stops.watch(run_id or secrets.token_hex(8)) as stopped:
                request = await asyncio.to_thread(self._request, dict(zip(names, given, strict=True)), task)
                async with aclosing(compare(self._engine, request, int(repeats), stopped)) as states:
                    before: Comparison | None = None
                    async for state in states:
                        yield self._shown(state, before)
                        before = state
        except SpeechError as error:
            yield self._ended(str(error))
        except Exception:
            logger.exception("comparison failed")
            yield self._ended(UNEXPECTED_ERROR)

    def _request(self, given: dict[str, Any], task: str | None) -> Any:
        capabilities = self._engine.capabilities
        if capabilities is None:
            raise self._engine.status.unavailable or SpeechError("The speech engine is not ready yet.")
        fields = Fields(**{name: value for name, value in given.items() if value is not None})
        fields = dataclasses.replace(fields, stream=True)
        return build_request(
            fields, chosen_task(task, capabilities), capabilities, self._voices, self._load_clip
        )

    def _shown(self, state: Comparison, before: Comparison | None) -> tuple[Any, ...]:
        """What has changed since `before`; often nothing, for a comparison also tells that it lives."""
        over = state.progress in ("Done", "Stopped")
        progress = gr.skip() if before and before.progress == state.progress else state.progress
        buttons = _buttons(over) if over or before is None else (gr.skip(), gr.skip())
        rows = state.rows()
        if (before is not None and before.reports is state.reports) or not rows:
            figures = [gr.skip()] * 3
        else:
            figures = [
                gr.Dataframe(value=table(rows), visible=True),
                gr.BarPlot(value=_bars(rows), visible=True),
                gr.JSON(value=about(state), visible=True),
            ]
        files = _files(state) if over and rows else [gr.skip()] * 2
        return (progress, *figures, *files, *buttons)

    def _ended(self, sentence: str) -> tuple[Any, ...]:
        return (f"**{sentence}**", *[gr.skip()] * 5, *_buttons(True))


def _bars(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A bar for each figure that is a time, and each mode."""
    return pd.DataFrame(
        [
            {"figure": f"{row['figure']}, {mode}", "mode": str(mode), "ms": row[mode]["median"]}
            for row in rows
            if row["unit"]
            for mode in Mode
        ]
    )


def _files(state: Comparison) -> list[Any]:
    """The buttons that save it, as JSON and as CSV."""
    folder = Path(tempfile.mkdtemp(prefix="comparison-", dir=_cache_folder()))
    buttons = []
    for name, text in (("json", as_json(state)), ("csv", as_csv(state))):
        path = folder / f"graph-against-eager.{name}"
        path.write_text(text, encoding="utf-8")
        buttons.append(gr.DownloadButton(value=str(path), visible=True))
    return buttons


def _buttons(over: bool) -> tuple[Any, Any]:
    """Compare and Stop."""
    return gr.Button(interactive=over), gr.Button(interactive=not over)


def _cache_folder() -> str:
    """Gradio's own, from which it gives files out and which it empties."""
    from gradio.utils import get_upload_folder

    folder = Path(get_upload_folder())
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


# A run's name is made in the browser, so that Stop knows it while the run still waits.
_START_JS = """(...inputs) => {
  window.comparisonId = crypto.getRandomValues(new Uint32Array(2)).join('-');
  return [...inputs.slice(0, -1), window.comparisonId];
}"""
_STOP_JS = "() => [window.comparisonId || '']"
