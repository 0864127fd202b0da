"""Starts the engine and the page: `python app.py`, options by `--help`.

Child processes import this file too, so everything heavy is imported in functions.
"""

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from backend.contract import Phase, SpeechError
from backend.settings import THIS_MACHINE, Settings, load_settings

if TYPE_CHECKING:
    from gradio import Blocks

    from backend.engine import OmniSpeechEngine

EXIT_FAILED = 1


def main() -> int:
    """Serves until Ctrl-C or SIGTERM; returns the exit code."""
    settings = load_settings()
    _set_up_logging(settings.log_level)
    from backend.deployment import check_early
    from backend.engine import OmniSpeechEngine

    try:
        check_early(settings)
    except SpeechError as error:
        return _give_up(str(error))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    engine = OmniSpeechEngine(settings)
    engine.prepare()
    page, code = None, EXIT_FAILED
    try:
        page = _launch(settings, engine)
        if page is not None:
            # Only now, so that the page is up first: its imports and vLLM's would hold each other up.
            engine.start()
            code = _serve(engine, stop)
    finally:
        # A second Ctrl-C ends a shutdown that someone finds too slow.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # The engine first, so that running requests end while their pages can still be told.
        engine.shutdown()
        if page is not None:
            _close(page)
    if not engine.ended:
        # The interpreter would wait for what the engine's thread is loading.
        logging.shutdown()
        os._exit(code)
    return code


def _launch(settings: Settings, engine: "OmniSpeechEngine") -> "Blocks | None":
    """The page, being served; None where it cannot be, which has been said."""
    from backend.reference_audio import load_reference_clip
    from backend.serving.routes import api_routes
    from backend.voices import VOICES_FOLDER, keeping_presets, load_preset_voices
    from ui.page import build_page
    from ui.theme import launch_options

    _reach_this_machine_without_proxy()
    voices = load_preset_voices()
    load_clip = keeping_presets(voices, load_reference_clip)
    page = build_page(engine, voices, load_clip)
    try:
        page.queue(max_size=None).launch(
            server_name=settings.host,
            server_port=settings.port,
            share=settings.share,
            auth=settings.logins,
            root_path=settings.root_path,
            prevent_thread_lock=True,
            # Gradio gives out files below the working directory only, which may be any.
            allowed_paths=[str(VOICES_FOLDER)],
            app_kwargs={"routes": api_routes(engine, voices, settings, load_clip)},
            **launch_options(),
        )
    except (OSError, RuntimeError) as error:
        _give_up(f"The page cannot be served: {str(error).splitlines()[0]}")
        return None
    return page


def _reach_this_machine_without_proxy() -> None:
    """Gradio asks its own server whether it is up, and would ask the proxy that the environment names."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if given != "*":
        direct = ",".join(filter(None, (given, *THIS_MACHINE)))
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = direct


def _serve(engine: "OmniSpeechEngine", stop: threading.Event) -> int:
    """Waits for the signal to stop, or for a start that fails; returns the exit code."""
    was_ready = False
    while not stop.wait(0.2):
        was_ready = was_ready or engine.status.phase is Phase.READY
        # An engine that never started leaves nothing to serve; one that fails later is reported
        # by the page and by /health, for a supervisor to act on.
        if engine.status.phase is Phase.FAILED and not was_ready:
            return _give_up(engine.status.detail)
    return 0


def _close(page: "Blocks") -> None:
    from gradio.tunneling import CURRENT_TUNNELS

    # The streams that open pages keep would otherwise hold it up for 5 s.
    page.server.config.timeout_graceful_shutdown = 1
    page.close(verbose=False)
    for tunnel in CURRENT_TUNNELS:
        tunnel.kill()


def _give_up(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return EXIT_FAILED


def _set_up_logging(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # vLLM and its kin tell a start's every step at INFO; ours says which phase it is in.
    if level != "debug":
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        for name in ("httpx", "transformers"):
            logging.getLogger(name).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
