// The audio thread's end of the player: a FIFO of int16 chunks, played without gaps.
//
// Messages in carry the token of the run they belong to; those of any other run are dropped, so a
// stopped run's late audio cannot be heard. Messages out: started, underrun, resumed, progress, done.

const PROGRESS_EVERY = 24; // render quanta of 128 samples: 128 ms at 24 kHz

class PcmFifo extends AudioWorkletProcessor {
  constructor() {
    super();
    this.reset(null);
    this.port.onmessage = ({ data }) => {
      if (data.op === "begin") this.reset(data.run);
      else if (data.run === this.run) this[data.op](data);
    };
  }

  reset(run) {
    this.run = run;
    this.chunks = [];
    this.offset = 0; // into chunks[0]
    this.available = 0;
    this.playing = false;
    this.startFrame = Infinity;
    this.ended = false;
    this.played = 0;
    this.underruns = 0;
    this.missed = 0; // samples of silence in underruns
    this.dryFor = 0; // samples of silence since playback ran out
    this.quanta = 0;
  }

  halt() {
    this.reset(null);
  }

  push({ pcm, hold }) {
    this.chunks.push(pcm);
    this.available += pcm.length;
    // What is missing from `hold` may arrive or be waited for; either keeps playback ahead.
    if (!this.playing) this.startFrame = currentFrame + Math.max(0, hold - this.available);
  }

  end() {
    this.ended = true;
  }

  tell(event) {
    const { run, played, underruns, missed } = this;
    this.port.postMessage({ event, run, played, underruns, missed, wall: Date.now() });
  }

  process(_inputs, [[out]]) {
    if (this.run === null) return true;
    if (!this.playing && this.mayStart()) this.start();
    const filled = this.playing ? this.fill(out) : 0;
    if (filled < out.length) this.ranDry(out.length - filled);
    else if (++this.quanta % PROGRESS_EVERY === 0) this.tell("progress");
    return true;
  }

  mayStart() {
    return this.available > 0 && (this.ended || currentFrame >= this.startFrame);
  }

  // An underrun counts once more audio follows it: running out just before the end is no gap.
  start() {
    this.playing = true;
    if (!this.played) return this.tell("started");
    this.underruns++;
    this.missed += this.dryFor;
    this.dryFor = 0;
    this.tell("resumed");
  }

  fill(out) {
    let at = 0;
    while (at < out.length && this.chunks.length) {
      const chunk = this.chunks[0];
      const count = Math.min(out.length - at, chunk.length - this.offset);
      for (let i = 0; i < count; i++) out[at + i] = chunk[this.offset + i] / 32768;
      at += count;
      this.offset += count;
      if (this.offset === chunk.length) {
        this.chunks.shift();
        this.offset = 0;
      }
    }
    this.available -= at;
    this.played += at;
    return at;
  }

  ranDry(silence) {
    if (this.ended && !this.available) {
      this.tell("done");
      this.reset(null);
      return;
    }
    if (this.playing) {
      this.playing = false;
      this.startFrame = Infinity;
      this.tell("underrun");
    }
    if (this.played) this.dryFor += silence;
  }
}

registerProcessor("pcm-fifo", PcmFifo);
