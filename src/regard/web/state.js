// What the reader has chosen: one small store, mirrored in the address, so that a link shows the same thing.

const NUMBERS = ["layer", "head", "row", "key", "answer"];
const CHOICES = { values: ["weighted", "raw"], language: ["en", "zh"], theme: ["light", "dark"] };

export function readHash(hash) {
  const found = {};
  for (const [name, value] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (NUMBERS.includes(name) && /^\d+$/.test(value)) found[name] = Number(value);
    else if (name === "view" || name === "measure" || CHOICES[name]?.includes(value)) found[name] = value;
  }
  return found;
}

function writeHash(now, usual) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(now)) if (value !== usual[name]) words.set(name, value);
  // A page inside a notebook's frame may not have an address to write to.
  try { history.replaceState(null, "", "#" + words); } catch { /* then there is no link to share */ }
}

const clampTo = (value, count) => Math.max(0, Math.min(count - 1, value));

export class State {
  constructor(doc, usual) {
    this.doc = doc;
    this.usual = usual;
    this.listeners = new Set();
    this.now = this.fitted({ ...usual, ...readHash(location.hash) });
    addEventListener("hashchange", () => { if (/^#?$|=/.test(location.hash)) this.set({ ...this.usual, ...readHash(location.hash) }); });
  }

  get() { return this.now; }

  set(patch) {
    const wanted = { ...this.now, ...patch }, { doc } = this;
    // On the answer's own axis the row that is looked at and the chosen answer token are one and the same.
    const layer = clampTo(wanted.layer, doc.layers.length);
    if (doc.layers[layer].rows === doc.answerAxis()) {
      if ("answer" in patch && !("row" in patch)) wanted.row = wanted.answer;
      else wanted.answer = wanted.row;
    }
    const next = this.fitted(wanted);
    const changed = new Set(Object.keys(next).filter((name) => next[name] !== this.now[name]));
    if (!changed.size) return;
    this.now = next;
    writeHash(next, this.usual);
    for (const listener of [...this.listeners]) listener(next, changed);
  }

  fitted(wanted) {
    const { doc } = this, next = { ...wanted };
    next.layer = clampTo(next.layer, doc.layers.length);
    next.head = clampTo(next.head, doc.layers[next.layer].heads);
    const [rows, keys] = doc.shape(next.layer);
    next.row = clampTo(next.row, rows);
    next.key = clampTo(next.key, keys);
    next.answer = clampTo(next.answer, doc.axes[doc.answerAxis()].tokens.length);
    return Object.freeze(next);
  }

  subscribe(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

// The state as one mounted view gets it: quiet while the view is hidden, gone with it.
export class MountState {
  constructor(state) {
    this.state = state;
    this.calls = new Set();
    this.shown = true;
    this.missed = new Set();
    this.end = state.subscribe((now, changed) => {
      if (this.shown) this.tell(now, changed);
      else for (const name of changed) this.missed.add(name);
    });
  }

  get() { return this.state.get(); }
  set(patch) { this.state.set(patch); }
  subscribe(call) { this.calls.add(call); return () => this.calls.delete(call); }
  tell(now, changed) { for (const call of [...this.calls]) call(now, changed); }

  show(shown) {
    this.shown = shown;
    if (!shown || !this.missed.size) return;
    const missed = this.missed;
    this.missed = new Set();
    this.tell(this.get(), missed);
  }
}
