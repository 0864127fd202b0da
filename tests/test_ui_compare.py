"""Graph against eager on a fake engine: turns, figures, refusals, export."""

import asyncio
import csv
import dataclasses
import io
import json
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest

from backend.contract import InvalidRequest, Mode, SpeechRequest, Task
from backend.voices import PresetVoice
from tests.fakes import CAPABILITIES, WITH_GRAPH, FakeSpeechEngine, fake_clip_loader
from ui.compare import CompareTab
from ui.compare_export import as_csv, as_json
from ui.compare_runs import SEED, Comparison, compare, table
from ui.request import Fields

REQUEST = SpeechRequest("The kettle has just boiled.", Task.VOICE_CLONE)
VOICES = [PresetVoice("ada", "Ada", "", Path("ada.flac"), "What Ada says.", "CC0")]
FIELDS = Fields(REQUEST.text)
GRAPH, EAGER = Mode.GRAPH, Mode.EAGER


def quick(**values: object) -> FakeSpeechEngine:
    return FakeSpeechEngine(
        **{"capabilities_when_ready": WITH_GRAPH, "rtf": 0.001, "ttfa_s": 0.001, "frames": 8} | values  # type: ignore[arg-type]
    )


async def compared(engine: FakeSpeechEngine, repeats: int = 3) -> list[Comparison]:
    return [state async for state in compare(engine, REQUEST, repeats, asyncio.Event())]


async def test_both_modes_warm_up_and_take_turns_with_the_same_request() -> None:
    engine = quick()
    states = await compared(engine)
    modes = [request.mode for request in engine.requests]
    assert modes == [GRAPH, EAGER, GRAPH, EAGER, EAGER, GRAPH, GRAPH, EAGER]
    assert len({replace(request, mode=None) for request in engine.requests}) == 1
    assert engine.requests[0].seed == SEED
    assert states[-1].done
    assert [len(states[-1].reports[mode]) for mode in Mode] == [3, 3]
    assert all(run.closed or run.report for run in engine.runs)


async def test_it_says_which_run_it_is_at() -> None:
    progress = [state.progress for state in await compared(quick(), repeats=1)]
    assert list(dict.fromkeys(progress)) == [
        "Warming up",
        "Run 1 of 2: CUDA graph",
        "Run 2 of 2: eager",
        "Done",
    ]


async def test_rows_hold_median_spread_and_speed_up() -> None:
    rows = {row["figure"]: row for row in (await compared(quick()))[-1].rows()}
    assert list(rows) == ["TTFA", "RTF", "Predictor", "Talker"]
    predictor = rows["Predictor"]
    assert predictor[GRAPH] == {"median": 2.0, "lowest": 2.0, "highest": 2.0}
    assert predictor["speed_up"] == 5.0
    assert rows["TTFA"][EAGER]["lowest"] <= rows["TTFA"][EAGER]["median"] <= rows["TTFA"][EAGER]["highest"]


async def test_the_table_is_for_reading() -> None:
    lines = table((await compared(quick()))[-1].rows())
    assert lines[2] == ["Predictor a frame", "2.00 ms (2.00 to 2.00)", "10.0 ms (10.0 to 10.0)", "5.00x"]


async def test_stop_ends_the_run_at_hand_and_keeps_what_was_measured() -> None:
    engine = quick(frames=200, rtf=0.05)
    stopped = asyncio.Event()
    states = []
    async for state in compare(engine, REQUEST, 20, stopped):
        states.append(state)
        if len(state.reports[GRAPH]) == 1:
            stopped.set()
    assert states[-1].progress == "Stopped"
    assert len(states[-1].reports[GRAPH]) == 1
    assert not engine.accepted


async def test_without_a_graph_there_is_nothing_to_compare() -> None:
    engine = quick(capabilities_when_ready=CAPABILITIES)
    with pytest.raises(InvalidRequest, match="no CUDA graph on the CPU"):
        await compared(engine)
    assert not engine.requests


async def test_a_busy_engine_is_not_compared_on() -> None:
    engine = quick()
    other = engine.synthesize(REQUEST)
    with pytest.raises(InvalidRequest, match="busy"):
        await compared(engine)
    await other.aclose()


async def test_a_run_that_was_not_made_as_asked_ends_the_comparison() -> None:
    class Stubborn(FakeSpeechEngine):
        def synthesize(self, request: SpeechRequest):  # type: ignore[no-untyped-def]
            return super().synthesize(replace(request, mode=EAGER))

    engine = Stubborn(capabilities_when_ready=WITH_GRAPH, rtf=0.001, ttfa_s=0.001, frames=8)
    with pytest.raises(InvalidRequest, match="was to be CUDA graph was not"):
        await compared(engine)


async def test_exports_hold_every_run_and_what_it_was_made_with() -> None:
    state = (await compared(quick()))[-1]
    exported = json.loads(as_json(state))
    assert exported["about"]["device"] == "Fake GPU"
    assert exported["about"]["seed"] == SEED
    assert exported["about"]["temperature"] == 0.9
    assert exported["about"]["predictor_top_k"] == 40
    assert "gradio" in exported["about"]["versions"]
    assert len(exported["runs"]) == 6
    assert [row["figure"] for row in exported["summary"]] == ["TTFA", "RTF", "Predictor", "Talker"]
    lines = list(csv.DictReader(io.StringIO(as_csv(state))))
    assert [(line["mode"], line["run"]) for line in lines] == [
        (str(mode), str(number)) for mode in Mode for number in (1, 2, 3)
    ]
    assert float(lines[0]["predictor_ms"]) == 2.0


async def test_the_page_is_sent_only_what_has_changed() -> None:
    engine = quick(frames=8, ttfa_s=0.3, max_running=1)
    with gr.Blocks():
        tab = CompareTab(engine, VOICES, fake_clip_loader)
    given = [getattr(FIELDS, field.name) for field in dataclasses.fields(Fields)]
    updates = [update async for update in tab.run(*given, None, 2, "id")]
    nothing = [gr.skip()]
    sent = [[update[place] for update in updates if update[place] not in nothing] for place in range(8)]
    progress, tables, charts, abouts, saved_json, saved_csv, start, stop = sent
    assert progress == [
        "Warming up",
        *[f"Run {i + 1} of 4: {m}" for i, m in enumerate((GRAPH, EAGER, EAGER, GRAPH))],
        "Done",
    ]
    # Both modes have figures after the second run; then there are two more.
    assert [len(each) for each in (tables, charts, abouts)] == [3, 3, 3]
    assert [len(each) for each in (saved_json, saved_csv)] == [1, 1]
    assert [len(each) for each in (start, stop)] == [2, 2]
    assert tables[-1].value["data"][0][0] == "TTFA"


async def test_while_a_run_is_being_made_the_page_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ui.compare_runs.HEARTBEAT_S", 0.02)
    engine = quick(frames=8, ttfa_s=0.3)
    with gr.Blocks():
        tab = CompareTab(engine, VOICES, fake_clip_loader)
    given = [getattr(FIELDS, field.name) for field in dataclasses.fields(Fields)]
    updates = [update async for update in tab.run(*given, None, 1, "id")]
    silent = [update for update in updates if all(value == gr.skip() for value in update)]
    assert len(silent) > 4 * 5
    assert len(updates) - len(silent) < 10
