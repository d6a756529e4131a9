// All layers and heads as small maps. Each is painted when it comes into sight, so a thousand heads open like ten.
import { el, formatShare } from "./dom.js";
import { headMap, mapImage, mapTensors } from "./maps.js";
import { kindWord } from "./chooser.js";

export const overviewView = {
  id: "overview",
  perHead: true,
  available: () => true,

  mount(root, doc, state, t) {
    const tiles = doc.layers.map((layer, l) => Array.from({ length: layer.heads }, (_, h) => headTile(doc, state, t, l, h)));
    // Importance compares the heads of a layer, so the bars of each layer have a scale of their own.
    tiles.forEach((heads, l) => {
      const largest = Math.max(...(doc.heads?.[l] ?? []).map((head) => head.importance ?? 0), 1e-12);
      heads.forEach((tile) => tile.bar(largest));
    });
    const grid = el("div", { class: "overview-grid", role: "group", "aria-label": t("overview"), onkeydown: (event) => moveByKeys(event, doc, state) },
      doc.layers.map((layer, l) => el("div", { class: "overview-layer" },
        el("div", { class: "overview-name" }, el("strong", {}, layer.label), layer.label.includes(layer.kind) ? "" : el("span", {}, t(layer.kind))),
        el("div", { class: "overview-heads", style: "--heads: " + layer.heads }, tiles[l].map((tile) => tile.button)))));
    const pooled = doc.layers.some(({ bin }) => (bin ?? []).some((width) => width > 1));
    const words = ["honesty", "overview.legend", "overview.hint", ...(pooled ? ["overview.pooled"] : [])];
    root.append(kindFilter(doc, tiles, t), grid, el("p", { class: "note" }, words.map((word) => t(word) + " ")));

    const seen = new IntersectionObserver((entries) => entries.forEach(({ target, isIntersecting }) => {
      target.inSight = isIntersecting;
      if (isIntersecting) target.repaint();
    }), { rootMargin: "200px" });
    tiles.flat().forEach(({ button }) => seen.observe(button));

    // What is out of sight is painted when there is nothing else to do.
    const idle = window.requestIdleCallback ?? ((call) => setTimeout(call, 50)), rest = tiles.flat();
    const paintRest = () => idle(async () => { const next = rest.shift(); if (next && root.isConnected) { await next.button.repaint(); paintRest(); } });
    paintRest();

    let chosen = null;
    function choose(now) {
      const next = tiles[now.layer][now.head].button;
      if (next === chosen) return;
      const hadFocus = chosen === document.activeElement;
      chosen?.removeAttribute("aria-current");
      if (chosen) chosen.tabIndex = -1;
      chosen = next;
      chosen.setAttribute("aria-current", "true");
      chosen.tabIndex = 0;
      if (hadFocus) chosen.focus();
    }
    state.subscribe((now, changed) => {
      choose(now);
      if (changed.has("values") || changed.has("theme")) tiles.flat().forEach((tile) => tile.stale());
    });
    choose(state.get());
  },
};

function headTile(doc, state, t, layer, head) {
  const facts = doc.heads?.[layer]?.[head] ?? {}, sink = doc.sinkShare(layer, head), kinds = facts.kinds ?? [];
  const canvas = el("canvas", { "aria-hidden": true }), bars = el("span", { class: "overview-bars", "aria-hidden": true });
  const words = kinds.map((kind) => kindWord(kind, t)).join(", ");
  const label = t("overview.label", { layer: doc.layers[layer].label, head: head + 1, kinds: words || "–", sink: formatShare(sink) });
  const button = el("button", { type: "button", class: "overview-head", tabindex: -1, "aria-label": label, title: label, id: `head-${layer}-${head}`,
    onclick: () => (button.getAttribute("aria-current") ? state.set({ view: "head" }) : state.set({ layer, head })) },
    canvas, bars, el("span", { class: "overview-foot" }, el("b", {}, head + 1),
      el("span", { class: "overview-kind" }, kinds.length ? shortKind(kinds[0], t) : "")));
  let painted = "";
  button.repaint = async () => {
    const { values, theme } = state.get(), wanted = values + theme;
    if (painted === wanted) return;
    painted = wanted;
    await doc.load(...mapTensors(doc, layer, values));
    const map = headMap(doc, layer, head, values);
    if (!map || painted !== wanted) return;
    mapImage(canvas, map, theme);
    canvas.classList.toggle("overview-coarse", map.keys <= 64);
  };
  return {
    button, kinds,
    stale() { if (button.inSight) button.repaint(); },
    bar(largest) {
      const line = (name, share) => el("i", { class: "overview-" + name, style: { width: 100 * Math.min(1, Math.max(0, share ?? 0)) + "%" } });
      bars.append(line("sink", sink));
      // Importance compares the heads of a layer: one alone has always 1, which says nothing.
      if (doc.layers[layer].heads > 1) bars.append(line("importance", (facts.importance ?? 0) / largest));
    },
  };
}

function shortKind(kind, t) {
  const word = t("short." + kind);
  return word === "short." + kind ? kind : word;
}

function moveByKeys(event, doc, state) {
  const { layer, head } = state.get();
  const move = { ArrowLeft: { head: head - 1 }, ArrowRight: { head: head + 1 }, ArrowUp: { layer: layer - 1 }, ArrowDown: { layer: layer + 1 },
    Home: { head: 0 }, End: { head: doc.layers[layer].heads - 1 }, Enter: { view: "head" } }[event.key];
  if (!move) return;
  event.preventDefault();
  state.set(move);
}

function kindFilter(doc, tiles, t) {
  const kinds = [...new Set((doc.heads ?? []).flat().flatMap((head) => head.kinds ?? []))];
  if (!kinds.length) return "";
  const all = tiles.flat(), buttons = [null, ...kinds].map((kind) =>
    el("button", { type: "button", class: "chip", "data-kind": kind ?? "", "aria-pressed": kind === null,
    onclick: () => {
      buttons.forEach((button) => button.setAttribute("aria-pressed", button.dataset.kind === (kind ?? "")));
      all.forEach((tile) => tile.button.classList.toggle("overview-dim", kind !== null && !tile.kinds.includes(kind)));
    } }, kind === null ? t("kind.all") : kindWord(kind, t),
      el("small", {}, kind === null ? all.length : all.filter((tile) => tile.kinds.includes(kind)).length)));
  return el("div", { class: "overview-filter", role: "group", "aria-label": t("filter") }, buttons);
}
