// Few helpers to build elements. Text always goes in as text.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") Object.assign(node.style, value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function el(tag, attributes, ...children) { return fill(document.createElement(tag), attributes, children); }

export function svgEl(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// Three significant digits, or as many as are asked for; "1.2e-7" only where zeros would fill the line.
export function formatNumber(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (size < 1e-3 || size >= 1e6) return x.toExponential(digits - 1);
  return size >= 100 ? String(Math.round(x)) : String(Number(x.toPrecision(digits)));
}

export function formatShare(x) {
  return x === null || x === undefined ? "–" : (100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0) + " %";
}

// What a token looks like in a label: the sign of a space before a word is left out, other blanks get a sign.
export function tokenLabel(token) {
  return token.replace(/^[\u0120\u2581 ](?=.)/s, "").replace(/[\u0120\u2581 ]/g, "\u00b7").replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5") || "\u2205";
}

const timesOf = new WeakMap();

// A token in a list without order: where the same one stands elsewhere too, its place (from 1) is said, "the (5)".
export function placeLabel(tokens, place) {
  if (!timesOf.has(tokens)) {
    const times = new Map();
    for (const token of tokens) times.set(token, (times.get(token) ?? 0) + 1);
    timesOf.set(tokens, times);
  }
  return tokenLabel(tokens[place]) + (timesOf.get(tokens).get(tokens[place]) > 1 ? ` (${place + 1})` : "");
}

// Runs `call` at most once a frame, however often it is asked for.
export function onceAFrame(call) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; call(); });
  };
}

// What a css variable of the page is now.
export function cssColour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

// A canvas as sharp as the screen; returns its context, already scaled to css pixels.
export function sharpContext(canvas, width, height) {
  const ratio = Math.min(2, devicePixelRatio || 1);
  const wide = Math.round(width * ratio), high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
