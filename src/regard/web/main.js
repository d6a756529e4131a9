// Puts the page together: document, state, header, tabs, and the view that is looked at.
import { Doc, ServerGone, inlineSource, liveSource } from "./data.js";
import { State, MountState } from "./state.js";
import { addWords, translator } from "./words.js";
import { el } from "./dom.js";
import { headMap, mapTensors } from "./maps.js";
import { largest } from "./readout.js";
import { chooser } from "./chooser.js";
import { helpDialog, pageKeys } from "./keys.js";
import { overviewView } from "./overview.js";
import { headView } from "./head.js";
import { ribbonsView } from "./ribbons.js";
import { textView } from "./text.js";
import { stepsView } from "./step.js";
import { layersView } from "./charts.js";
import { driftView } from "./drift.js";
import { cardView } from "./card.js";
import { ablationView } from "./ablation.js";

const VIEWS = [overviewView, headView, ribbonsView, textView, stepsView, layersView, cardView, ablationView, driftView];
const WIDE = matchMedia("(min-width: 1180px)"), DARK = matchMedia("(prefers-color-scheme: dark)");

async function openDoc() {
  const inline = document.getElementById("doc")?.textContent.trim();
  const json = inline ? JSON.parse(inline) : await (await fetch("doc.json")).json();
  return new Doc(json, json.live === null || json.live === undefined ? inlineSource : liveSource(json.live));
}

// Where a first look is worth most: the head that aligns, else the most important one that is not a sink.
function firstHead(doc) {
  if (doc.alignment) return { layer: doc.alignment.layer, head: doc.alignment.head };
  let best = { layer: 0, head: 0, score: -Infinity };
  doc.heads?.forEach((heads, layer) => heads.forEach((head, i) => {
    const score = (head.importance ?? 0) - (head.kinds?.includes("first") ? 1e6 : 0);
    if (score > best.score) best = { layer, head: i, score };
  }));
  return { layer: best.layer, head: best.head };
}

// The middle row, or, where the model says something at some places only, the first of these.
async function firstRow(doc, layer) {
  const middle = Math.floor(doc.shape(layer)[0] / 2), about = doc.relevance;
  if (about?.rows !== doc.layers[layer].rows || about.rows !== about.keys || about.bin[0] > 1) return middle;
  await doc.load("relevance");
  const speaks = (row) => doc.part("relevance", row).data.some((x) => x > 0);
  const first = speaks(middle) ? middle : doc.axes[about.rows].tokens.findIndex((_, row) => speaks(row));
  return first < 0 ? middle : first;
}

// That row, and what it reads most.
async function usualState(doc) {
  const { layer, head } = firstHead(doc), row = await firstRow(doc, layer);
  await doc.load(...mapTensors(doc, layer, "weighted"));
  const map = headMap(doc, layer, head, "weighted"), line = Math.floor(row / (map?.bin[0] ?? 1));
  const key = map ? (largest(map.data.subarray(line * map.keys, (line + 1) * map.keys), 1)[0] ?? 0) * map.bin[1] : 0;
  return {
    view: "overview", layer, head, row, key, answer: row, values: "weighted", measure: "",
    language: navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en",
    theme: DARK.matches ? "dark" : "light",
  };
}

class Page {
  constructor(doc, state) {
    Object.assign(this, { doc, state, views: VIEWS.filter((view) => view.available(doc)), mounts: new Map() });
    for (const view of VIEWS) addWords(view.words);
    this.labels = doc.layers.map((layer) => layer.label);
    state.subscribe((now, changed) => {
      if (changed.has("theme")) this.dress();
      if (changed.has("language")) this.build();
      else if (changed.has("view")) this.show();
    });
    doc.onGone = () => { document.getElementById("gone").hidden = false; };
    // What is asked of a server that is gone is said once, at the top, not in a console.
    addEventListener("unhandledrejection", (event) => { if (event.reason instanceof ServerGone) event.preventDefault(); });
    WIDE.addEventListener("change", () => this.show());
    DARK.addEventListener("change", () => state.set({ theme: DARK.matches ? "dark" : "light" }));
    pageKeys(state, doc, this.views);
    this.dress();
    this.build();
  }

  dress() { document.documentElement.dataset.theme = this.state.get().theme; }

  // Everything with words in it; again when the language changes.
  build() {
    const { state, views } = this, { language } = state.get(), t = translator(language), held = document.activeElement?.id;
    for (const mount of this.mounts.values()) mount.end();
    this.mounts.clear();
    this.t = t;
    // Labels come in English ("decoder 2, cross"); their few words are known.
    const known = /\b(encoder|decoder|layer|hop|cross|copying|self|co-attention|other text|own text)\b/g;
    this.doc.layers.forEach((layer, i) => {
      layer.label = this.labels[i].replace(/, /g, t("label.comma")).replace(known, (word) => t("label." + word));
    });
    document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
    document.title = this.doc.title ? this.doc.title + " · regard" : "regard";
    const skip = document.querySelector(".skip");
    skip.textContent = t("skip");
    // The address is the state's: the link must not write "#main" there.
    skip.onclick = (event) => { event.preventDefault(); document.getElementById("main").focus(); };
    this.chooserRoot = el("div", { class: "chooser" });
    this.chooserState?.end();
    this.chooserState = new MountState(state);
    chooser(this.chooserRoot, this.doc, this.chooserState, t);
    this.tabs = el("div", { class: "tabs", role: "tablist", "aria-label": t("views"), onkeydown: (event) => this.tabKeys(event) },
      views.map((view) => el("button", { type: "button", class: "tab", role: "tab", id: "tab-" + view.id, "aria-controls": "view-" + view.id,
        onclick: () => state.set({ view: view.id }) }, t(view.id))));
    this.panels = new Map(views.map((view) => [view.id, el("section", { class: "view", id: "view-" + view.id, role: "tabpanel",
      "aria-labelledby": "tab-" + view.id, hidden: true })]));
    document.getElementById("page").replaceChildren(this.header(t),
      el("p", { id: "gone", class: "gone", role: "status", hidden: !this.doc.gone }, t("gone")), el("nav", { class: "bar" }, this.tabs), this.chooserRoot,
      el("main", { id: "main", tabindex: -1 }, ...this.panels.values()),
      el("footer", { class: "foot" }, el("p", {}, t("foot"))), helpDialog(t));
    this.show();
    if (held) document.getElementById(held)?.focus();
  }

  header(t) {
    const { doc, state } = this, now = state.get();
    const line = (name, text) => text ? el("p", { class: "said" }, el("span", { class: "label" }, t(name)),
      el("q", { title: text.slice(0, 2000) }, text.slice(0, 400))) : null;
    return el("header", { class: "top" },
      el("div", { class: "top-line" }, el("h1", {}, doc.title || "regard"),
        el("div", { class: "switches" },
          el("button", { type: "button", id: "switch-language", lang: now.language === "zh" ? "en" : "zh-Hans", "aria-label": t("language"),
            onclick: () => state.set({ language: state.get().language === "zh" ? "en" : "zh" }) }, now.language === "zh" ? "English" : "中文"),
          el("button", { type: "button", id: "switch-theme", "aria-label": t("theme"), title: t("theme"),
            onclick: () => state.set({ theme: state.get().theme === "dark" ? "light" : "dark" }) }, "◐"),
          el("button", { type: "button", id: "switch-help", "aria-label": t("help"), title: t("help"),
            onclick: () => document.getElementById("help").showModal() }, "?"))),
      doc.model ? el("p", { class: "model" }, doc.model) : null, doc.text === doc.title ? null : line("input", doc.text),
      Number.isFinite(doc.cut) ? el("p", { class: "cut", id: "cut" }, t("cut", { n: doc.cut.toLocaleString("en") })) : null, line("answer", doc.answer));
  }

  tabKeys(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = this.views.findIndex((view) => view.id === this.state.get().view);
    const next = this.views[(at + step + this.views.length) % this.views.length];
    this.state.set({ view: next.id });
    document.getElementById("tab-" + next.id).focus();
  }

  show() {
    const { views, state } = this, chosen = views.find((view) => view.id === state.get().view) ?? views[0];
    // A wide screen shows the chosen head beside all of them.
    const pair = chosen.id === "overview" && WIDE.matches;
    const shown = new Set(pair ? ["overview", "head"] : [chosen.id]);
    document.getElementById("main").className = pair ? "pair" : "";
    this.chooserRoot.hidden = !chosen.perHead;
    this.chooserState.show(!this.chooserRoot.hidden);
    for (const view of views) {
      const panel = this.panels.get(view.id), tab = document.getElementById("tab-" + view.id), current = view === chosen;
      tab.setAttribute("aria-selected", current);
      tab.tabIndex = current ? 0 : -1;
      if (current) tab.scrollIntoView?.({ block: "nearest", inline: "nearest" });
      panel.hidden = !shown.has(view.id);
      if (shown.has(view.id) && !this.mounts.has(view.id)) this.mount(view, panel);
      else this.mounts.get(view.id)?.show(shown.has(view.id));
    }
  }

  mount(view, panel) {
    const scope = new MountState(this.state), root = el("div", { class: "view-body" });
    this.mounts.set(view.id, scope);
    panel.replaceChildren(el("header", { class: "view-head" }, el("h2", {}, this.t(view.id)), el("p", {}, this.t(view.id + ".about"))), root);
    view.mount(root, this.doc, scope, this.t);
  }
}

async function start() {
  try {
    const doc = await openDoc();
    window.regardPage = new Page(doc, new State(doc, await usualState(doc)));
    if (typeof doc.live === "string") doc.fetchAhead();
  } catch (error) {
    document.getElementById("page").replaceChildren(el("p", { class: "failed", role: "alert" }, translator("en")("failed") + " " + error.message));
    throw error;
  }
}

start();
