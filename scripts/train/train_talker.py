"""Trains talker, code predictor and speaker encoder together on a corpus with codes.

    python -m scripts.train.train_talker --corpus corpus --tokenizer tokenizer --out out --seconds 800

Prints a JSON line every ten seconds; saves talker.pt in pieces. Each batch shape is one CUDA graph of
the whole step: rows, mel, forward, backward, clipping and AdamW. Exit codes: 0 done (also on SIGTERM),
3 given up because it does not learn.
"""

import argparse
import json
import logging
import math
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.checkpoint.text import read_tokenizer
from scripts.train.talker_checkpoint import load_talker, save_talker
from scripts.train.talker_data import Corpus, Plan, Planner, Shape
from scripts.train.talker_model import (
    TalkerModel,
    calibrate_speaker,
    freeze_constant,
    initialise,
    talker_sizes,
)
from scripts.train.talker_rows import ITEM_COLUMNS, text_ids
from scripts.train.talker_step import FIGURES, LossWeights, StepLoss, TrainedTalker, averages

log = logging.getLogger("train_talker")

CLIP_NORM = 1.0
REPORT_S = 10.0
VALIDATE_S = 30.0
SAVE_S = 150.0
# Learning enough to go on: by then group 0 must be told better than by counting codes alone.
JUDGE_AT_S = 120.0
BROKEN_MARGIN_NATS = 0.4
GIVEN_UP = 3
STEPS_IN_FLIGHT = 4


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--corpus", type=Path, nargs="+", required=True, help="folders of shards with .pcm, .jsonl, .codes")
    add("--takes", type=int, default=1, help="of the codes, as for encode_corpus")
    add("--tokenizer", type=Path, required=True, help="folder with vocab.json and merges.txt")
    add("--out", type=Path, required=True)
    add("--seconds", type=float, required=True, help="of wall time, loading and saving included")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--hidden", type=int, default=256)
    add("--layers", type=int, default=8)
    add("--mlp", type=int, help="default: three times --hidden")
    add("--predictor-hidden", type=int, default=256)
    add("--predictor-layers", type=int, default=3)
    add("--speaker-channels", type=int, default=128)
    add("--depth", type=int, help="code books in use; default: as the codes show")
    add("--dropout", type=float, default=0.08)
    add("--rows", type=int, default=24_576, help="rows a step")
    add("--max-rows", type=int, default=320, help="rows of the longest item")
    add("--picks", type=int, default=5120, help="frames a step that the predictor trains on")
    add("--lr", type=float, default=1e-3)
    add("--warm-up", type=int, default=200, help="steps")
    add("--weight-decay", type=float, default=0.05)
    add("--streamed", type=float, default=0.6, help="share of items whose text is streamed")
    add("--language", type=float, default=0.7, help="share of items that name English")
    add("--pairs", type=float, default=0.2, help="share of items of two utterances, as in-context ones are")
    add("--smoothing", type=float, default=LossWeights.smoothing)
    add("--groups-weight", type=float, default=LossWeights.groups)
    add("--phones-weight", type=float, default=LossWeights.phones)
    add("--noise-group-0", type=float, default=LossWeights.noise_group_0)
    add("--noise-groups", type=float, default=LossWeights.noise_groups)
    add("--resume", type=Path, help="talker.pt, or a folder with its pieces, to start from")
    add("--eager", action="store_true", help="no CUDA graphs")
    add("--seed", type=int, default=0)
    add("--max-steps", type=int, default=10**9)
    return parser.parse_args(arguments)


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.monotonic()
        self.device = options.device
        torch.manual_seed(options.seed)
        torch.set_float32_matmul_precision("high")
        # Its plans are built at run time, shape by shape; flash attention is as fast here.
        torch.backends.cuda.enable_cudnn_sdp(False)
        tokenizer = read_tokenizer(options.tokenizer)
        self.corpus = Corpus(options.corpus, tokenizer, options.device, options.takes)
        train, held = self.corpus.split()
        planning: dict[str, Any] = {
            name: getattr(options, name) for name in ("max_rows", "streamed", "language", "pairs", "picks")
        }
        planning["batch_rows"] = options.rows
        self.planner = Planner(self.corpus, train, seed=options.seed, **planning)
        model = self._model(tokenizer)
        voices, phones = len(self.corpus.voices), len(self.corpus.phone_names)
        self.trained = TrainedTalker(model, voices, phones).to(self.device)
        weights = LossWeights(
            groups=options.groups_weight,
            phones=options.phones_weight,
            smoothing=options.smoothing,
            noise_group_0=options.noise_group_0,
            noise_groups=options.noise_groups,
        )
        ids = text_ids(tokenizer)
        self.step_loss = StepLoss(self.trained, self.corpus, ids, weights, self.device)
        self.totals = torch.zeros(len(FIGURES), device=self.device)
        self.validation = self._validation(held, planning)
        if options.resume is None:
            self._calibrate()
        self.lr = torch.zeros((), device=self.device)
        self.grad_scale = torch.ones((), device=self.device)
        self.found_inf = torch.zeros((), device=self.device)
        self.optimizer = self._optimizer()
        self.params = [p for p in self.trained.parameters() if p.requires_grad]
        self.step = 0
        self.log: list[dict[str, Any]] = []
        self.stop = False
        self.inputs = [self._static_inputs(shape) for shape in self.planner.shapes]
        self.graphs: list[torch.cuda.CUDAGraph | None] = [None] * len(self.planner.shapes)
        self.lr_factor = 1.0
        self.healthy: list[Tensor] = []

    def _model(self, tokenizer: Any) -> TalkerModel:
        o = self.options
        if o.resume is not None:
            model, _ = load_talker(o.resume, o.dropout)
            if model.sizes.depth != self.corpus.depth:
                log.warning("codes of depth %d, model of %d", self.corpus.depth, model.sizes.depth)
            return model
        sizes = talker_sizes(
            hidden=o.hidden,
            layers=o.layers,
            mlp=o.mlp,
            predictor_hidden=o.predictor_hidden,
            predictor_layers=o.predictor_layers,
            depth=max(2, o.depth or self.corpus.depth),
            # The spare rows at the end of the table have no id.
            text_vocab=128 * math.ceil((max(tokenizer.added.values()) + 1) / 128),
            speaker_channels=o.speaker_channels,
        )
        model = TalkerModel(sizes, o.dropout)
        initialise(model, o.seed)
        return model

    def _validation(self, held: np.ndarray, planning: dict[str, Any]) -> list[Plan]:
        """Two fixed batches of utterances that are never trained on; none where there are too few."""
        if len(held) < 8:
            return []
        planner = Planner(self.corpus, held, seed=1, **(planning | {"buckets": 1, "pairs": 0.0}))
        self.validation_shape = planner.shapes[0]
        return [planner.next() for _ in range(2)]

    @torch.no_grad()
    def _calibrate(self) -> None:
        plan, shape = self.planner.next(), self.planner.shapes
        clips = torch.from_numpy(plan.clips).to(self.device)
        calibrate_speaker(
            self.trained.model, self.step_loss.clip_audio(clips, shape[plan.bucket].clip_samples)
        )

    def _optimizer(self) -> torch.optim.AdamW:
        decayed, others = [], []
        for name, p in self.trained.named_parameters():
            (decayed if p.ndim > 1 and "embedding" not in name else others).append(p)
        groups = [
            {"params": decayed, "weight_decay": self.options.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        cuda = self.device.startswith("cuda")
        lr: Any = self.lr if cuda else self.options.lr
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True, capturable=cuda)
        # The fused step divides gradients by the one and does nothing where the other is 1.
        optimizer.grad_scale, optimizer.found_inf = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
        return optimizer

    def _static_inputs(self, shape: Shape) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sizes = (shape.items * ITEM_COLUMNS, shape.clips * 4, shape.picks)
        packed = torch.zeros(sum(sizes), dtype=torch.int64, device=self.device)
        items, clips, picks = packed.split(sizes)
        return packed, items.view(-1, ITEM_COLUMNS), clips.view(-1, 4), picks

    def _whole_step(self, bucket: int) -> None:
        _, items, clips, picks = self.inputs[bucket]
        with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled="cuda" in self.device):
            loss = self.step_loss(self.planner.shapes[bucket], items, clips, picks, self.totals)
        loss.backward()
        freeze_constant(self.trained.model)
        grads = [p.grad for p in self.params if p.grad is not None]
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        self.grad_scale.copy_((norm / CLIP_NORM).clamp(min=1.0).nan_to_num(1.0, 1.0, 1.0))
        self.found_inf.copy_((~norm.isfinite()).float())
        self.totals[FIGURES.index("grad_norm")] += norm.nan_to_num(0.0, 0.0, 0.0)
        self.totals[FIGURES.index("skipped")] += self.found_inf
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _fill(self, plan: Plan, host: Tensor | None = None) -> None:
        arrays = (plan.items.ravel(), plan.clips.ravel(), plan.picks)
        flat = torch.from_numpy(np.concatenate(arrays))
        if host is None:
            self.inputs[plan.bucket][0].copy_(flat)
        else:
            host[: len(flat)].copy_(flat)
            self.inputs[plan.bucket][0].copy_(host[: len(flat)], non_blocking=True)

    def capture(self) -> None:
        """Warms up each shape with real steps at a tiny learning rate, then records it."""
        self.lr.fill_(1e-6)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        plans = self._one_plan_each()
        with torch.cuda.stream(side):
            for plan in plans:
                self._fill(plan)
                for _ in range(3):
                    self._whole_step(plan.bucket)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        pool = None
        for plan in plans:
            self._fill(plan)
            graph = torch.cuda.CUDAGraph()
            # Nothing outlives a step, and steps follow one another: all shapes may share their memory.
            with torch.cuda.graph(graph, pool=pool):
                self._whole_step(plan.bucket)
            self.graphs[plan.bucket], pool = graph, graph.pool()
        torch.cuda.synchronize()
        self.totals.zero_()

    def _one_plan_each(self) -> list[Plan]:
        found: dict[int, Plan] = {}
        for _ in range(1000):
            plan = self.planner.next()
            found.setdefault(plan.bucket, plan)
            if len(found) == len(self.planner.shapes):
                break
        return list(found.values())

    def run(self) -> int:
        """Trains; whatever goes wrong, what has been learnt is saved."""
        try:
            return self.train()
        except BaseException:
            save_talker(self.trained.model, self.options.out, self.step, self.log)
            raise
        finally:
            self.stop = True

    def train(self) -> int:
        o = self.options
        cuda = "cuda" in self.device
        if cuda and not o.eager:
            try:
                self.capture()
            except RuntimeError as error:
                log.exception("no CUDA graphs: training goes on without")
                self._say("eager", error=str(error)[:300])
                self.graphs = [None] * len(self.graphs)
                self.optimizer.zero_grad(set_to_none=True)
                self.totals.zero_()
        self._say("start", **self._summary())
        plans: queue.Queue[Plan] = queue.Queue(maxsize=16)
        threading.Thread(target=self._plan_ahead, args=(plans,), daemon=True).start()
        largest = max(len(inputs[0]) for inputs in self.inputs)
        host = [torch.zeros(largest, dtype=torch.int64) for _ in range(STEPS_IN_FLIGHT)]
        if cuda:
            host = [buffer.pin_memory() for buffer in host]
        done: list[Any] = [None] * STEPS_IN_FLIGHT
        start = time.monotonic()
        end = self.began + o.seconds - 5.0  # the rest is for saving
        reported = validated = saved = start
        steps_at_report = 0
        while not self.stop and self.step < o.max_steps:
            now = time.monotonic()
            if now >= end:
                break
            slot = self.step % STEPS_IN_FLIGHT
            if done[slot] is not None:
                done[slot].synchronize()
            progress = max((now - start) / max(end - start, 1e-9), self.step / o.max_steps)
            self._set_lr(min(1.0, progress))
            plan = plans.get(timeout=60)
            self._fill(plan, host[slot])
            graph = self.graphs[plan.bucket]
            if graph is not None:
                graph.replay()
            else:
                self.trained.train()
                self._whole_step(plan.bucket)
            if cuda:
                done[slot] = torch.cuda.Event()
                done[slot].record()
            self.step += 1
            if now - reported >= REPORT_S or (self.step in (1, 20, 100)):
                figures = averages(self.totals)
                self.totals.zero_()
                took = time.monotonic() - reported
                rate = (self.step - steps_at_report) / max(took, 1e-9)
                reported, steps_at_report = time.monotonic(), self.step
                if not self._keep_healthy(figures):
                    continue
                validate = {}
                if now - validated >= VALIDATE_S:
                    validate, validated = self.validate(), now
                self._say("train", steps_a_second=round(rate, 2), **_round(figures | validate))
                if self._broken(figures, now - start):
                    save_talker(self.trained.model, o.out, self.step, self.log)
                    self._say("given up", group_0=figures["group_0"], unigram=self.corpus.unigram_nats)
                    return GIVEN_UP
            if now - saved >= SAVE_S:
                saved = now
                self._say("saved", bytes=save_talker(self.trained.model, o.out, self.step, self.log))
        final = self.validate()
        size = save_talker(self.trained.model, o.out, self.step, self.log)
        self._say("done", bytes=size, **_round(final))
        return 0

    def _plan_ahead(self, plans: "queue.Queue[Plan]") -> None:
        while not self.stop:
            plan = self.planner.next()
            while not self.stop:
                try:
                    plans.put(plan, timeout=1)
                    break
                except queue.Full:
                    continue

    def _set_lr(self, progress: float) -> None:
        """Warm-up by steps, then a cosine over the wall time, or the steps allowed, to 2 % of the peak."""
        warm = min(1.0, (self.step + 1) / self.options.warm_up)
        rate = self.options.lr * self.lr_factor * warm
        rate *= 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress))
        self.lr_now = rate
        if "cuda" in self.device:
            self.lr.fill_(rate)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def _keep_healthy(self, figures: dict[str, float]) -> bool:
        """Keeps a copy of the state while steps are taken; where they are not, goes back at a lower rate."""
        state = [*self.params]
        for p in self.params:
            entry = self.optimizer.state.get(p, {})
            state += [entry[k] for k in ("exp_avg", "exp_avg_sq") if k in entry]
        fine = math.isfinite(figures["loss"]) and figures["skipped"] < 0.2
        with torch.no_grad():
            if fine:
                if len(self.healthy) != len(state):
                    self.healthy = [t.detach().clone() for t in state]
                else:
                    torch._foreach_copy_(self.healthy, [t.detach() for t in state])
            elif len(self.healthy) == len(state):
                torch._foreach_copy_([t.detach() for t in state], self.healthy)
                self.lr_factor *= 0.5
                self._say("restored", lr_factor=self.lr_factor, loss=str(figures["loss"]))
        return fine

    def _broken(self, figures: dict[str, float], seconds: float) -> bool:
        judged = JUDGE_AT_S <= seconds < JUDGE_AT_S + 2 * REPORT_S
        return judged and figures["group_0"] > self.corpus.unigram_nats - BROKEN_MARGIN_NATS

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Figures on utterances never trained on, without noise or dropout."""
        if not self.validation:
            return {}
        totals = torch.zeros(len(FIGURES), device=self.device)
        self.trained.eval()
        for plan in self.validation:
            tensors = (torch.from_numpy(a).to(self.device) for a in (plan.items, plan.clips, plan.picks))
            with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled="cuda" in self.device):
                self.step_loss(self.validation_shape, *tensors, totals)
        self.trained.train()
        figures = averages(totals)
        names = ("group_0", "groups", "end", "phones", "group_0_hits", "phone_hits", "end_hits", "voice_hits")
        return {f"held_{name}": figures[name] for name in names}

    def _summary(self) -> dict[str, Any]:
        model = self.trained.model
        return {
            "setup_s": round(time.monotonic() - self.began, 1),
            "parameters": sum(p.numel() for p in model.parameters()),
            "sizes": str(model.sizes),
            "utterances": len(self.corpus.utterances.voice),
            "hours": round(float(self.corpus.utterances.samples.sum()) / 24_000 / 3600, 2),
            "voices": len(self.corpus.voices),
            "unigram_nats": round(self.corpus.unigram_nats, 3),
            "shapes": [str(shape) for shape in self.planner.shapes],
            "gib": round(torch.cuda.max_memory_allocated() / 2**30, 1) if "cuda" in self.device else 0,
        }

    def _say(self, event: str, **figures: Any) -> None:
        seconds = round(time.monotonic() - self.began, 1)
        line = {"event": event, "s": seconds, "step": self.step, **figures}
        if event == "train":
            line["lr"] = float(f"{self.lr_now:.3g}")
        self.log.append(line)
        text = json.dumps(line)
        print(text, flush=True)
        self.options.out.mkdir(parents=True, exist_ok=True)
        with (self.options.out / "talker_log.jsonl").open("a") as file:
            file.write(text + "\n")


def _round(figures: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trainer = Trainer(parse())

    def stop(*_: object) -> None:
        trainer.stop = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return trainer.run()


if __name__ == "__main__":
    sys.exit(main())
