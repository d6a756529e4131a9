// The line above every view of one head: which layer and head, what kind it is, its sink, and what is shown of it.
import { el, formatNumber, formatShare } from "./dom.js";

export function kindChips(doc, layer, head, t) {
  return (doc.heads?.[layer]?.[head]?.kinds ?? []).map((kind) => el("span", { class: "chip", "data-kind": kind }, kindWord(kind, t)));
}

export function kindWord(kind, t) {
  const word = t("kind." + kind);
  return word === "kind." + kind ? kind : word;
}

export function headTitle(doc, now, t) { return t("headName", { layer: doc.layers[now.layer].label, head: now.head + 1 }); }

export function segmented(name, label, options, chosen, choose) {
  return el("div", { class: "segmented", role: "radiogroup", "aria-label": label }, options.map(([value, word, why]) =>
    el("label", { title: why }, el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }), el("span", {}, word))));
}

// The next or the previous head, over the border of a layer too.
export function stepHead(state, { layers }, step) {
  const { layer, head } = state.get();
  if (head + step >= 0 && head + step < layers[layer].heads) state.set({ head: head + step });
  else if (layers[layer + step]) state.set({ layer: layer + step, head: step > 0 ? 0 : layers[layer + step].heads - 1 });
}

export function chooser(root, doc, state, t) {
  const layerBox = el("select", { "aria-label": t("layer"), id: "choose-layer", onchange: () => state.set({ layer: Number(layerBox.value) }) },
    doc.layers.map((layer, i) => el("option", { value: i }, layer.label)));
  const headBox = el("select", { "aria-label": t("headWord"), id: "choose-head", onchange: () => state.set({ head: Number(headBox.value) }) });
  const step = (by, label, sign) => el("button", { type: "button", "aria-label": t(label), title: t(label),
    onclick: () => stepHead(state, doc, by) }, sign);
  const facts = el("div", { class: "facts" }), shownValues = el("div");
  root.append(el("div", { class: "choose" }, layerBox, el("span", { class: "stepper" }, step(-1, "previousHead", "‹"), headBox, step(1, "nextHead", "›"))),
    facts, shownValues);

  function draw(now) {
    layerBox.value = now.layer;
    const count = doc.layers[now.layer].heads;
    if (headBox.length !== count) headBox.replaceChildren(...Array.from({ length: count },
      (_, i) => el("option", { value: i }, t("headWord") + " " + (i + 1))));
    headBox.value = now.head;
    const sink = doc.sinkShare(now.layer, now.head), importance = doc.heads?.[now.layer]?.[now.head]?.importance;
    facts.replaceChildren(...kindChips(doc, now.layer, now.head, t),
      el("span", { class: "fact", title: t("sinkLong") }, el("i", { class: "meter" }, el("b", { style: { width: 100 * Math.min(1, sink ?? 0) + "%" } })),
        el("strong", { id: "sink-share" }, formatShare(sink)), " " + t("sink")),
      importance === null || importance === undefined || count === 1 ? ""
        : el("span", { class: "fact", title: t("importanceLong") }, t("importance") + " ", el("strong", {}, formatNumber(importance))));
    // Not built anew when only the value changed: the keyboard's focus stands on it.
    const radio = shownValues.querySelector(`input[value="${now.values}"]`), weighable = doc.has(now.layer + ".norms");
    if (radio && weighable) radio.checked = true;
    else shownValues.replaceChildren(weighable
      ? segmented("values", t("values"), [["weighted", t("weighted"), t("weighted.why")], ["raw", t("raw"), t("raw.why")]], now.values,
        (values) => state.set({ values }))
      : el("span", { class: "fact" }, t("noNorms")));
    if (sink === null && doc.has(now.layer + ".first")) doc.load(now.layer + ".first").then(() => draw(state.get()));
  }
  state.subscribe((now, changed) => { if (["layer", "head", "values"].some((name) => changed.has(name))) draw(now); });
  draw(state.get());
}
