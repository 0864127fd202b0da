"""Makes this application's vLLM-Omni plugins discoverable, and is what their entry points name.

vLLM-Omni looks plugins up among installed distributions, in every process it
starts. A Space installs requirements before the repository is there, so the
application cannot be an installed distribution; instead its entry points are
committed as a `*.dist-info` folder that this module puts on the import path.
"""

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_DIST_INFO_FOLDER = _ROOT / "backend" / "vllm_plugins"


def make_discoverable() -> None:
    """Puts the application and its entry points on the path of this and every child process.

    Child processes started by multiprocessing copy `sys.path`; those vLLM starts
    with `subprocess` (to inspect a model class) only see PYTHONPATH.
    """
    wanted = [str(_ROOT), str(_DIST_INFO_FOLDER)]
    inherited = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    os.environ["PYTHONPATH"] = os.pathsep.join([*wanted, *(e for e in inherited if e not in wanted)])
    sys.path.extend(entry for entry in wanted if entry not in sys.path)


def cpu_platform_plugin() -> str | None:
    """Entry point: the platform class to use where vLLM itself runs on the CPU, else None."""
    from vllm.platforms import current_platform

    return "backend.cpu_platform.CpuOmniPlatform" if current_platform.is_cpu() else None


def register_models() -> None:
    """Entry point: our classes under upstream's architecture names, wherever plugins are loaded.

    In the registry of vLLM-Omni's own model configurations: upstream fills vLLM's global one anew
    each time it makes a stage's arguments, after it has loaded plugins.
    """
    from vllm_omni.model_executor.models import OmniModelRegistry

    from backend.families.registry import FAMILIES

    for family in FAMILIES:
        for architecture, ours in family.replaced_models.items():
            OmniModelRegistry.register_model(architecture, ours)
