// Colours for numbers. Lightness runs one way and hue from yellow to blue, so that the order survives every common
// colour blindness and a grey printer. Anchors are our own, in OKLab (lightness, green-red, blue-yellow).

const ANCHORS = {
  light: [[0.985, -0.002, 0.008], [0.93, -0.035, 0.055], [0.81, -0.075, 0.015], [0.64, -0.065, -0.06], [0.46, -0.015, -0.13], [0.27, 0.02, -0.105]],
  dark: [[0.215, -0.002, -0.018], [0.33, 0.005, -0.085], [0.47, -0.03, -0.105], [0.63, -0.075, -0.045], [0.79, -0.08, 0.06], [0.955, -0.025, 0.105]],
};
// For things that have no order: blue, amber, teal, plum, ochre, slate; told apart by lightness too.
const NAMED = {
  light: ["#2a5caa", "#c77700", "#00857c", "#7d4a94", "#8a7a2f", "#5d6b7a"],
  dark: ["#7fb0f5", "#f0b04a", "#4cc9b8", "#c79be0", "#d3c36a", "#a4b1c0"],
};
const tables = {};

function toRgb([L, a, b]) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((x) => Math.round(255 * Math.max(0, Math.min(1, x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055))));
}

function rgbAt(t, theme) {
  const anchors = ANCHORS[theme], place = Math.max(0, Math.min(1, t)) * (anchors.length - 1);
  const at = Math.min(anchors.length - 2, Math.floor(place)), part = place - at;
  return toRgb(anchors[at].map((x, i) => x + part * (anchors[at + 1][i] - x)));
}

export function colour(t, theme) { return `rgb(${rgbAt(t, theme).join(" ")})`; }

// Is dark ink more readable on this colour than pale ink? (Both have the same contrast at a luminance of 0.18.)
export function isPale(t, theme) {
  const [r, g, b] = rgbAt(t, theme).map((x) => (x / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18;
}

export function categorical(i, theme) { return NAMED[theme][i % NAMED[theme].length]; }

// 256 pixels, ready to be written into an image.
export function colourTable(theme) {
  tables[theme] ??= Uint32Array.from({ length: 256 }, (_, i) => {
    const [r, g, b] = rgbAt(i / 255, theme);
    return (255 << 24) | (b << 16) | (g << 8) | r;
  });
  return tables[theme];
}

// Attention is mostly small numbers: colours follow the square root of the share of `top`.
export function strength(x, top) { return top > 0 ? Math.sqrt(Math.min(1, Math.max(0, x / top))) : 0; }

// A top that one lonely cell cannot set: the value below which 99.8 % lie, but never under an eighth of the largest.
export function robustTop(data) {
  let largest = 0;
  for (let i = 0; i < data.length; i++) if (data[i] > largest) largest = data[i];
  if (data.length < 512) return largest;
  const counts = new Uint32Array(256);
  for (let i = 0; i < data.length; i++) counts[Math.sqrt(Math.max(0, data[i] / (largest || 1))) * 255 | 0]++;
  let above = data.length * 0.002, bin = 255;
  while (bin > 0 && (above -= counts[bin]) > 0) bin--;
  return Math.max(largest / 8, ((bin + 1) / 256) ** 2 * largest);
}

// Numbers -> pixels, `into` is a Uint32Array over an image's data.
export function paint(data, top, theme, into) {
  const table = colourTable(theme), scale = top > 0 ? 1 / top : 0;
  for (let i = 0; i < data.length; i++) {
    const share = data[i] * scale;
    into[i] = table[share >= 1 ? 255 : share > 0 ? (Math.sqrt(share) * 255) | 0 : 0];
  }
}
