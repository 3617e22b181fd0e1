// Colours of a heatmap: from paper to dark blue, or from night to yellow. Both keep the blue-yellow axis, which colour
// blindness of every common kind leaves apart, and lightness changes one way only, so that they survive grey print.

const RAMPS = {
  light: ["#fffbe8", "#f1e3a0", "#b7ad7a", "#66728a", "#0b2a57"],
  dark: ["#0f2038", "#3a4a69", "#77777a", "#bcae6d", "#fde75a"],
};

const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

/** The colour at `share` (0..1) of a scheme's ramp, as bytes. */
export function colourAt(scheme, share) {
  const stops = RAMPS[scheme];
  const place = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const below = Math.min(Math.floor(place), stops.length - 2);
  const [from, to] = [parts(stops[below]), parts(stops[below + 1])];
  return from.map((byte, i) => Math.round(byte + (to[i] - byte) * (place - below)));
}

/** Relative luminance, as WCAG defines it. */
export function luminance(bytes) {
  const [red, green, blue] = bytes.map((byte) => {
    const part = byte / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Black or white, whichever reads better; one of the two has 4.58:1 on every colour there is. */
export function inkOn(bytes) {
  const light = luminance(bytes);
  return (light + 0.05) / 0.05 > 1.05 / (light + 0.05) ? "#000" : "#fff";
}

/** Colour a cell for both schemes; the style sheet takes the ones in use. Set by script: no policy forbids that. */
export function paint(cell, share) {
  for (const scheme of ["light", "dark"]) {
    const bytes = colourAt(scheme, share);
    cell.style.setProperty(`--heat-${scheme}`, `rgb(${bytes.join(" ")})`);
    cell.style.setProperty(`--ink-${scheme}`, inkOn(bytes));
  }
}

/** Where each number stands between the least and the largest; weights between 0 and 1. Masked ones: null. */
export function shares(values, isShare) {
  const finite = values.flat().filter(Number.isFinite);
  const [low, high] = isShare ? [0, 1] : [Math.min(...finite), Math.max(...finite)];
  const share = (number) => (high > low ? (number - low) / (high - low) : 0.5);
  return values.map((row) => row.map((number) => (Number.isFinite(number) ? share(number) : null)));
}
