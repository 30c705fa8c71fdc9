// The palette of the mode that a node stands in. Figures name roles ("@ink"); light and dark have their own colours.

const darkness = new Map(); // CSS colour → whether it is dark; a canvas for each draw would cost more than the answer

function paletteAt(node, palettes) {
  const background = getComputedStyle(node).getPropertyValue("--st-background-color").trim();
  if (!darkness.has(background)) darkness.set(background, isDark(background));
  return palettes[darkness.get(background) ? "dark" : "light"];
}

function isDark(background) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = background || "#ffffff"; // the canvas turns every CSS colour into #rrggbb
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(pen.fillStyle.slice(i, i + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b < 128;
}
