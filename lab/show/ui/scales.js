// Numbers to pixels and to words, for what is drawn by hand: axes from zero, or over whole steps of 1, 2 and 5.

const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

// Plotly's typed array, as lab/show/charts/figure.py writes it.
function floats({ bdata }) {
  return new Float32Array(Uint8Array.from(atob(bdata), (letter) => letter.charCodeAt(0)).buffer);
}

function scale([from, to], [start, end]) {
  const slope = (end - start) / (to - from || 1);
  return (value) => start + (value - from) * slope;
}

function linearScale(high, ends) {
  const most = Math.max(high, 0) * 1.02 || 1;
  const step = nice(most / 4);
  const top = step * Math.ceil(most / step - 1e-9);
  const place = scale([0, top], ends);
  place.ticks = ticks(0, top, 4);
  return place;
}

function logScale(low, high, ends) {
  const [least, most] = [nice(low * 0.98, true), nice(high * 1.02)];
  const across = scale([Math.log10(least), Math.log10(most)], ends);
  const place = (value) => across(Math.log10(value));
  const powers = [];
  for (let power = Math.floor(Math.log10(least)); 10 ** power <= most * 1.001; power += 1) powers.push(power);
  const labelled = most / least > 100 ? [1] : [1, 2, 5];
  place.ticks = powers
    .flatMap((power) => labelled.map((digit) => digit * 10 ** power))
    .filter((value) => value >= least * 0.999 && value <= most * 1.001);
  return place;
}

// The least of 1, 2 and 5 × 10^n that is not below `value`; with `down`, the greatest that is not above.
function nice(value, down = false) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 2, 5, 10].map((digit) => digit * power);
  return down ? (steps.findLast((step) => step <= value) ?? power) : (steps.find((step) => step >= value) ?? 10 * power);
}

function ticks(from, to, most) {
  const step = nice((to - from) / most);
  const first = Math.ceil(from / step - 1e-9);
  return Array.from({ length: Math.floor(to / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

function crisp(pixel) {
  return Math.round(pixel) + 0.5;
}

function short(value) {
  return digits.format(value);
}

function told(value, unit) {
  return Number.isFinite(value) ? `${short(value)} ${unit}`.trim() : "–";
}
