"""Re-synthesise speech through a trained codec, for judging: a folder of clips for each number of groups.

    python -m scripts.train.reconstruct --codec DIR --corpus DIR --voices heart,bm_fable --out OUT
    python -m scripts.train.reconstruct --codec DIR --wavs DIR --groups 16,8,4 --out OUT

OUT/original and OUT/groups-N hold wavs and clips.jsonl with rows {"file", "text", "voice"}. With --wavs,
texts and voices come from DIR/clips.jsonl where it exists. Runs on a CPU.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from scripts.train.codec_data import read_shards
from scripts.train.codec_model import HOP_SAMPLES, SAMPLE_RATE_HZ, load_codec
from scripts.train.wav_file import read_wav, write_wav

Clip = tuple[str, str, str, np.ndarray]  # name, voice, text, float32 samples at 24 kHz


def from_corpus(folder: Path, per_voice: int, voices: list[str]) -> Iterator[Clip]:
    """The last utterances of each voice in the corpus."""
    rows = defaultdict(list)
    for shard in read_shards(folder):
        for i, row in enumerate(shard.rows):
            if not voices or row["voice"] in voices:
                rows[row["voice"]].append((shard, i, row))
    for voice, found in sorted(rows.items()):
        for shard, i, row in found[-per_voice:]:
            pcm = shard.pcm[row["start"] : row["start"] + row["n"]]
            yield f"{voice}-{shard.name}-{i}", voice, row["text"], pcm.astype(np.float32) / 32768


def from_wavs(folder: Path) -> Iterator[Clip]:
    listing = folder / "clips.jsonl"
    if listing.exists():
        rows = [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        rows = [{"file": str(p.relative_to(folder))} for p in sorted(folder.rglob("*.wav"))]
    for row in rows:
        name = str(Path(row["file"]).with_suffix("")).replace("/", "-")
        yield name, row.get("voice", "all"), row.get("text", ""), read_wav(folder / row["file"])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--codec", type=Path, required=True)
    source = p.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", type=Path)
    source.add_argument("--wavs", type=Path)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--groups", default="", help="numbers of code groups, e.g. 16,8,4; default the depth")
    p.add_argument("--per-voice", type=int, default=8)
    p.add_argument("--voices", default="", help="of the corpus; default all")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    codec = load_codec(a.codec).to(a.device)
    groups = [int(g) for g in a.groups.split(",") if g] or [codec.depth]
    voices = [v for v in a.voices.split(",") if v]
    clips = from_corpus(a.corpus, a.per_voice, voices) if a.corpus else from_wavs(a.wavs)
    listings: dict[str, list[dict[str, str]]] = defaultdict(list)
    for name, voice, text, x in clips:
        wav = torch.from_numpy(x).to(a.device)
        codes = codec.encode(F.pad(wav, (0, -len(x) % HOP_SAMPLES))[None, None])
        made = {f"groups-{g}": codec.decode(codes, g)[0, 0, : len(x)].cpu().numpy() for g in groups}
        for kind, samples in {"original": x, **made}.items():
            write_wav(a.out / kind / f"{name}.wav", samples, SAMPLE_RATE_HZ)
            listings[kind].append({"file": f"{name}.wav", "text": text, "voice": voice})
    for kind, rows in listings.items():
        lines = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)
        (a.out / kind / "clips.jsonl").write_text(lines, encoding="utf-8")
    print({kind: len(rows) for kind, rows in listings.items()})


if __name__ == "__main__":
    main()
