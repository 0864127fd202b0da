"""vLLM-Omni finds this application's plugins in every process, wherever that one was started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.plugins import make_discoverable

ROOT = Path(__file__).resolve().parent.parent
LOAD = """if True:
    from importlib.metadata import entry_points
    found = entry_points(group="vllm_omni.platform_plugins")
    (plugin,) = [e for e in found if e.name == "qwen3_tts_demo_cpu"]
    print(plugin.load().__module__)
"""


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "vllm_plugins" not in entry])


def python(code: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, timeout=200
    )


@pytest.mark.usefixtures("environment")
def test_an_interpreter_started_elsewhere_finds_them_by_pythonpath_alone(tmp_path: Path) -> None:
    before = dict(os.environ)
    make_discoverable()
    env = {"PYTHONPATH": os.environ["PYTHONPATH"], "PATH": os.environ["PATH"]}
    assert python(LOAD, tmp_path, env).stdout == "backend.plugins\n"
    without = python(LOAD, tmp_path, before)
    assert without.returncode != 0
    assert "not enough values to unpack" in without.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_started_by_multiprocessing_finds_them(method: str, tmp_path: Path) -> None:
    """Even one that never sees PYTHONPATH: multiprocessing hands over sys.path."""
    script = tmp_path / "parent.py"
    script.write_text(
        f"""if True:
    import multiprocessing, os, sys
    sys.path.insert(0, {str(ROOT)!r})

    def child():
        exec({LOAD!r}, {{}})

    if __name__ == "__main__":
        from backend.plugins import make_discoverable
        make_discoverable()
        del os.environ["PYTHONPATH"]
        process = multiprocessing.get_context({method!r}).Process(target=child)
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200
    )
    assert (result.stdout, result.returncode) == ("backend.plugins\n", 0), result.stderr


@pytest.mark.usefixtures("environment")
def test_doing_it_twice_changes_nothing_and_keeps_what_was_there() -> None:
    make_discoverable()
    once = (os.environ["PYTHONPATH"], list(sys.path))
    make_discoverable()
    assert (os.environ["PYTHONPATH"], sys.path) == once
    assert once[0].split(os.pathsep)[-1] == "/elsewhere"


def test_vllm_omni_resolves_its_talker_to_ours(tmp_path: Path) -> None:
    """In a fresh interpreter, after what every stage process does on its way up."""
    code = """if True:
        from vllm_omni.engine.arg_utils import register_omni_models_to_vllm
        from vllm_omni.plugins import load_omni_general_plugins
        load_omni_general_plugins()
        register_omni_models_to_vllm()
        from vllm_omni.model_executor.models import OmniModelRegistry
        registered = OmniModelRegistry.models["Qwen3TTSTalkerForConditionalGeneration"]
        print(registered.module_name, registered.class_name)
    """
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'backend' / 'vllm_plugins'}"}
    result = python(code, tmp_path, env)
    assert result.stdout.splitlines()[-1:] == ["backend.talker Talker"], result.stderr[-2000:]
