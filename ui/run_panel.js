// Shows how a run is going: what the server says (the component's value) merged with what the
// player hears (its "speech" events). Body of RunPanel's js_on_load.

const root = element.firstElementChild;
const find = (name) => root.querySelector(`[data-field="${name}"]`);
const seconds = (s, digits = 1) => `${s.toFixed(digits)} s`;
const milliseconds = (ms) => (ms == null ? "–" : ms < 10_000 ? `${Math.round(ms)} ms` : seconds(ms / 1000));

let run = {}; // the server's figures
let heard = {}; // the player's figures
let ticker = null;

const ENDED = ["finished", "stopped", "failed"];

function statusText() {
  if (heard.state === "failed" && !ENDED.includes(run.state)) return "The run ended in an error.";
  if (run.state === "failed") return run.message;
  if (heard.state === "stopped" || run.state === "stopped") return "Stopped";
  if (run.state === "queued" && run.ahead) return `Waiting: ${run.ahead} ahead of you`;
  if (heard.state === "buffering") return "Catching up";
  if (heard.state === "playing") return "Speaking";
  if (run.state === "finished") return heard.state === "waiting" ? "Ready to play" : "Done";
  if (heard.state === "waiting") return run.chunks ? "Buffering" : "Generating";
  return props.idle_text;
}

function draw() {
  const status = statusText();
  // Screen readers announce this line, so touch it only when it says something new.
  if (find("status").textContent !== status) find("status").textContent = status;
  root.dataset.state = run.state === "failed" || heard.state === "failed" ? "failed" : heard.state || run.state || "idle";
  find("note").textContent = run.state === "failed" ? "" : [run.message, lostNote()].filter(Boolean).join(" ");
  find("audible").textContent = milliseconds(heard.audibleMs);
  find("ttfa").textContent = milliseconds(run.ttfa_s == null ? null : 1000 * run.ttfa_s);
  find("rtf").textContent = run.rtf_text || "–";
  find("audio").textContent = run.audio_s ? seconds(run.audio_s, 2) : "–";
  find("chunks").textContent = run.chunks || "–";
  find("underruns").textContent = underrunText();
  find("mode").textContent = run.mode || "–";
  find("queue").textContent = run.queue_s ? seconds(run.queue_s) : "–";
  find("queue").closest(".card").hidden = !(run.queue_s >= 0.05);
  find("seed").textContent = run.seed ?? "–";
  find("reuse").hidden = run.seed == null || !ENDED.includes(run.state);
  drawElapsed();
}

function underrunText() {
  if (heard.underruns == null) return "–";
  return heard.missedMs ? `${heard.underruns} (${heard.missedMs} ms)` : String(heard.underruns);
}

function lostNote() {
  return heard.lost ? "Some audio was lost on its way to the browser; the finished clip is complete." : "";
}

function drawElapsed() {
  const ended = ENDED.includes(run.state);
  const elapsed = ended && run.total_s ? run.total_s : heard.clickedAt ? (Date.now() - heard.clickedAt) / 1000 : 0;
  find("elapsed").textContent = elapsed ? seconds(elapsed) : "";
}

function tick(on) {
  if (on && !ticker) ticker = setInterval(drawElapsed, 100);
  if (!on) {
    clearInterval(ticker);
    ticker = null;
  }
}

document.addEventListener("speech", ({ detail }) => {
  if (detail.state === "waiting") {
    run = {};
    heard = {};
    tick(true);
  }
  if (detail.state === "failed" || detail.state === "stopped") tick(false);
  heard = { ...heard, ...detail };
  draw();
});

watch("value", () => {
  const value = props.value;
  if (!value || value.run_id !== heard.runId) return;
  run = value;
  if (ENDED.includes(run.state)) tick(false);
  draw();
});

find("reuse").addEventListener("click", () => trigger("reuse_seed", { seed: run.seed }));
draw();
