// Records what each AudioContext of the page really renders: every node that is connected to a
// destination is also connected to a recorder. Samples are kept with the context's frame numbers.

(() => {
  const tap = (window.audioTap = { quanta: [] });
  const { connect } = AudioNode.prototype;

  if (window.isSecureContext) recordInWorklet();
  else recordInScriptProcessor();

  function recordInWorklet() {
    const RECORDER = `
      registerProcessor("recorder", class extends AudioWorkletProcessor {
        process([input]) {
          const samples = input[0] ? input[0].slice() : new Float32Array(128);
          this.port.postMessage({ frame: currentFrame, wall: Date.now(), samples });
          return true;
        }
      });`;
    const moduleUrl = URL.createObjectURL(new Blob([RECORDER], { type: "text/javascript" }));
    const loaded = new WeakMap();
    const worklet = Object.getOwnPropertyDescriptor(BaseAudioContext.prototype, "audioWorklet").get;
    const { addModule } = Worklet.prototype;
    const load = (audioWorklet) => {
      if (!loaded.has(audioWorklet)) loaded.set(audioWorklet, addModule.call(audioWorklet, moduleUrl));
      return loaded.get(audioWorklet);
    };
    // The recorder is ready before any module of the page's own.
    Worklet.prototype.addModule = async function (...args) {
      await load(this);
      return addModule.apply(this, args);
    };
    AudioNode.prototype.connect = function (target, ...rest) {
      if (target instanceof AudioDestinationNode) {
        load(worklet.call(this.context)).then(() => {
          const recorder = new AudioWorkletNode(this.context, "recorder");
          recorder.port.onmessage = ({ data }) => tap.quanta.push(data);
          connect.call(this, recorder);
          connect.call(recorder, target); // silent, but only connected nodes are run
        });
      }
      return connect.call(this, target, ...rest);
    };
  }

  function recordInScriptProcessor() {
    AudioNode.prototype.connect = function (target, ...rest) {
      if (target instanceof AudioDestinationNode) {
        const recorder = this.context.createScriptProcessor(1024, 1, 1);
        let frame = 0;
        recorder.onaudioprocess = ({ inputBuffer }) => {
          tap.quanta.push({ frame, wall: Date.now(), samples: inputBuffer.getChannelData(0).slice() });
          frame += 1024;
        };
        connect.call(this, recorder);
        connect.call(recorder, target);
      }
      return connect.call(this, target, ...rest);
    };
  }

  tap.reset = () => (tap.quanta = []);
  tap.audible = () => tap.quanta.some(({ samples }) => samples.some((sample) => sample !== 0));
  tap.firstSoundAt = () => tap.quanta.find(({ samples }) => samples.some((sample) => sample !== 0))?.wall;
  tap.lastSoundAt = () => tap.quanta.findLast(({ samples }) => samples.some((sample) => sample !== 0))?.wall;
  // Base64 of float32, from the first to the last quantum, silence where none was recorded.
  tap.dump = () => {
    if (!tap.quanta.length) return "";
    const start = tap.quanta[0].frame;
    const all = new Float32Array(tap.quanta.at(-1).frame + tap.quanta.at(-1).samples.length - start);
    for (const { frame, samples } of tap.quanta) all.set(samples, frame - start);
    const bytes = new Uint8Array(all.buffer);
    let text = "";
    for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
    return btoa(text);
  };
})();
