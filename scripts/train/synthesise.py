"""Makes training speech with one engine, over many processes, as a growing folder of shards.

    python -m scripts.train.synthesise hibari --out corpus --sentences sentences.txt.xz --minutes-of-audio 900
    python -m scripts.train.synthesise kokoro --out corpus --sentences sentences.txt.xz --styles voices.npz
    python -m scripts.train.synthesise kokoro ... --device cuda --processes 4

Every process writes shards ENGINE-SEED-PROCESS-K (corpus.py says what is in them) of --shard-s seconds of
work each; a shard appears under its name only when it is whole. Stops at the first of --minutes-of-audio
(of all processes together) and --time-limit-s, and on SIGTERM at the end of the utterance in hand.
"""

import argparse
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from scripts.train.corpus import SAMPLE_RATE_HZ, ShardWriter, UnusableSpeechError, Utterance, tidy
from scripts.train.engines import (
    BLEND_SHARE,
    ENGLISH_SHARE,
    PRESET_SHARE,
    Hibari,
    Kokoro,
    TextToSpeech,
    hibari_model,
    kokoro_model,
)
from scripts.train.kokoro_batches import BatchedKokoro
from scripts.train.texts import Texts

logger = logging.getLogger("synthesise")


def speeches(engine: TextToSpeech, texts: Texts, random: Random) -> Iterator[Utterance]:
    """Tidied utterances without end."""
    for speech in engine.speak_all(texts, random):
        try:
            yield tidy(speech, head_ms=random.uniform(60, 120), tail_ms=random.uniform(60, 120))
        except UnusableSpeechError as error:
            logger.debug("%s: %s", error, speech.text)


def work(args: argparse.Namespace, process: int) -> None:
    """One process: speak until the time, the share of audio or a SIGTERM ends it."""
    stop = False

    def ask_to_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    seed = args.seed * 1000 + process
    texts, random = Texts(seed, args.sentences), Random(seed)
    engine: TextToSpeech
    if args.engine == "hibari":
        engine = Hibari(args.cache, args.plain_share, args.speeds)
    elif args.device == "cpu":
        engine = Kokoro(args.cache, args.styles, args.shares)
    else:
        engine = BatchedKokoro(args.cache, args.styles, args.shares, args.device, args.batch)
    started, wanted = time.monotonic(), args.minutes_of_audio * 60 * SAMPLE_RATE_HZ / args.processes
    made, shard = 0, 0
    utterances = speeches(engine, texts, random)
    while not stop:
        writer = ShardWriter(args.out, f"{args.engine}-{args.seed}-{process}-{shard:04d}")
        shard_started = time.monotonic()
        while not stop and time.monotonic() - shard_started < args.shard_s:
            writer.add(next(utterances))
            stop = stop or made + writer.n_samples >= wanted or time.time() >= args.ends_at
        writer.close()
        made += writer.n_samples
        shard += 1
    logger.info(
        "process %d: %.1f min of speech in %.0f s (%.0f s of CPU)",
        process, made / SAMPLE_RATE_HZ / 60, time.monotonic() - started, time.process_time(),
    )  # fmt: skip


def main() -> None:
    started = time.time()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=("hibari", "kokoro"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sentences", type=Path, required=True, help="the pool made by sentence_pool.py")
    parser.add_argument("--styles", type=Path, help="Kokoro's style tables, made by styles.py")
    parser.add_argument(
        "--cache", type=Path, default=Path("/tmp/speech_engines"), help="for the changed graphs"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes-of-audio", type=float, default=float("inf"))
    parser.add_argument("--time-limit-s", type=float, default=float("inf"))
    parser.add_argument("--shard-s", type=float, default=60.0, help="seconds of work in a shard")
    parser.add_argument("--plain-share", type=float, default=0.6, help="hibari: share that is not resampled")
    parser.add_argument(
        "--speeds", type=float, nargs=2, default=(0.9, 1.15), help="hibari: range of speaking rates"
    )
    parser.add_argument(
        "--shares",
        type=float,
        nargs=3,
        default=(PRESET_SHARE, ENGLISH_SHARE, BLEND_SHARE),
        help="kokoro: of presets, other English voices and blends; accents get the rest",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="kokoro: cuda runs batches in PyTorch, torch:cpu does so without a GPU",
    )
    parser.add_argument("--batch", type=int, default=64, help="kokoro on a GPU: utterances at once")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    args.ends_at = started + args.time_limit_s
    args.cache.mkdir(parents=True, exist_ok=True)
    (hibari_model if args.engine == "hibari" else kokoro_model)(args.cache)
    workers = [multiprocessing.Process(target=work, args=(args, i)) for i in range(args.processes)]
    for worker in workers:
        worker.start()

    def pass_on(*_: object) -> None:
        for worker in workers:
            worker.terminate()

    signal.signal(signal.SIGTERM, pass_on)
    for worker in workers:
        worker.join()
    if failed := sum(worker.exitcode != 0 for worker in workers):
        raise SystemExit(f"{failed} of {len(workers)} processes failed")


if __name__ == "__main__":
    main()
