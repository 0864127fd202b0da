"""Train the codec inside a wall-clock budget, on one GPU.

    python -m scripts.train.train_codec spectral --corpus DIR --out DIR --local DIR --seconds 420
    python -m scripts.train.train_codec finetune --corpus DIR --out DIR --local DIR --seconds 800 --init DIR

`spectral` trains everything against spectra (and group 0 against phones). `finetune` fixes encoder and
code books and trains the decoder against discriminators too. Reports are JSON lines on stdout and in
OUT/log.jsonl. OUT gets the checkpoint in pieces of 15 MiB, LOCAL gets it whole as codec.pt, and state.pt
with the optimisers.
Exit codes: 0 done or told to stop (SIGTERM), 3 codes collapsed, 4 diverged.
"""

import argparse
import json
import logging
import math
import os
import signal
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.train.codec_data import PRESETS, Speech
from scripts.train.codec_losses import PhoneHead
from scripts.train.codec_model import Codec, read_checkpoint
from scripts.train.codec_step import CONTEXT_FRAMES, CodecStep, StepSettings
from scripts.train.discriminators import Discriminators
from scripts.train.snake import fuse_if_exact

log = logging.getLogger("train_codec")

PIECE_BYTES = 15 << 20
COLLAPSED, DIVERGED = 3, 4
QUANTIZER_DROPOUT = 0.35  # share of items that use a random number of acoustic levels
WARM_UP_STEPS = 200  # of the learning rates
SAVE_MARGIN_S = 4.0


class Abort(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["spectral", "finetune"])
    p.add_argument("--corpus", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True, help="checkpoint pieces and log")
    p.add_argument("--local", type=Path, required=True, help="codec.pt, and state.pt to go on from")
    p.add_argument("--seconds", type=float, required=True, help="from the start of the process to its end")
    p.add_argument(
        "--init", type=Path, help="codec.pt, state.pt, or a folder with codec.pt whole or in pieces"
    )
    p.add_argument("--depth", type=int, default=16, help="code groups in use")
    p.add_argument("--phone-weight", type=float, default=0.0, help="of the phone loss on group 0; 0 is off")
    p.add_argument("--batch", type=int, default=12, help="windows")
    p.add_argument("--frames", type=int, default=96, help="of a window: near the longest clips, 10 s")
    p.add_argument("--crops", type=int, default=2, help="decoded from each window")
    p.add_argument("--crop", type=int, default=24, help="frames of a crop")
    p.add_argument("--disc-frames", type=int, default=16, help="judged by the discriminators")
    p.add_argument("--lr", type=float, help="decoder; default 6e-4, 3e-4 in finetune")
    p.add_argument("--enc-lr", type=float, default=3e-4, help="8e-4 saturated the encoder within 800 steps")
    p.add_argument("--disc-lr", type=float, default=3e-4)
    p.add_argument("--free-steps", type=int, default=200, help="without quantizers, from scratch")
    p.add_argument("--adv-weight", type=float, default=1.0)
    p.add_argument("--adv-start", type=int, default=200, help="steps that the discriminators get first")
    p.add_argument("--adv-ramp", type=int, default=800, help="steps from 0 to the full weight")
    p.add_argument("--disc-channels", type=int, default=32)
    p.add_argument("--periods", default="", help="of period discriminators, e.g. 2,3,5,7,11")
    p.add_argument("--presets", default=",".join(PRESETS), help="voices that get 40 %% together at least")
    p.add_argument("--sizes", type=json.loads, default={}, help="JSON over codec_model.SIZES")
    p.add_argument("--collapse-below", type=float, default=30.0, help="perplexity of groups 0 and 1")
    p.add_argument("--collapse-from", type=int, default=500, help="step")
    p.add_argument("--check-every", type=int, default=50, help="steps")
    p.add_argument("--report-seconds", type=float, default=10.0)
    p.add_argument("--save-seconds", type=float, default=100.0)
    p.add_argument("--steps", type=int, default=10**9, help="stop after so many")
    p.add_argument("--reload-at", default="", help="seconds at which to read the corpus again, e.g. 60,150")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda")
    p.add_argument("--eager", action="store_true", help="no CUDA graphs")
    a = p.parse_args(argv)
    a.lr = a.lr or (6e-4 if a.mode == "spectral" else 3e-4)
    if a.mode == "finetune" and a.init is None:
        p.error("finetune needs --init")
    if a.frames < max(a.crop + CONTEXT_FRAMES, a.crops * a.crop) or a.crop < a.disc_frames:
        p.error(f"needs frames >= crop + {CONTEXT_FRAMES}, frames >= crops * crop, crop >= disc-frames")
    return a


def process_age_s() -> float:
    """Seconds since this process began: imports count against the budget."""
    try:
        ticks = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return age if 0 <= age < 120 else 0.0


class Run:
    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.begun = a, time.monotonic() - process_age_s()
        self.finetune, self.stop_asked = a.mode == "finetune", False
        torch.manual_seed(a.seed)
        a.out.mkdir(parents=True, exist_ok=True)
        a.local.mkdir(parents=True, exist_ok=True)
        blob = self.read_init()
        a.depth = blob["depth"] if blob else a.depth
        self.data = self.read_speech(blob.get("alphabet", "") if blob else "", a.seed)
        self.reload_at = [float(x) for x in a.reload_at.split(",") if x]
        self.reader = ThreadPoolExecutor(1)
        self.reading: Future[Speech] | None = None
        self.codec = Codec(blob["sizes"] if blob else a.sizes, a.depth).to(a.device)
        head = judges = None
        if self.finetune:
            periods = tuple(int(x) for x in a.periods.split(",") if x)
            judges = Discriminators(a.disc_channels, periods).to(a.device)
            judges = judges.to(memory_format=torch.channels_last)
        elif a.phone_weight > 0:
            head = PhoneHead(self.codec.sizes["cb_dim"], len(self.data.alphabet) + 1).to(a.device)
        settings = StepSettings(
            a.device, a.batch, a.frames, a.crops, a.crop, a.disc_frames, a.phone_weight, a.eager
        )
        snake = fuse_if_exact(a.device)
        self.step = CodecStep(settings, self.codec, head, judges)
        self.number, self.quantized = 0, False
        if blob:
            self.load(blob)
        self.first, self.history = self.number, (a.out / "log.jsonl").open("a")
        self.calm, self.adv_scale = 1.0, 1.0  # factors that the guards lower
        self.good: list[torch.Tensor] | None = None
        self.unhealthy, self.diverged = 0, 0
        self.base_mel, self.high = 0.0, 0
        self.mels: list[float] = []  # before the discriminators have a say
        self.sums: dict[str, float] = {}
        self.covered = 0
        self.now = self.loop_begun = self.reported = self.saved = 0.0
        parts = {"encoder": self.codec.encoder, "decoder": self.codec.decoder, "discriminators": judges}
        millions = {
            k: round(sum(p.numel() for p in m.parameters()) / 1e6, 2)
            for k, m in parts.items()
            if m is not None
        }
        self.say({"start": a.mode, "data": self.data.summary, "millions": millions, "snake": snake})

    # ------------------------------------------------------------------------------------------ corpus

    def read_speech(self, alphabet: str, seed: int) -> Speech:
        a = self.a
        return Speech(a.corpus, a.device, a.frames, a.batch, alphabet, tuple(a.presets.split(",")), seed)

    def take_new_speech(self, middle: bool) -> None:
        """Reads the corpus again, beside the training, when its time has come; then trains on that.

        Never beside the capture of a graph, which the copies of another thread to the device break.
        """
        capturing = not self.step.ready(self.quantized, middle)
        if self.reading is not None and (capturing or self.reading.done()):
            self.data, self.reading = self.reading.result(), None
            self.say({"step": self.number, "event": "speech read again", "data": self.data.summary})
        elif self.reading is None and self.reload_at and self.now >= self.reload_at[0] and not capturing:
            self.reload_at.pop(0)
            seed = self.a.seed + self.number
            self.reading = self.reader.submit(self.read_speech, self.data.alphabet, seed)

    # ------------------------------------------------------------------------------------- checkpoints

    def read_init(self) -> dict[str, Any] | None:
        return read_checkpoint(self.a.init) if self.a.init else None

    def load(self, blob: dict[str, Any]) -> None:
        self.codec.load_state_dict({k: v.float() for k, v in blob["model"].items()})
        self.number, self.quantized = blob["step"], True
        state = self.step
        for name, module in (("head", state.head), ("discriminators", state.discriminators)):
            if module is not None and blob.get(name):
                try:
                    module.load_state_dict({k: v.float() for k, v in blob[name].items()})
                except RuntimeError as error:
                    log.warning("%s starts anew: %s", name, error)
        if len(blob.get("optimizers", ())) == len(state.optimizers) and blob["mode"] == self.a.mode:
            try:
                for optimizer, saved in zip(state.optimizers, blob["optimizers"], strict=True):
                    optimizer.load_state_dict(saved)
            except ValueError as error:
                log.warning("optimisers start anew: %s", error)
            state.link_lrs()

    def save(self, name: str = "codec.pt") -> None:
        def host(module: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
            return {k: v.detach().to(dtype).cpu() for k, v in module.state_dict().items()}

        common = {
            "sizes": self.codec.sizes,
            "depth": self.codec.depth,
            "step": self.number,
            "mode": self.a.mode,
            "alphabet": self.data.alphabet,
        }
        extras = {"head": self.step.head, "discriminators": self.step.discriminators}
        extras = {k: host(m, torch.float16) for k, m in extras.items() if m is not None}
        small = {**common, "model": host(self.codec, torch.float16)}
        small |= extras
        path = self.a.local / name
        torch.save(small, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
        raw = path.read_bytes()
        for old in self.a.out.glob(f"{name}.*"):
            old.unlink()
        for i, at in enumerate(range(0, len(raw), PIECE_BYTES)):
            (self.a.out / f"{name}.{i}").write_bytes(raw[at : at + PIECE_BYTES])
        full = {**common, **extras, "model": host(self.codec, torch.float32)}
        full["optimizers"] = [o.state_dict() for o in self.step.optimizers]
        torch.save(full, self.a.local / "state.new")
        (self.a.local / "state.new").replace(self.a.local / "state.pt")

    # -------------------------------------------------------------------------------------------- loop

    def say(self, row: dict[str, Any]) -> None:
        row = {"t": round(time.monotonic() - self.begun, 1), **row}
        print(json.dumps(row), flush=True)
        self.history.write(json.dumps(row) + "\n")
        self.history.flush()

    def progress(self) -> float:
        budget = self.a.seconds - SAVE_MARGIN_S - self.loop_begun
        by_time = (self.now - self.loop_begun) / max(1e-3, budget)
        return max(by_time, (self.number - self.first) / self.a.steps)

    def start_code_books(self) -> None:
        """K-means on the latents of some twenty batches."""
        latents = []
        with torch.no_grad(), self.step.amp():
            for _ in range(20 if self.a.device == "cuda" else 4):
                h = self.codec.encoder(self.data.next()[0]).float()
                latents.append(h.transpose(1, 2).reshape(-1, h.shape[1]))
        z = torch.cat(latents)
        for quantizer in self.codec.quantizers:
            x = z @ quantizer.input_proj.weight.detach()[:, :, 0].t()
            quantizer.start_from(x, step_frames=self.a.batch * self.a.frames)
        self.quantized = True

    def fill(self) -> None:
        """This step's schedule and batch into the step's buffers."""
        a, step, rng = self.a, self.step, self.data.rng
        done, p = self.number - self.first, self.progress()
        ease = min(1.0, (done + 1) / WARM_UP_STEPS) * self.calm
        shape = 0.5 * (1 + math.cos(math.pi * min(1.0, p)))
        step.set_lrs(
            (a.lr * shape + 1e-5) * ease,
            (a.enc_lr * shape + 5e-6) * ease,
            (a.disc_lr * (0.1 + 0.9 * shape)) * ease,
        )
        ramp = min(1.0, max(0.0, (done - a.adv_start) / max(1, a.adv_ramp)))
        step.adv_weight.fill_(a.adv_weight * self.adv_scale * ramp)
        step.revive.fill_(not self.finetune and self.number % 20 == 0 and p < 0.85)
        wav, labels = self.data.next()
        step.wav.copy_(wav)
        step.labels.copy_(labels)
        levels = a.depth - 1
        dropped = rng.random(a.batch) < QUANTIZER_DROPOUT
        keep = np.where(dropped, rng.integers(0, levels, a.batch), levels)
        start = rng.integers(CONTEXT_FRAMES, a.frames - a.crop + 1, (a.batch, a.crops))
        # Without non_blocking the CPU would wait here for the step in flight.
        step.keep.copy_(torch.from_numpy(keep), non_blocking=True)
        step.start.copy_(torch.from_numpy(start), non_blocking=True)

    def check(self) -> None:
        """Every few steps: gather metrics, act on divergence, collapse and a losing spectral loss."""
        metrics, count = self.step.read_metrics()
        if not all(math.isfinite(v) for v in metrics.values()):
            return self.recover_from_nan()
        for k, v in metrics.items():
            self.sums[k] = self.sums.get(k, 0.0) + v * count
        self.covered += count
        if self.finetune:
            self.guard_spectra(metrics["mel"])
        healthy = self.finetune or (self.quantized and self.guard_codes())
        if healthy and self.number % 200 < self.a.check_every:
            self.good = self.step.snapshot()

    def recover_from_nan(self) -> None:
        self.diverged += 1
        self.sums, self.covered = {}, 0
        if self.good is None:
            self.quantized = False  # nothing worth saving
            raise Abort(DIVERGED, f"step {self.number}: not finite, before anything good")
        self.step.restore(self.good)
        if self.diverged > 5:
            raise Abort(DIVERGED, f"step {self.number}: not finite, {self.diverged} times")
        self.calm *= 0.7
        self.say({"step": self.number, "event": "NOT FINITE, restored", "calm": self.calm})

    def guard_codes(self) -> bool:
        """Whether the codes are in use. If they are not: back to the last good state, and slower."""
        worst = min(self.step.perplexity(group) for group in (0, 1))
        if worst >= self.a.collapse_below:
            self.unhealthy = 0
            return True
        if self.number < self.a.collapse_from:
            return False
        self.unhealthy += 1
        if self.good is not None:
            self.step.restore(self.good)
            self.calm *= 0.6
        if self.unhealthy >= (4 if self.good is None else 3):
            raise Abort(COLLAPSED, f"step {self.number}: codes collapsed, perplexity {worst:.0f}")
        done = "nothing to go back to" if self.good is None else "restored"
        self.say({"step": self.number, "event": f"CODE USE {worst:.0f}, {done}", "calm": self.calm})
        return False

    def guard_spectra(self, mel: float) -> None:
        """Halve the adversarial weight when it costs more than 15 % of the spectral loss for 200 steps."""
        done = self.number - self.first
        if done <= max(self.a.adv_start, self.a.check_every):
            self.mels.append(mel)
            late = self.mels[len(self.mels) // 2 :]
            self.base_mel = sum(late) / len(late)
            return
        self.high = self.high + self.a.check_every if mel > 1.15 * self.base_mel else 0
        if self.high >= 200:
            self.adv_scale, self.high = 0.5 * self.adv_scale, 0
            self.say({"step": self.number, "event": "SPECTRAL LOSS HIGH", "adv_scale": self.adv_scale})

    def report(self, phase: str) -> None:
        row: dict[str, Any] = {"step": self.number, "phase": phase, "p": round(self.progress(), 3)}
        row["steps_s"] = round(self.covered / max(1e-3, self.now - self.reported), 2)
        means = {k: round(v / max(1, self.covered), 4) for k, v in self.sums.items()}
        row |= {k: v for k, v in means.items() if v or k == "mel"}
        if self.quantized:
            groups = sorted({0, min(1, self.a.depth - 1), self.a.depth // 2, self.a.depth - 1})
            row["perp"] = {g: round(self.step.perplexity(g)) for g in groups}
        row["lr"] = float(f"{float(self.step.lrs[0]):.2e}")
        if self.finetune:
            row |= {"adv_weight": round(float(self.step.adv_weight), 3), "base_mel": round(self.base_mel, 4)}
        if self.a.device == "cuda":
            row["gb"] = round(torch.cuda.max_memory_reserved() / 2**30, 1)
        self.say(row)
        self.sums, self.covered, self.reported = {}, 0, self.now

    def loop(self) -> None:
        a = self.a
        self.now = self.loop_begun = self.reported = self.saved = time.monotonic() - self.begun
        while self.number - self.first < a.steps and not self.stop_asked:
            self.now = time.monotonic() - self.begun
            if self.now > a.seconds - SAVE_MARGIN_S:
                break
            if not self.quantized and self.number >= a.free_steps:
                self.start_code_books()
                self.say({"step": self.number, "event": "code books started"})
            middle = self.number % 4 != 0
            self.take_new_speech(middle)
            self.fill()
            self.step.run(self.quantized, middle)
            self.number += 1
            done = self.number - self.first
            if done % a.check_every and done != a.steps:
                continue
            self.check()
            phase = a.mode if self.quantized else "free"
            if self.now - self.reported >= a.report_seconds or done <= a.check_every or done == a.steps:
                self.report(phase)
            if self.now - self.saved >= a.save_seconds and self.quantized:
                self.save()
                self.saved = self.now
        if self.step.count:
            self.check()
        if self.covered:
            self.report(a.mode)

    def main(self) -> int:
        def stop(*_: object) -> None:
            self.stop_asked = True

        signal.signal(signal.SIGTERM, stop)
        code = 0
        try:
            self.loop()
        except Abort as abort:
            code = abort.code
            self.say({"step": self.number, "event": "ABORT", "code": code, "reason": str(abort)})
        if self.quantized:
            self.save()
        end = "aborted" if code else "stopped by SIGTERM" if self.stop_asked else "done"
        self.say({"step": self.number, "event": end, "steps": self.number - self.first})
        return code


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    sys.exit(Run(parse()).main())


if __name__ == "__main__":
    main()
