// Panels under each other that share a time axis, each drawn by hand on a small canvas of its own.
//
// Takes the plotly figure of lab/show/charts/live.py, of which it knows lines, limits and numbered marks. Drag, or + and
// -, zoom into a stretch of time, which then stays while the data moves on; pointer or arrow keys read values; a line's
// name takes it out. A panel that is out of sight is not drawn.

const PAD = { left: 56, right: 12, top: 6, bottom: 6 }; // px around a plot
const HEIGHT = 112; // px a panel
const SECONDS = 22; // px more under the last one
const DASHES = { solid: [], dash: [7, 4], dot: [2, 3], dashdot: [7, 3, 2, 3], longdash: [10, 4] };
const FEWEST_S = 2; // a zoom shows at least so many seconds

class Panels {
  constructor(stack, part) {
    this.stack = stack;
    this.part = part;
    this.panels = [];
    this.hidden = new Set(); // names of lines that the viewer took out
    this.zoom = null; // [from, to] in seconds; null shows what the page asks for
    this.cursor = null; // the second whose values are read; null is the newest
    this.seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) target.panel.inSight = isIntersecting;
      this.draw();
    });
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(stack);
    part("reset").onclick = () => this.zoomTo(null);
    this.listen();
  }

  close() {
    this.closed = true;
    this.seen.disconnect();
    this.resized.disconnect();
  }

  get shown() {
    return this.zoom ?? this.range;
  }

  get lines() {
    return this.panels.flatMap((panel) => panel.lines);
  }

  show({ figure, alt, notes }, palettes) {
    const { layout } = figure;
    const axes = figure.data.length ? Object.keys(layout).filter((name) => /^yaxis\d*$/.test(name)) : [];
    this.keep(axes, layout, figure);
    this.palettes = palettes;
    this.range = layout.xaxis.range ?? [0, 1];
    const upright = layout.shapes?.filter((shape) => shape.xref === "x") ?? [];
    this.marks = upright.map((shape, i) => [shape.x0, layout.annotations[i].text]);
    axes.forEach((name, i) => this.fill(this.panels[i], layout, figure.data, name));
    this.part("nothing").hidden = axes.length > 0;
    say(this.part("nothing"), axes.length ? "" : layout.annotations[0].text);
    say(this.part("marks"), axes.length ? notes.join(" · ") : "");
    attribute(this.stack, "aria-label", alt);
    this.draw();
  }

  // Panels and the keys of their lines stay the same nodes as long as the figure has the same ones.
  keep(axes, layout, figure) {
    const shape = JSON.stringify(axes.map((name) => layout[name].title.text).concat(figure.data.map((line) => line.name)));
    if (shape === this.shape) return;
    this.shape = shape;
    this.seen.disconnect();
    for (const panel of this.panels) panel.node.remove();
    this.panels = axes.map((_, i) => newPanel(i === axes.length - 1));
    this.stack.prepend(...this.panels.map((panel) => panel.node));
    for (const panel of this.panels) this.seen.observe(panel.node);
  }

  fill(panel, layout, data, name) {
    const id = name.replace("yaxis", "y");
    panel.log = layout[name].type === "log";
    panel.limit = layout.shapes.find((shape) => shape.yref === id)?.y0 ?? null;
    panel.lines = data
      .filter((line) => line.yaxis === id)
      .map(({ name, hovertemplate, line, x, y }) => ({
        name,
        unit: hovertemplate.split("} ")[1],
        role: line.color,
        dash: line.dash,
        x: floats(x),
        y: floats(y),
      }));
    say(panel.title, layout[name].title.text);
    for (const { name } of panel.lines.slice(panel.keys.length)) {
      const key = newKey(name);
      key.node.onclick = () => {
        if (!this.hidden.delete(name)) this.hidden.add(name);
        this.draw();
      };
      panel.head.append(key.node);
      panel.keys.push(key);
    }
  }

  draw() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      if (!this.closed && this.panels.length) this.paint();
    });
  }

  paint() {
    this.width = this.stack.clientWidth;
    if (!this.width) return;
    const palette = paletteAt(this.stack, this.palettes);
    this.part("reset").hidden = this.zoom === null;
    for (const panel of this.panels) {
      this.read(panel, palette);
      if (panel.inSight) this.plot(panel, palette);
    }
    const cursor = this.part("cursor");
    cursor.hidden = this.cursor === null;
    if (cursor.hidden) return;
    cursor.style.transform = `translateX(${this.pixel(this.cursor)}px)`;
    say(cursor.firstElementChild, `${Math.round(this.cursor)} s`);
  }

  // A line's key tells its value at the cursor, or its newest one.
  read(panel, palette) {
    panel.lines.forEach((line, i) => {
      const { node, path, value } = panel.keys[i];
      const out = this.hidden.has(line.name);
      attribute(node, "aria-pressed", String(!out));
      attribute(path, "stroke", palette[line.role] ?? line.role);
      attribute(path, "stroke-dasharray", DASHES[line.dash].join(" "));
      say(value, out ? "hidden" : told(line.y[this.index(line)], line.unit));
    });
  }

  index({ x }) {
    if (this.cursor === null) return x.length - 1;
    return x.reduce((best, at, i) => (Math.abs(at - this.cursor) < Math.abs(x[best] - this.cursor) ? i : best), 0);
  }

  pixel(second) {
    return scale(this.shown, [PAD.left, this.width - PAD.right])(second);
  }

  plot(panel, palette) {
    const { width } = this;
    const [pen, height, right] = [ready(panel, width), panel.height, width - PAD.right];
    const bottom = height - PAD.bottom - (panel.last ? SECONDS : 0);
    const [x, y] = [(second) => this.pixel(second), this.upright(panel, bottom)];
    pen.font = `12px ${(this.font ??= getComputedStyle(this.stack).fontFamily)}`;
    [pen.textBaseline, pen.textAlign, pen.fillStyle] = ["middle", "right", palette["@muted"]];
    for (const value of y.ticks) {
      stroke(pen, palette["@grid"], [PAD.left, crisp(y(value))], [right, crisp(y(value))]);
      pen.fillText(short(value), PAD.left - 8, y(value));
    }
    stroke(pen, palette["@axis"], [crisp(PAD.left), PAD.top], [crisp(PAD.left), bottom]);
    stroke(pen, palette["@axis"], [PAD.left, crisp(bottom)], [right, crisp(bottom)]);
    if (panel.last) this.seconds(pen, bottom, palette);
    pen.save();
    pen.beginPath();
    pen.rect(PAD.left, 0, right - PAD.left, bottom + 1);
    pen.clip();
    pen.setLineDash(DASHES.longdash);
    if (panel.limit !== null) stroke(pen, palette["@muted"], [PAD.left, crisp(y(panel.limit))], [right, crisp(y(panel.limit))]);
    pen.setLineDash(DASHES.dot);
    for (const [second] of this.marks) stroke(pen, palette["@axis"], [crisp(x(second)), 0], [crisp(x(second)), bottom]);
    pen.lineWidth = 2;
    for (const line of panel.lines) if (!this.hidden.has(line.name)) curve(pen, line, x, y, palette[line.role] ?? line.role);
    pen.restore();
    if (panel === this.panels[0]) this.numbers(pen, right, palette);
  }

  seconds(pen, bottom, palette) {
    pen.textAlign = "center";
    for (const value of ticks(...this.shown, Math.max(3, Math.floor(this.width / 110)))) {
      const at = this.pixel(value);
      stroke(pen, palette["@axis"], [crisp(at), bottom], [crisp(at), bottom + 4]);
      pen.fillText(`${short(value)} s`, Math.min(at, this.width - PAD.right - 8), bottom + 14);
    }
  }

  // The marks' numbers, in the first panel; what each stands for is said under the last.
  numbers(pen, right, palette) {
    pen.textAlign = "center";
    for (const [second, number] of this.marks) {
      const at = this.pixel(second);
      if (at < PAD.left || at > right) continue;
      [pen.fillStyle, pen.strokeStyle] = [palette["@surface"], palette["@axis"]];
      pen.beginPath();
      pen.arc(at, 10, 8, 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
      pen.fillStyle = palette["@ink"];
      pen.fillText(number, at, 10.5);
    }
  }

  // Value → pixel, over what is in view and not taken out.
  upright(panel, bottom) {
    const [from, to] = this.shown;
    let [low, high] = [Infinity, -Infinity];
    for (const line of panel.lines) {
      if (this.hidden.has(line.name)) continue;
      for (let i = 0; i < line.x.length; i += 1) {
        if (!(line.x[i] >= from - 1 && line.x[i] <= to) || !Number.isFinite(line.y[i])) continue;
        low = Math.min(low, line.y[i]);
        high = Math.max(high, line.y[i]);
      }
    }
    if (low > high) [low, high] = [1, 10];
    return panel.log ? logScale(low, high, [bottom, PAD.top]) : linearScale(high, [bottom, PAD.top]);
  }

  listen() {
    const { stack } = this;
    const second = ({ clientX }) => {
      const { left, width } = stack.getBoundingClientRect();
      const inside = Math.min(Math.max(clientX - left, PAD.left), width - PAD.right);
      return scale([PAD.left, width - PAD.right], this.shown)(inside);
    };
    const ofKeys = ({ target }) => target.closest("button") !== null;
    let pressed = null;
    stack.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || ofKeys(event)) return;
      pressed = second(event);
      stack.setPointerCapture(event.pointerId);
    });
    stack.addEventListener("pointermove", (event) => {
      this.select(pressed === null ? null : [pressed, second(event)]);
      this.point(second(event));
    });
    stack.addEventListener("pointerup", (event) => {
      if (pressed === null) return;
      const [from, to] = [pressed, second(event)].sort((a, b) => a - b);
      pressed = null;
      this.select(null);
      if (to - from > (this.shown[1] - this.shown[0]) / 100) this.zoomTo([from, to]);
    });
    stack.addEventListener("pointerleave", () => pressed === null && this.point(null));
    stack.addEventListener("dblclick", (event) => ofKeys(event) || this.zoomTo(null));
    stack.addEventListener("blur", () => this.point(null));
    stack.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.target !== this.stack || event.ctrlKey || event.metaKey || event.altKey || !this.panels.length) return;
    const [from, to] = this.shown;
    const [at, step, span] = [this.cursor ?? to, event.shiftKey ? 10 : 1, to - from];
    const read = (second) => this.point(Math.min(to, Math.max(from, second)), true);
    const actions = {
      ArrowLeft: () => read(Math.ceil(at) - step),
      ArrowRight: () => read(Math.floor(at) + step),
      Home: () => read(from),
      End: () => read(to),
      "+": () => this.zoomTo([at - span / 4, at + span / 4]),
      "-": () => this.zoomTo([at - span, at + span]),
      0: () => this.zoomTo(null),
      Escape: () => this.zoomTo(null),
    };
    const action = actions[event.key === "=" ? "+" : event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  // Read at `second`; `aloud` for who reads with the keyboard, and perhaps by ear.
  point(second, aloud = false) {
    if (second === this.cursor) return;
    this.cursor = second;
    this.draw();
    const lines = aloud ? this.lines.filter((line) => !this.hidden.has(line.name)) : [];
    const words = lines.map((line) => `${line.name} ${told(line.y[this.index(line)], line.unit)}`);
    say(this.part("aloud"), aloud ? `${Math.round(second)} s: ${words.join(", ")}` : "");
  }

  zoomTo(range) {
    this.zoom = null;
    const newest = this.range[1];
    if (range) {
      const span = Math.max(FEWEST_S, range[1] - range[0]);
      const from = Math.max(0, Math.min(range[0], newest - span));
      if (span < newest) this.zoom = [from, from + span];
    }
    this.draw();
  }

  unzoom() {
    this.zoom = null;
  }

  select(range) {
    const box = this.part("selection");
    box.hidden = range === null;
    if (range === null) return;
    const [from, to] = range.map((value) => this.pixel(value)).sort((a, b) => a - b);
    box.style.transform = `translateX(${from}px)`;
    box.style.width = `${to - from}px`;
  }
}

function newPanel(last) {
  const [node, head, title, canvas] = [element("div", "lab-panel"), element("div", "lab-head"), element("span", "lab-title"), element("canvas")];
  const height = HEIGHT + (last ? SECONDS : 0);
  canvas.style.height = `${height}px`;
  canvas.ariaHidden = "true";
  head.append(title);
  node.append(head, canvas);
  node.panel = { node, head, title, canvas, height, last, keys: [], lines: [], inSight: true };
  return node.panel;
}

function newKey(name) {
  const [node, label, value] = [element("button", "lab-key"), element("span"), element("span", "lab-value")];
  const [swatch, path] = ["svg", "path"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
  attribute(swatch, "viewBox", "0 0 26 4");
  attribute(path, "d", "M0 2H26");
  swatch.ariaHidden = "true";
  swatch.append(path);
  node.type = "button";
  say(label, name);
  node.append(swatch, label, value);
  return { node, path, value };
}

// A panel's pen, on a clean sheet of the right size.
function ready(panel, width) {
  const ratio = window.devicePixelRatio || 1;
  const size = [Math.round(width * ratio), Math.round(panel.height * ratio)];
  if (panel.canvas.width !== size[0] || panel.canvas.height !== size[1]) [panel.canvas.width, panel.canvas.height] = size;
  const pen = (panel.pen ??= panel.canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, panel.height);
  pen.setLineDash([]);
  pen.lineWidth = 1;
  pen.lineJoin = "round";
  return pen;
}

function stroke(pen, colour, from, to) {
  pen.strokeStyle = colour;
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}

function curve(pen, line, x, y, colour) {
  pen.strokeStyle = pen.fillStyle = colour;
  pen.setLineDash(DASHES[line.dash]);
  pen.beginPath();
  let open = false;
  line.y.forEach((value, i) => {
    const [across, up] = [x(line.x[i]), y(value)];
    const there = Number.isFinite(up); // a gap, or zero on a log axis, is not
    if (there && open) pen.lineTo(across, up);
    else if (there && Number.isFinite(y(line.y[i + 1]))) pen.moveTo(across, up);
    else if (there) pen.fillRect(across - 1.5, up - 1.5, 3, 3); // a second that stands alone
    open = there;
  });
  pen.stroke();
}
