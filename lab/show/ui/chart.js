// Draws one plotly figure and keeps the viewer's zoom and legend while its data moves.
//
// Streamlit 1.67 rebuilds st.plotly_chart whenever its data changes; Plotly.react on a kept node does not. A figure
// names colour roles ("@ink"); they are painted here with the palette of the mode that the page is in, so a change of
// theme needs no word from the server.

function loadPlotly(url) {
  window.labPlotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      window.labPlotly = undefined;
      reject(new Error(`${url} could not be loaded`));
    };
    document.head.append(script);
  });
  return window.labPlotly;
}

function paint(value, palette) {
  if (typeof value === "string") return value[0] === "@" ? (palette[value] ?? value) : value;
  if (Array.isArray(value)) return value.map((inner) => paint(inner, palette));
  if (value === null || typeof value !== "object" || "bdata" in value) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, paint(inner, palette)]));
}

const drawn = new WeakMap(); // plot node → what stands on it

function unzoom(state) {
  state.zoom = {};
  state.turn += 1;
  state.reset.hidden = true;
  draw(state);
}

async function draw(state) {
  if (document.hidden || !state.data) return; // a hidden tab costs nothing; it is redrawn when it is seen again
  const { figure, palettes, plotly } = state.data;
  const palette = paletteAt(state.plot, palettes);
  try {
    const Plotly = await loadPlotly(plotly);
    if (!state.plot.isConnected) return;
    const layout = paint(figure.layout, palette);
    // Plotly keeps what the viewer did while uirevision stays the same, except on an axis whose range we set: there the
    // newer range would win, as a live chart moves its own. So a zoom is kept here, until the view becomes another.
    const view = layout.uirevision ?? "kept";
    if (state.view !== view) state.zoom = {};
    state.view = view;
    layout.uirevision = `${view}#${state.turn}`;
    for (const name of Object.keys(layout)) if (/^legend\d*$/.test(name)) layout[name].uirevision ??= "legend";
    for (const [axis, range] of Object.entries(state.zoom)) if (layout[axis]) layout[axis].range = [...range];
    await Plotly.react(state.plot, paint(figure.data, palette), layout, {
      displayModeBar: false,
      doubleClick: false,
      scrollZoom: false,
    });
    if (!state.listening) {
      state.listening = true;
      state.plot.on("plotly_relayout", (change) => {
        for (const key of Object.keys(change)) {
          const [axis, what] = key.split(".");
          if (what?.startsWith("range")) state.zoom[axis] = state.plot.layout[axis].range;
        }
        state.reset.hidden = Object.keys(state.zoom).length === 0;
      });
      state.plot.on("plotly_doubleclick", () => unzoom(state));
      state.reset.onclick = () => unzoom(state);
      state.resize.observe(state.plot);
    }
  } catch (error) {
    state.plot.textContent = `The chart could not be drawn: ${error.message}. The numbers are under "Show data".`;
  }
}

export default function ({ data, parentElement }) {
  const plot = parentElement.querySelector(".lab-plot");
  let state = drawn.get(plot);
  if (!state) {
    state = { plot, reset: parentElement.querySelector(".lab-reset"), zoom: {}, turn: 0, listening: false };
    // Plotly refuses to resize what is out of sight, as a plot is that is about to be removed.
    state.resize = new ResizeObserver(() => window.Plotly?.Plots.resize(plot).catch(() => {}));
    state.seen = () => draw(state);
    document.addEventListener("visibilitychange", state.seen);
    drawn.set(plot, state);
  }
  state.data = data;
  plot.setAttribute("aria-label", data.alt);
  plot.setAttribute("role", "img"); // not before it has its label: an image without words is a fault to a reader
  plot.style.height = `${data.figure.layout.height}px`;
  draw(state);
  return () => {
    document.removeEventListener("visibilitychange", state.seen);
    state.resize.disconnect();
    window.Plotly?.purge(plot);
    drawn.delete(plot);
  };
}
