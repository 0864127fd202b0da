from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import browser, context, visit  # noqa: F401
from tests.engine.app.running import App

StartApp = Callable[..., App]


@pytest.fixture
def start_app(tmp_path: Path) -> Iterator[StartApp]:
    """Starts `python app.py` with arguments; none survives the test."""
    started: list[App] = []

    def start(*arguments: str, port: int | None = None) -> App:
        folder = tmp_path / f"app{len(started)}"
        folder.mkdir()
        started.append(App(folder, *arguments, port=port))
        return started[-1]

    yield start
    for app in started:
        app.kill()
