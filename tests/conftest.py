"""Order of the suite, and the checkpoints that several modules read. Imports nothing heavy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from backend.checkpoint import Variant, make_checkpoint
from backend.checkpoint.store import MAKER_VERSION
from backend.plugins import make_discoverable

# vLLM-Omni looks for its platform once, when first imported, whichever test does that.
make_discoverable()

# Unit tests, then the page on a fake engine, then the real engine: what fails soonest comes first.
_LAST_FOLDERS = ("browser", "engine")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _rank(item.path))
    # These listen in real time, and a machine that is busy elsewhere for a moment lets sound itself
    # stall. A third failure in a row is a failure; the report counts what was run again.
    for item in items:
        if "visit" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=2))


def _rank(path: Path) -> int:
    folder = path.relative_to(Path(__file__).parent).parts[0]
    return _LAST_FOLDERS.index(folder) + 1 if folder in _LAST_FOLDERS else 0


@pytest.fixture(scope="session")
def tiny_checkpoint(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Variant], Path]:
    """The folder of the tiny checkpoint of a variant: made by the suite's first run, then kept."""

    def folder(variant: Variant) -> Path:
        # Absent under `-p no:cacheprovider`.
        cache = getattr(pytestconfig, "cache", None)
        kept = cache.mkdir("checkpoints") if cache is not None else tmp_path_factory.getbasetemp()
        made = kept / f"tiny-{variant}-{MAKER_VERSION}"
        if not made.exists():
            part = made.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            make_checkpoint(part, "tiny", variant)
            part.rename(made)
        return made

    return folder
