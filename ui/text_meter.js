// Counts characters and estimates the duration in the browser; Ctrl+Enter in the text box speaks.
// Body of TextMeter's js_on_load; the component's value is the text.

const line = element.querySelector("output");

function draw() {
  const count = Array.from((props.value ?? "").trim()).length;
  const parts = [props.max_chars ? `${count} / ${props.max_chars} characters` : `${count} characters`];
  if (count) parts.push(`about ${Math.max(1, Math.round(count / props.chars_per_s))} s of speech`);
  line.textContent = parts.join(" · ");
  line.dataset.over = Boolean(props.max_chars) && count > props.max_chars;
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  if (!event.target.closest(props.text_selector)) return;
  event.preventDefault();
  document.querySelector(props.speak_selector).click();
});

watch(["value", "max_chars", "chars_per_s"], draw);
draw();
