// Tells the page that an arrow key was pressed: to the right "next", to the left "back". Not while somebody types or
// moves through choices, which have arrow keys of their own.

const OWN = "input, textarea, select, canvas, [role=radiogroup], [role=tablist], [role=slider], [role=listbox], [contenteditable=true]";

export default function ({ setTriggerValue }) {
  const pressed = (event) => {
    const way = { ArrowRight: "next", ArrowLeft: "back" }[event.key];
    if (!way || event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.(OWN)) return;
    event.preventDefault();
    setTriggerValue(way, event.timeStamp);
  };
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}
