"""The fused activation against plain PyTorch, in Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_fused_snake_and_its_gradients_equal_plain_pytorch() -> None:
    pytest.importorskip("triton")
    code = "from scripts.train.snake import fused_deviation as d; print(d('cpu'))"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert 0 < float(run.stdout) < 1e-4
