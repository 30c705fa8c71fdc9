// Asks the dashboard every few seconds whether the lab's state is still the one that the page was built for, and has the
// page rerun only when it is not. A hidden tab asks nothing.

const EVERY_MS = 3000;
const watches = new WeakMap(); // node → Watch

export default function ({ data, parentElement, setTriggerValue }) {
  const node = parentElement.querySelector(".lab-watch");
  if (!watches.has(node)) watches.set(node, new Watch());
  watches.get(node).follow(data, setTriggerValue);
  return () => {
    watches.get(node)?.close();
    watches.delete(node);
  };
}

class Watch {
  constructor() {
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
  }

  async ask() {
    if (document.hidden) return;
    const { token, url } = this.data;
    const found = await fetch(url, { cache: "no-store" }).then((answer) => answer.json(), () => null);
    const now = found?.token;
    if (!now || now === token || now === this.told || token !== this.data.token) return;
    this.told = now;
    this.trigger("changed", now);
  }
}
