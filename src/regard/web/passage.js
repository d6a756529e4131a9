// A text as spans, one a token, each with its colour. Of a long text a window is written, and a strip shows the whole.
import { el, tokenLabel, sharpContext } from "./dom.js";
import { colour, isPale, strength, colourTable } from "./scales.js";

const PASSAGE = 1200;
const axisLetters = new WeakMap();

// Offsets count code points, but a string of JavaScript is cut by UTF-16 units: a text is taken apart once, and kept.
function lettersOf(axis) {
  if (!axisLetters.has(axis)) axisLetters.set(axis, Array.from(axis.text ?? ""));
  return axisLetters.get(axis);
}

// look: {values or null, top, theme, label, t, chosen or null, near, choose(place) or null}
export function drawText(axis, look) {
  const count = axis.tokens.length, box = el("div", { class: "passage-box" });
  let from = count <= PASSAGE ? 0 : Math.max(0, Math.min(count - PASSAGE, (look.near ?? 0) - PASSAGE / 2));
  const write = () => passage(axis, from, Math.min(count, from + PASSAGE), look);
  const body = el("div", { class: "passage-body" }, write());
  if (count > PASSAGE) {
    box.append(wholeStrip(axis, look, (place) => {
      from = Math.max(0, Math.min(count - PASSAGE, place - PASSAGE / 2));
      body.replaceChildren(write());
      body.scrollTop = 0;
    }));
    body.classList.add("passage-long");
  }
  box.append(body);
  return box;
}

function passage(axis, from, to, look) {
  const out = el("p", { class: "passage", role: look.choose ? "listbox" : null, "aria-label": look.label });
  // Without a text of its own an axis is written as its tokens.
  const letters = lettersOf(axis), cut = (start, stop) => letters.slice(start, stop).join("");
  let end = from > 0 ? axis.offsets[from][0] : 0;
  for (let i = from; i < to; i++) {
    const [from, stop] = axis.offsets[i] ?? [0, 0], word = cut(Math.max(from, end), stop).trimStart();
    // A token that is nothing but a sign for a space owns no letters, whatever its span says.
    const inText = word !== "" && !/^[\u0120\u2581\s]+$/.test(axis.tokens[i]), start = stop - Array.from(word).length;
    if (inText && start > end) out.append(cut(end, start));
    out.append(tokenSpan(axis, i, inText ? word : tokenLabel(axis.tokens[i]), inText, look));
    if (!inText) out.append(" ");
    else end = stop;
  }
  if (!look.choose) return out;
  const place = (event) => event.target.closest("[data-place]");
  out.addEventListener("click", (event) => { const token = place(event); if (token) look.choose(Number(token.dataset.place)); });
  out.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !place(event)) return;
    event.preventDefault();
    look.choose(Math.max(0, Math.min(axis.tokens.length - 1, Number(place(event).dataset.place) + step)));
  });
  return out;
}

function tokenSpan(axis, i, text, inText, { values, top, theme, chosen, choose }) {
  const span = el("span", { class: inText ? "passage-token" : "passage-token passage-mark" }, text);
  if (values) {
    const share = strength(values[i], top);
    span.style.background = colour(share, theme);
    span.style.color = isPale(share, theme) ? "#141a22" : "#f4f6f8";
    span.title = `${tokenLabel(axis.tokens[i])}: ${Number(values[i].toPrecision(4))}`;
  }
  if (!choose) return span;
  span.dataset.place = i;
  span.setAttribute("role", "option");
  span.setAttribute("aria-selected", i === chosen);
  span.tabIndex = i === chosen ? 0 : -1;
  if (i === chosen) span.setAttribute("aria-current", "true");
  return span;
}

// The whole text in one line of pixels, each as strong as its strongest token; a click goes there.
function wholeStrip(axis, { values, top, theme, t }, go) {
  const canvas = el("canvas", { class: "passage-strip", "aria-label": t("text.whole"), role: "slider", tabindex: 0, "aria-valuemin": 1,
    "aria-valuemax": axis.tokens.length, "aria-valuenow": 1 });
  const count = axis.tokens.length;
  let at = 0;
  const move = (place) => { at = Math.max(0, Math.min(count - 1, place)); canvas.setAttribute("aria-valuenow", at + 1); go(at); };
  canvas.addEventListener("click", (event) => move(Math.floor((event.offsetX / canvas.clientWidth) * count)));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -PASSAGE / 2, ArrowRight: PASSAGE / 2 }[event.key];
    if (step) { event.preventDefault(); move(at + step); }
  });
  new ResizeObserver(() => {
    const width = canvas.parentElement?.clientWidth;
    if (!width) return;
    const context = sharpContext(canvas, width, 26), image = document.createElement("canvas"), inside = image.getContext("2d");
    image.width = width;
    image.height = 1;
    const line = inside.createImageData(width, 1), pixels = new Uint32Array(line.data.buffer), table = colourTable(theme);
    for (let x = 0; x < width; x++) {
      let most = 0;
      for (let i = Math.floor((x * count) / width); i < ((x + 1) * count) / width; i++) if (values && values[i] > most) most = values[i];
      pixels[x] = table[Math.round(strength(most, top) * 255)];
    }
    inside.putImageData(line, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, width, 26);
  }).observe(canvas);
  return canvas;
}
