// Body of EngineChip's js_on_load; the component's value is {phase, text}.

const chip = element.querySelector(".chip");
const text = element.querySelector(".text");

function draw() {
  if (!props.value) return;
  chip.dataset.phase = props.value.phase;
  // Screen readers announce every change of a live region, so make none without need.
  if (text.textContent !== props.value.text) text.textContent = props.value.text;
}

watch("value", draw);
draw();
