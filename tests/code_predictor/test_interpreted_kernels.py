"""The Triton kernels' logic where there is no GPU: their tests, interpreted, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU test_kernels runs them compiled")
@pytest.mark.timeout(600)
def test_every_kernel_is_its_twin_when_interpreted() -> None:
    # Triton reads the variable when it is imported, and this process may have done that.
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/code_predictor/test_kernels.py",
        ],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]
    assert "skipped" not in result.stdout
    assert "passed" in result.stdout
