// Asks the dashboard every few seconds whether something is still what the page was built for, and has the page rerun only
// when it is not. How far a run is, where the answer tells it, is shown in place. A hidden tab asks nothing.

const EVERY_MS = 3000;
const watches = new WeakMap(); // node → Watch

export default function ({ data, parentElement, setTriggerValue }) {
  const node = parentElement.querySelector(".lab-watch");
  if (!watches.has(node)) watches.set(node, new Watch(node));
  watches.get(node).follow(data, setTriggerValue);
  return () => {
    watches.get(node)?.close();
    watches.delete(node);
  };
}

class Watch {
  constructor(node) {
    this.node = node;
    this.timer = setInterval(() => this.ask(), EVERY_MS);
    this.woken = () => this.ask();
    document.addEventListener("visibilitychange", this.woken);
  }

  close() {
    clearInterval(this.timer);
    document.removeEventListener("visibilitychange", this.woken);
  }

  follow(data, trigger) {
    [this.data, this.trigger, this.told] = [data, trigger, null];
    this.show(data);
  }

  show({ state, phase, progress }) {
    this.node.hidden = state === undefined;
    if (this.node.hidden) return;
    const [badge, words, bar] = this.node.children;
    badge.textContent = state[0];
    badge.dataset.colour = state[1];
    words.textContent = phase;
    bar.value = progress ?? 0;
  }

  async ask() {
    if (document.hidden) return;
    const { token, url } = this.data;
    const found = await fetch(url, { cache: "no-store" }).then((answer) => answer.json()).catch(() => null);
    if (!found?.token || token !== this.data.token) return; // no answer, or the page was rerun meanwhile
    this.show(found);
    if (found.token === token || found.token === this.told) return;
    this.told = found.token;
    this.trigger("changed", found.token);
  }
}
