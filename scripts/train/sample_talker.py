"""Speaks sentences with a trained talker: codes for every sentence and voice, audio if given a codec.

    python -m scripts.train.sample_talker --talker out --tokenizer tokenizer --out samples \\
        --sentences evaluation_sentences.txt --voice heart=heart.wav --voice emma=emma.wav --codec codec.pt

Batched, with KV caches, on GPU or CPU; draws as vLLM-Omni does (group 0: code 0 and specials masked, no
end before two frames, repetition penalty over the codes spoken so far). Writes samples.npz
(codes_0, codes_1, ... [frames, 16]), samples.jsonl (text, voice, layout, ended) and NUMBER.wav.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backend.checkpoint.configs import CODE_GROUPS, CODEC_ROWS, CODES_PER_GROUP, END_OF_SPEECH_ID
from backend.checkpoint.text import read_tokenizer
from scripts.train import talker_rows as tr
from scripts.train.talker_checkpoint import load_talker
from scripts.train.talker_model import TalkerModel
from scripts.train.wav_file import read_wav, write_wav

SAMPLE_RATE_HZ = 24_000
MIN_FRAMES = 2
# The ceiling of vLLM-Omni's own server.
LEAST_LIMIT, FRAMES_PER_TOKEN = 192, 12


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 takes the likeliest code."""

    temperature: float = 0.9
    top_k: int = 50
    repetition_penalty: float = 1.05
    sub_temperature: float = 0.9
    sub_top_k: int = 50


@dataclass
class Request:
    """Token ids to speak in the voice of an x-vector [hidden].

    In-context with `clip_codes` [frames, 16] and `clip_tokens`.
    """

    tokens: list[int]
    vector: Tensor
    streamed: bool = True
    language: bool = True
    clip_tokens: list[int] | None = None
    clip_codes: Tensor | None = None


@torch.inference_mode()
def speak(
    model: TalkerModel,
    ids: tr.TextIds,
    requests: list[Request],
    sampling: Sampling,
    seed: int = 0,
    max_frames: int | None = None,
) -> list[tuple[np.ndarray, bool]]:
    """Codes [frames, 16] of each request, and whether it ended by itself. `model` must be in eval mode."""
    talker = model.talker
    device = talker.codec_head.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    longest = max(len(r.tokens) for r in requests)
    limit = max_frames or max(LEAST_LIMIT, FRAMES_PER_TOKEN * longest)
    prompts, texts = zip(*(_prompt(model, ids, r, limit) for r in requests), strict=True)
    batch, length = len(prompts), max(len(p) for p in prompts)
    x = torch.zeros(batch, length, model.sizes.talker.hidden, device=device)
    keys = torch.ones(batch, 1, 1, length + limit, dtype=torch.bool, device=device)
    for i, prompt in enumerate(prompts):  # padded on the left; rotation only knows differences
        x[i, length - len(prompt) :] = prompt
        keys[i, :, :, : length - len(prompt)] = False
    upcoming = torch.stack(texts)  # text part of the row that carries each new frame: [batch, limit, hidden]

    cache = talker.model.new_cache(batch, length + limit, device, x.dtype)
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    # A padding row sees itself: a softmax over nothing is not a number.
    diagonal = torch.eye(length, dtype=torch.bool, device=device)
    hidden = talker.model.run(x, (causal & keys[..., :length]) | diagonal, cache)[:, -1]

    allowed = torch.zeros(CODEC_ROWS, dtype=torch.bool, device=device)
    allowed[1:CODES_PER_GROUP] = True
    spoken = torch.zeros(batch, CODEC_ROWS, dtype=torch.bool, device=device)
    codes = torch.zeros(batch, limit, CODE_GROUPS, dtype=torch.long, device=device)
    frames = torch.full((batch,), limit, device=device)
    for t in range(limit):
        allowed[END_OF_SPEECH_ID] = t >= MIN_FRAMES
        logits = talker.codec_head(hidden).float()
        penalised = torch.where(
            logits > 0, logits / sampling.repetition_penalty, logits * sampling.repetition_penalty
        )
        logits = torch.where(spoken, penalised, logits).masked_fill(~allowed, -torch.inf)
        code = draw(logits, sampling.temperature, sampling.top_k, generator)
        frames = torch.where((code == END_OF_SPEECH_ID) & (frames == limit), t, frames)
        if t % 8 == 7 and bool((frames < limit).all()):
            break
        code = code.clamp(max=CODES_PER_GROUP - 1)  # an ended request runs on unheard
        spoken.scatter_(1, code[:, None], True)
        codes[:, t] = _residual_codes(model, hidden, code, sampling, generator)
        x = talker.embed_frames(codes[:, t]) + upcoming[:, t]
        hidden = talker.model.run(x[:, None], keys[..., : length + t + 1], cache)[:, 0]
    ended = (frames < limit).tolist()
    return [(codes[i, :n].cpu().numpy().astype(np.uint16), ended[i]) for i, n in enumerate(frames.tolist())]


def _prompt(model: TalkerModel, ids: tr.TextIds, request: Request, limit: int) -> tuple[Tensor, Tensor]:
    """Prompt rows [rows, hidden], and the text part of the rows of `limit` further frames."""
    talker = model.talker
    device = talker.codec_head.weight.device
    clip_tokens = request.clip_tokens or []
    text = torch.tensor([*clip_tokens, *request.tokens], device=device)
    item = torch.zeros(1, tr.ITEM_COLUMNS, dtype=torch.long, device=device)
    item[0, tr.HAS_LANGUAGE], item[0, tr.STREAMED] = int(request.language), int(request.streamed)
    item[0, tr.TEXT_LENGTH_1] = len(text)
    clip = request.clip_codes
    item[0, tr.FRAMES_1] = 0 if clip is None else len(clip)
    length = int(tr.item_rows(item))
    rows = tr.build_rows(item, length + limit, text, ids)
    all_text = talker.text_rows()[rows.text[0]]
    x = all_text[:length].clone()
    codec = rows.codec[0, :length]
    x += talker.model.codec_embedding(codec.clamp(min=0)) * (codec >= 0)[:, None]
    if clip is not None:
        frame = rows.frame[0, :length]
        fed = clip.long().to(device)[frame.clamp(min=0)]
        x += talker.embed_frames(fed) * (frame >= 0)[:, None]
    x += request.vector.to(device) * rows.voice[0, :length, None]
    return x, all_text[length:]


def _residual_codes(
    model: TalkerModel, hidden: Tensor, code: Tensor, sampling: Sampling, generator: torch.Generator
) -> Tensor:
    """All 16 codes of a frame [batch, 16] from its group 0 code and the talker's state."""
    predictor = model.talker.code_predictor
    cache = predictor.model.new_cache(len(code), predictor.depth + 1, hidden.device, hidden.dtype)
    codes = torch.zeros(len(code), CODE_GROUPS, dtype=torch.long, device=code.device)
    codes[:, 0] = code
    first = model.talker.model.codec_embedding(code)
    for step in (hidden, first):
        state = predictor.model.run(predictor.project(step)[:, None], None, cache)[:, 0]
    for group in range(1, predictor.depth):
        logits = predictor.lm_head[group - 1](state).float()
        code = draw(logits, sampling.sub_temperature, sampling.sub_top_k, generator)
        codes[:, group] = code
        if group + 1 < predictor.depth:
            x = predictor.project(predictor.embed(group, code))
            state = predictor.model.run(x[:, None], None, cache)[:, 0]
    return codes


def draw(logits: Tensor, temperature: float, top_k: int, generator: torch.Generator) -> Tensor:
    """One id a row from the softmax over the `top_k` largest of logits [batch, ids]."""
    if temperature <= 0:
        return logits.argmax(-1)
    best, index = (logits / temperature).topk(min(top_k, logits.shape[-1]), dim=-1)
    choice = torch.multinomial(best.softmax(-1), 1, generator=generator)
    return index.gather(-1, choice)[:, 0]


def read_clip(path: Path) -> Tensor:
    """Mono audio [samples] of a 24 kHz wav of 16 bits. Raises ValueError for another kind."""
    return torch.from_numpy(read_wav(path, SAMPLE_RATE_HZ))


def corpus_clip(folder: Path, voice: str, seconds: float = 4.0) -> Tensor:
    """Audio of one utterance of a voice from a folder of shards, the first that lasts about `seconds`."""
    best: tuple[float, Path, dict] | None = None
    for index in sorted(folder.glob("*.jsonl")):
        for line in index.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            off = abs(row["n"] / SAMPLE_RATE_HZ - seconds)
            if row["voice"] == voice and (best is None or off < best[0]):
                best = (off, index.with_suffix(".pcm"), row)
        if best is not None and best[0] < 0.3:
            break
    if best is None:
        raise ValueError(f"no utterance of {voice} in {folder}")
    _, path, row = best
    pcm = np.fromfile(path, "<i2", count=row["n"], offset=2 * row["start"])
    return torch.from_numpy(pcm.astype(np.float32) / 32768)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--talker", type=Path, required=True)
    add("--tokenizer", type=Path, required=True)
    add("--sentences", type=Path, required=True, help="a sentence a line")
    add("--count", type=int, default=1000, help="sentences to speak at most")
    add("--voice", action="append", required=True, help="NAME=CLIP.wav, or NAME to find in --corpus")
    add("--corpus", type=Path)
    add("--out", type=Path, required=True)
    add("--codec", type=Path, help="codec.pt, to decode")
    add("--layout", choices=("streamed", "prompt", "both"), default="streamed", help="of the text")
    add("--temperature", type=float, default=0.9)
    add("--top-k", type=int, default=50)
    add("--repetition-penalty", type=float, default=1.05)
    add("--sub-temperature", type=float, default=0.9)
    add("--sub-top-k", type=int, default=50)
    add("--batch", type=int, default=256)
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()

    tokenizer = read_tokenizer(options.tokenizer)
    model, about = load_talker(options.talker)
    model = model.to(options.device).eval()
    encoder, ids = tokenizer.encoder(), tr.text_ids(tokenizer)
    sampling = Sampling(
        options.temperature,
        options.top_k,
        options.repetition_penalty,
        options.sub_temperature,
        options.sub_top_k,
    )
    lines = options.sentences.read_text(encoding="utf-8").splitlines()
    sentences = [line.strip() for line in lines if line.strip()][: options.count]
    layouts = {"streamed": (True,), "prompt": (False,), "both": (True, False)}[options.layout]
    requests, rows = [], []
    for voice in options.voice:
        name, _, clip = voice.partition("=")
        audio = read_clip(Path(clip)) if clip else corpus_clip(options.corpus, name)
        with torch.inference_mode():
            vector = model.x_vectors(audio[None].to(options.device))[0]
        for streamed in layouts:
            for text in sentences:
                requests.append(Request(encoder.encode(text).ids, vector, streamed))
                rows.append({"text": text, "voice": name, "layout": "streamed" if streamed else "prompt"})
    began = time.monotonic()
    spoken = []
    for i in range(0, len(requests), options.batch):
        spoken += speak(model, ids, requests[i : i + options.batch], sampling, options.seed + i)
    took = time.monotonic() - began
    options.out.mkdir(parents=True, exist_ok=True)
    arrays = {f"codes_{i}": codes for i, (codes, _) in enumerate(spoken)}
    np.savez_compressed(options.out / "samples.npz", **arrays)
    with (options.out / "samples.jsonl").open("w", encoding="utf-8") as file:
        for i, (row, (codes, ended)) in enumerate(zip(rows, spoken, strict=True)):
            file.write(json.dumps({"i": i, **row, "ended": ended, "frames": len(codes)}) + "\n")
    seconds = sum(len(codes) for codes, _ in spoken) * 0.08
    share = sum(ended for _, ended in spoken) / len(spoken)
    print(f"step {about['step']}: {len(spoken)} runs, {share:.1%} ended, {seconds:.0f} s in {took:.1f} s")
    if options.codec:
        _decode(options.codec, [codes for codes, _ in spoken], options.out, options.device)
    return 0


@torch.inference_mode()
def _decode(path: Path, spoken: list[np.ndarray], out: Path, device: str) -> None:
    from scripts.train.codec_model import load_codec

    codec = load_codec(path).to(device)
    for i, codes in enumerate(spoken):
        if len(codes):
            batch = torch.from_numpy(codes.astype(np.int64)).t()[None].to(device)
            write_wav(out / f"{i:04d}.wav", codec.decode(batch)[0, 0].float().cpu().numpy(), SAMPLE_RATE_HZ)


if __name__ == "__main__":
    sys.exit(main())
