// How each head's measures moved while the model was trained: one small chart a layer, one line a head.
import { el, svgEl, formatNumber } from "./dom.js";
import { headTitle, segmented } from "./chooser.js";
import { plotAxis, plotAxisY, plotBox, plotLine, plotRange, plotTicks } from "./plot.js";
import { DRIFT_WORDS } from "./words-panels.js";

const DRIFT_HEIGHT = 150;
let driftMeasure = null; // outlives a change of language

export const driftView = {
  id: "drift", perHead: false, words: DRIFT_WORDS,
  available: (doc) => Boolean(doc.drift?.steps?.length && doc.drift.measures.some((name) => doc.has("drift." + name))),
  mount(root, doc, state, t) {
    const measures = doc.drift.measures.filter((name) => doc.has("drift." + name)), charts = el("div", { class: "drift-charts" });
    const readout = el("output", { class: "plot-readout" }), about = el("p", { class: "plot-about" });
    if (!measures.includes(driftMeasure)) driftMeasure = measures[0];
    const draw = async () => {
      const tensor = await doc.load("drift." + driftMeasure);
      about.textContent = driftWord(t, driftMeasure + ".about", "");
      driftDraw(charts, doc, state, t, tensor, readout);
    };
    root.append(el("div", { class: "drift-top" }, segmented("drift-measure", t("drift.measure"), measures.map((name) => [name, driftWord(t, name, name)]),
      driftMeasure, (name) => { driftMeasure = name; draw(); }), readout), about, charts);
    state.subscribe((now, changed) => { if (changed.has("layer") || changed.has("head")) driftChoose(charts, readout, now); });
    draw();
  },
};

function driftWord(t, name, otherwise) {
  const key = name.startsWith("drift.") ? name : "drift." + name, word = t(key);
  return word === key ? otherwise : word;
}

// The numbers of one head over the steps, from a tensor steps x layers x heads; NaN where a layer has fewer heads.
export function driftSeries({ data, shape: [steps, layers, heads] }, layer, head) {
  return Array.from({ length: steps }, (_, step) => data[(step * layers + layer) * heads + head]);
}

function driftDraw(root, doc, state, t, tensor, readout) {
  const { steps } = doc.drift, series = doc.layers.map(({ heads }, layer) => Array.from({ length: heads }, (_, head) => driftSeries(tensor, layer, head)));
  const range = plotRange(series.flat(2)) ?? [0, 1];
  root.say = ({ layer, head }, step = steps.length - 1) => {
    readout.textContent = t("drift.at", { head: headTitle(doc, { layer, head }, t), step: steps[step], value: formatNumber(series[layer][head][step]) });
  };
  root.replaceChildren(...doc.layers.map((layer, l) => {
    const box = plotBox((width) => driftChart(width, l, series[l], steps, range, state, root.say, () => root.say(state.get())),
      { class: "plot-box drift-box" });
    return el("section", { class: "plot-panel", "data-layer": l }, el("h3", {}, layer.label), box);
  }));
  driftChoose(root, readout, state.get());
}

function driftChart(width, layer, series, steps, range, state, say, rest) {
  const left = 40, right = width - 8, bottom = DRIFT_HEIGHT - 18, now = state.get();
  const x = plotLine(steps.length > 1 ? [steps[0], steps.at(-1)] : [steps[0] - 1, steps[0] + 1], left, right), y = plotLine(range, bottom, 6);
  const svg = svgEl("svg", { width, height: DRIFT_HEIGHT, role: "img" }, plotAxisY(y, plotTicks(...range, 4), left, right),
    svgEl("line", { class: "drift-base", x1: left, x2: right, y1: bottom, y2: bottom }),
    plotAxis(x, plotTicks(steps[0], steps.at(-1), Math.max(2, Math.floor(width / 70))), bottom, bottom,
      (step) => (step >= 1000 ? step / 1000 + "k" : String(step))));
  series.forEach((numbers, head) => {
    const points = numbers.map((number, i) => (Number.isFinite(number) ? `${x(steps[i]).toFixed(1)} ${y(number).toFixed(1)}` : null)).filter(Boolean);
    svg.append(svgEl("polyline", { class: "drift-line" + (layer === now.layer && head === now.head ? " drift-chosen" : ""), "data-head": `${layer}.${head}`,
      points: points.join(" ") }));
  });
  const chosen = svg.querySelector(".drift-chosen");
  if (chosen) svg.append(chosen); // last is on top
  // The head whose line is nearest at the step under the pointer.
  const found = (event) => {
    const box = svg.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const step = steps.reduce((best, value, i) => (Math.abs(x(value) - px) < Math.abs(x(steps[best]) - px) ? i : best), 0);
    const far = (numbers) => (Number.isFinite(numbers[step]) ? Math.abs(y(numbers[step]) - py) : Infinity);
    return { step, head: series.reduce((best, numbers, head) => (far(numbers) < far(series[best]) ? head : best), 0) };
  };
  svg.addEventListener("pointermove", (event) => { const { step, head } = found(event); say({ layer, head }, step); });
  svg.addEventListener("pointerleave", rest);
  svg.addEventListener("click", (event) => state.set({ layer, head: found(event).head }));
  return svg;
}

function driftChoose(root, readout, now) {
  for (const line of root.querySelectorAll(".drift-line")) {
    const chosen = line.dataset.head === `${now.layer}.${now.head}`;
    line.classList.toggle("drift-chosen", chosen);
    if (chosen) line.parentNode.append(line);
  }
  root.say?.(now);
}
