// Elements, made by script. Text goes in as text, never as markup.

/** An element with properties and children; `null` children are left out. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Text for ears only. */
export const unseen = (text) => make("span", { className: "unseen" }, text);

export function button(text, onClick, className = "quiet") {
  const element = make("button", { type: "button", className }, text);
  element.addEventListener("click", onClick);
  return element;
}

export const shape = (values) => `${values.length} × ${values[0].length}`;

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** A box that scrolls sideways in itself. It is a stop of the Tab key while it does, and while nothing inside is. */
export function scroller(label, child) {
  const box = make("div", { className: "scroll", role: "group", "aria-label": label }, child);
  const check = () => {
    if (box.scrollWidth > box.clientWidth && !box.querySelector("input, [tabindex]")) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };
  const observer = new ResizeObserver(check);
  observer.observe(box);
  observer.observe(child);
  return box;
}

let made = 0;

/** An id that no other element of this document has. */
export const uniqueId = (name) => `${name}-${(made += 1)}`;
