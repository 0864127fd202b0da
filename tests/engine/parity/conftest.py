"""Engines of this folder's own, one after the other, whose talker keeps what passes through it."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from backend.checkpoint import BUNDLED_DIR, Variant
from backend.contract import SpeechRequest
from backend.engine import OmniSpeechEngine
from backend.plugins import register_models
from backend.settings import Settings
from backend.stage_config import PROFILE_DIR
from tests.engine.in_process.speaking import Speech, speak
from tests.engine.parity.orders import EAGER, FORCED, OBSERVED, VARIABLE
from tests.engine.starting import running_engine
from tests.reference.captures import BUNDLED, TINY, check_checkpoint

PLUGIN = Path(__file__).parent / "plugin"


class ObservedEngine:
    """An engine, and what its talker saw of the last run: lists by name, an entry a step."""

    def __init__(self, engine: OmniSpeechEngine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self.seen: dict[str, list[NDArray[Any]]] = {}

    async def speak(
        self, request: SpeechRequest, *, forced: NDArray[np.int64] | None = None, eager_to_end: bool = False
    ) -> Speech:
        """`forced` [frames, 16] takes the place of what the talker samples and its predictor predicts."""
        for path in self._folder.iterdir():
            path.unlink()
        if forced is not None:
            np.save(self._folder / FORCED, forced)
        if eager_to_end:
            (self._folder / EAGER).touch()
        speech = await speak(self._engine, request)
        self.seen = {}
        with (self._folder / OBSERVED).open("rb") as file:
            while file.peek(1):
                name, value = pickle.load(file)
                self.seen.setdefault(name, []).append(value)
        return speech


@contextmanager
def observed(folder: Path, **settings: Any) -> Iterator[ObservedEngine]:
    python_path = os.environ.get("PYTHONPATH", "")
    os.environ[VARIABLE] = str(folder)
    # At the end, for plugins are called in the order of the path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (python_path, str(PLUGIN))))
    sys.path.append(str(PLUGIN))
    try:
        with running_engine(Settings(**settings, _cli_parse_args=False)) as engine:
            yield ObservedEngine(engine, folder)
    finally:
        sys.path.remove(str(PLUGIN))
        os.environ["PYTHONPATH"] = python_path
        del os.environ[VARIABLE]
        register_models()


@pytest.fixture(scope="module")
def named_speaker_engine(
    tiny_checkpoint: Callable[[Variant], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ObservedEngine]:
    """The random checkpoint with named speakers, in float32."""
    model = tiny_checkpoint("custom_voice")
    check_checkpoint(TINY, model)
    with observed(tmp_path_factory.mktemp("observed"), model=str(model)) as engine:
        yield engine


@pytest.fixture(scope="module")
def bfloat16_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedEngine]:
    """The bundled checkpoint, its talker in bfloat16."""
    check_checkpoint(BUNDLED, BUNDLED_DIR)
    config = yaml.safe_load((PROFILE_DIR / "cpu.yaml").read_text(encoding="utf-8"))
    config["stages"][0]["dtype"] = "bfloat16"
    path = tmp_path_factory.mktemp("stage") / "bfloat16.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with observed(tmp_path_factory.mktemp("observed"), stage_config=str(path)) as engine:
        yield engine
