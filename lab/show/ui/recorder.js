// A run that goes on: what it does at the moment, in words, four figures and the panels of panels.js.
//
// It asks the dashboard once a second for the moment's figures and puts them in place. A rerun of the page, and a redraw
// by Plotly, took ten times as much of a core, which shows in the tail that is measured. A tab that is hidden and a text
// that stays the same cost nothing. The page is rerun (a trigger) only when there is something new to build: the run
// ended, or what its controls show was changed elsewhere.

const EVERY_MS = 1000;
const RETRY_MS = 5000;
const TABLE_S = 60;

const recorders = new WeakMap(); // root node → Recorder

export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".lab-recorder");
  if (!recorders.has(root)) recorders.set(root, new Recorder(root));
  recorders.get(root).follow(data, setTriggerValue);
  return () => {
    recorders.get(root)?.close();
    recorders.delete(root);
  };
}

class Recorder {
  constructor(root) {
    root.recorder = this;
    this.part = (name) => root.querySelector(`.lab-${name}`);
    this.panels = new Panels(this.part("panels"), this.part);
    this.ticks = 0;
    this.woken = () => document.hidden || this.tick();
    document.addEventListener("visibilitychange", this.woken);
    this.part("data").addEventListener("toggle", () => this.table());
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.woken);
    this.panels.close();
  }

  // `data` is what the page's script gave: {moment, url (null once the run is over), paused, palettes}.
  follow(data, trigger) {
    const same = this.data && this.data.moment.figure.layout.uirevision === data.moment.figure.layout.uirevision;
    [this.data, this.trigger, this.asked] = [data, trigger, false];
    if (!same) this.panels.unzoom();
    if (data.paused && same) this.panels.draw();
    else this.show(data.moment);
    clearTimeout(this.timer);
    if (this.follows) this.timer = setTimeout(() => this.tick(), EVERY_MS);
  }

  get follows() {
    return !this.closed && this.data.url !== null && !this.data.paused;
  }

  async tick() {
    clearTimeout(this.timer);
    if (!this.follows || document.hidden) return; // seen again, it is woken
    const { url } = this.data;
    let wait = EVERY_MS;
    try {
      const answer = await fetch(url, { cache: "no-store" });
      const moment = await answer.json();
      if (!this.follows || url !== this.data.url) return; // the page shows something else by now
      if (moment.error) throw new Error(moment.error);
      this.show(moment);
      if (!moment.active || moment.in_force !== this.data.moment.in_force) this.rerun(moment);
    } catch (error) {
      wait = RETRY_MS;
      say(this.part("settings"), `no new figures: ${error.message}`);
    }
    clearTimeout(this.timer);
    if (this.follows) this.timer = setTimeout(() => this.tick(), wait);
  }

  rerun(moment) {
    if (this.asked) return;
    this.asked = true;
    this.trigger("changed", moment.active ? moment.in_force : "over");
  }

  show(moment) {
    this.ticks += 1;
    const [badge, bar] = [this.part("badge"), this.part("progress")];
    this.part("state").hidden = !moment.active;
    say(badge, moment.state[0]);
    attribute(badge, "data-colour", moment.state[1]);
    say(this.part("settings"), moment.settings);
    bar.hidden = moment.progress === null;
    if (!bar.hidden) bar.value = moment.progress;
    say(this.part("covers"), moment.covers);
    this.cards(moment.cards);
    say(this.part("floor"), moment.floor ?? "");
    say(this.part("cost"), moment.cost);
    say(this.part("caveats"), moment.caveats.join(" "));
    this.panels.show(moment, this.data.palettes);
    this.table();
  }

  cards(cards) {
    const row = this.part("figures");
    while (row.children.length > cards.length) row.lastChild.remove();
    while (row.children.length < cards.length) {
      const card = element("div", "lab-card");
      card.append(element("div", "lab-card-label"), element("div", "lab-card-value"), element("div", "lab-card-beside"));
      row.append(card);
    }
    cards.forEach((card, i) => {
      const [label, value, beside] = row.children[i].children;
      say(label, card.label);
      say(value, card.value);
      say(beside, card.beside);
    });
  }

  // The numbers that are drawn, newest first; filled only while they are looked at.
  table() {
    const details = this.part("data");
    const lines = this.panels.lines;
    details.hidden = this.data.url === null || !lines.length; // of a run that is over the page shows them all itself
    if (!details.open || details.hidden) return;
    const seconds = [...lines[0].x].reverse().slice(0, TABLE_S);
    const table = element("table");
    table.append(element("thead"), element("tbody"));
    table.tHead.append(cells("th", ["second", ...lines.map((line) => `${line.name}, ${line.unit}`)]));
    const values = (at) => lines.map((line) => told(line.y[line.x.indexOf(at)], ""));
    table.tBodies[0].append(...seconds.map((at) => cells("td", [at, ...values(at)])));
    details.querySelector("table").replaceWith(table);
  }
}

function element(tag, name = "") {
  const node = document.createElement(tag);
  node.className = name;
  return node;
}

function cells(tag, texts) {
  const row = element("tr");
  row.append(...texts.map((text) => Object.assign(element(tag), { textContent: text })));
  return row;
}

// Only what has changed is written: each write is laid out and painted anew.
function say(node, text) {
  if (node.said === text) return;
  node.said = text;
  node.textContent = text;
}

function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
