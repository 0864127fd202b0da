// Plays a run's chunks as they arrive. Body of SpeechPlayer's js_on_load, so `element`, `props`,
// `trigger` and `watch` are Gradio's. Each new `props.value` is one chunk:
//   {run_id, seq, pcm: base64 int16, sample_rate_hz, hold_s, end}
//
// What it hears and does is told to the page as bubbling "speech" events on `element`.

const player = {
  context: null,
  sink: null,
  volume: 1,
  opening: Promise.resolve(),
  runId: null, // the run whose chunks are wanted; null when none are
  nextSeq: 0,
  receivedS: 0,
  lost: 0,
  clickedAt: 0,
  audibleMs: null,

  // Called in the click's own task: browsers start audio only inside a user gesture.
  start() {
    this.unlock();
    silencePageAudio();
    this.runId = randomId();
    this.nextSeq = this.receivedS = this.lost = 0;
    this.clickedAt = Date.now();
    this.audibleMs = null;
    const runId = this.runId;
    this.whenOpen(() => this.sink.begin(runId));
    this.tell("waiting");
    return runId;
  },

  stop(state = "stopped") {
    const runId = this.runId;
    this.runId = null;
    this.sink?.halt();
    if (runId) this.tell(state, { runId });
    return runId ?? "";
  },

  unlock() {
    if (!this.context) this.open(props.sample_rate_hz);
    if (this.context.state !== "running") this.context.resume();
    // iOS: speech is the purpose of the page, so it sounds even with the ring switch off.
    if (navigator.audioSession) navigator.audioSession.type = "playback";
  },

  open(sampleRate) {
    this.context?.close();
    this.sink = null;
    const context = new AudioContext({ sampleRate, latencyHint: "interactive" });
    const output = new GainNode(context, { gain: this.volume });
    output.connect(context.destination);
    this.context = context;
    this.output = output;
    this.opening = makeSink(context, output, (message) => this.heard(message)).then((sink) => {
      if (this.context === context) this.sink = sink;
    });
  },

  // Keeps calls in order behind the loading of the worklet.
  whenOpen(action) {
    if (this.sink) action();
    else this.opening = this.opening.then(() => this.sink && action());
  },

  receive(chunk) {
    if (!this.runId || chunk?.run_id !== this.runId) return;
    if (chunk.seq !== this.nextSeq) this.lost += Math.abs(chunk.seq - this.nextSeq);
    this.nextSeq = chunk.seq + 1;
    const rate = chunk.sample_rate_hz;
    const run = this.runId;
    if (chunk.pcm) {
      if (rate !== this.context.sampleRate) {
        this.open(rate);
        this.whenOpen(() => this.sink.begin(run));
      }
      const pcm = decodePcm(chunk.pcm);
      this.receivedS += pcm.length / rate;
      this.whenOpen(() => this.sink.push(run, pcm, Math.round(chunk.hold_s * rate)));
    }
    if (chunk.end) this.whenOpen(() => this.sink.end(run));
  },

  heard({ event, run, wall, played, underruns, missed }) {
    if (run !== this.runId) return;
    const rate = this.context.sampleRate;
    const figures = { playedS: played / rate, underruns, missedMs: Math.round((1000 * missed) / rate) };
    if (event === "started") this.audibleMs = wall - this.clickedAt;
    const state = { started: "playing", resumed: "playing", progress: "playing", underrun: "buffering" };
    this.tell(state[event] ?? event, figures);
    if (event === "done") this.runId = null;
  },

  tell(state, detail = {}) {
    const { runId, audibleMs, receivedS, lost, clickedAt } = this;
    const figures = { state, runId, audibleMs, receivedS, lost, clickedAt, ...detail };
    element.dispatchEvent(new CustomEvent("speech", { bubbles: true, detail: figures }));
    if (state === "waiting") trigger("began");
    if (["done", "stopped", "failed"].includes(state)) trigger("silent");
    draw(figures);
  },
};

async function makeSink(context, output, notify) {
  // Absent outside secure contexts: plain http from another machine.
  if (context.audioWorklet) {
    try {
      return await WorkletSink.create(context, output, notify);
    } catch (error) {
      console.warn("speech player: no audio worklet, using buffer sources", error);
    }
  }
  return new ScheduledSink(context, output, notify);
}

class WorkletSink {
  static async create(context, output, notify) {
    const url = URL.createObjectURL(new Blob([props.worklet_source], { type: "text/javascript" }));
    await context.audioWorklet.addModule(url).finally(() => URL.revokeObjectURL(url));
    return new WorkletSink(context, output, notify);
  }

  constructor(context, output, notify) {
    this.node = new AudioWorkletNode(context, "pcm-fifo", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.port.onmessage = ({ data }) => notify(data);
    this.node.connect(output);
  }

  begin(run) {
    this.run = run;
    this.node.port.postMessage({ op: "begin", run });
  }

  push(run, pcm, hold) {
    this.node.port.postMessage({ op: "push", run, pcm, hold }, [pcm.buffer]);
  }

  end(run) {
    this.node.port.postMessage({ op: "end", run });
  }

  halt() {
    this.node.port.postMessage({ op: "halt", run: this.run });
  }
}

// The same FIFO on the main thread, as buffer sources placed back to back on sample boundaries.
class ScheduledSink {
  static LEAD_S = 0.02;

  constructor(context, output, notify) {
    Object.assign(this, { context, output, notify, sources: [] });
  }

  begin(run) {
    this.halt();
    Object.assign(this, { run, queue: [], queued: 0, playing: false, ended: false });
    Object.assign(this, { at: 0, placed: 0, underruns: 0, missed: 0, dryAt: null });
  }

  push(run, pcm, hold) {
    if (run !== this.run) return;
    this.queue.push(pcm);
    this.queued += pcm.length;
    if (this.playing && this.now() > this.at) this.ranDry();
    if (this.playing) return this.place();
    clearTimeout(this.timer);
    const missing = Math.max(0, hold - this.queued);
    this.timer = setTimeout(() => this.play(), (1000 * missing) / this.context.sampleRate);
  }

  end(run) {
    if (run !== this.run) return;
    this.ended = true;
    if (!this.playing && this.queued) this.play();
    else if (!this.sources.length) this.finish();
  }

  halt() {
    clearTimeout(this.timer);
    clearInterval(this.ticker);
    this.run = null;
    for (const source of this.sources) source.stop();
    this.sources = [];
  }

  now() {
    return Math.ceil(this.context.currentTime * this.context.sampleRate);
  }

  play() {
    clearTimeout(this.timer);
    this.playing = true;
    this.at = this.now() + Math.round(ScheduledSink.LEAD_S * this.context.sampleRate);
    if (this.placed) {
      this.underruns++;
      this.missed += this.at - this.dryAt;
    }
    this.tell(this.placed ? "resumed" : "started");
    this.place();
    clearInterval(this.ticker);
    this.ticker = setInterval(() => this.tell("progress"), 128);
  }

  place() {
    const { context } = this;
    for (const pcm of this.queue) {
      const buffer = new AudioBuffer({ length: pcm.length, sampleRate: context.sampleRate });
      buffer.copyToChannel(Float32Array.from(pcm, (sample) => sample / 32768), 0);
      const source = new AudioBufferSourceNode(context, { buffer });
      source.connect(this.output);
      source.start(this.at / context.sampleRate);
      source.onended = () => this.sourceEnded(source);
      this.sources.push(source);
      this.at += pcm.length;
      this.placed += pcm.length;
    }
    this.queue = [];
    this.queued = 0;
  }

  sourceEnded(source) {
    this.sources = this.sources.filter((other) => other !== source);
    if (this.run === null || this.sources.length || this.queue.length) return;
    if (this.ended) this.finish();
    else if (this.playing) this.ranDry();
  }

  ranDry() {
    this.playing = false;
    this.dryAt = this.at;
    clearInterval(this.ticker);
    this.tell("underrun");
  }

  finish() {
    this.tell("done");
    this.halt();
  }

  tell(event) {
    const { run, underruns, missed, placed } = this;
    const ahead = this.playing ? Math.max(0, this.at - this.now()) : 0;
    this.notify({ event, run, underruns, missed, played: Math.max(0, placed - ahead), wall: Date.now() });
  }
}

function decodePcm(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  return new Int16Array(bytes.buffer); // little-endian, as every browser's machine is
}

// randomUUID() exists only in secure contexts.
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
}

function silencePageAudio() {
  for (const media of document.querySelectorAll("audio")) media.pause();
}

const bar = element.querySelector(".bar span");
const time = element.querySelector(".time");
const volume = element.querySelector("input");

function draw({ state, playedS = 0, receivedS }) {
  element.firstElementChild.dataset.state = state;
  const share = state === "done" ? 1 : receivedS ? playedS / receivedS : 0;
  bar.style.width = `${(100 * Math.min(1, share)).toFixed(1)}%`;
  time.textContent = `${playedS.toFixed(1)} s`;
}

volume.addEventListener("input", () => {
  player.volume = Number(volume.value);
  if (player.output) player.output.gain.value = player.volume;
});

// A phone call or a background tab may suspend or interrupt the context mid-run. The first gesture
// also opens it ahead of the click on Speak, which saves that click the start-up time.
const revive = () => {
  if (player.context && player.context.state !== "running") player.context.resume();
};
document.addEventListener("visibilitychange", () => document.hidden || revive());
for (const gesture of ["pointerup", "keydown"]) {
  document.addEventListener(gesture, () => (player.context ? revive() : player.open(props.sample_rate_hz)), {
    capture: true,
  });
}

watch("value", () => player.receive(props.value));
(window.speechPlayers ??= {})[props.player_id] = player;
