"""Which processor this is: only on one of the same kind does arithmetic agree to the last bit."""

import platform
import re
from pathlib import Path

import torch

_FIELDS = ("vendor_id", "cpu family", "model")


def processor() -> str:
    """Maker, family and model, and the widest instructions PyTorch uses: "GenuineIntel 6 207 AVX512"."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    found = [re.search(rf"^{field}\s*: (.+)$", text, re.MULTILINE) for field in _FIELDS]
    named = [match[1] for match in found if match] or [platform.machine()]
    return " ".join([*named, torch.backends.cpu.get_cpu_capability()])
