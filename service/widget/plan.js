// The plan of the whiteboard: which cards belong to the recipe, in which order, and of which shape each result is.

import { button, make, unseen } from "./dom.js";
import { markInput, placeMark, unmark } from "./marks.js";

export class Plan {
  /**
   * @param {{id: string, text: string}[]} cards
   * @param {(message: string) => void} say tells what has happened, for those who cannot see it
   */
  constructor(cards, say) {
    this.cards = cards;
    this.say = say;
    this.order = []; // ids of the chosen cards
    this.shapes = new Map(cards.map(({ id }) => [id, ["", ""]]));
    this.pool = make("ul", { className: "cards" });
    this.chosen = make("ol", { className: "cards chosen" });
    this.nothing = make("p", { className: "hint" }, "Nothing yet: add cards in the order in which you would work.");
    const box = (title, ...content) => make("div", { className: "pile" }, make("h3", {}, title), ...content);
    this.root = make("div", { className: "plan" },
      box("Cards", make("p", { className: "hint" }, "Some of them do not belong."), this.pool),
      box("Your plan", make("p", { className: "hint" }, "Beside each card goes the shape of its result: rows × columns."),
        this.nothing, this.chosen));
    this.draw();
  }

  /** What is graded: the order, and the shape of each card that has one. */
  get answer() {
    const shapes = this.order.map((id) => [id, this.shapes.get(id).map((text) => text.trim() || null)])
      .filter(([, pair]) => pair.some((text) => text !== null));
    return { order: [...this.order], shapes: Object.fromEntries(shapes) };
  }

  /** Show the verdicts: of each card's place, and of both numbers of its shape. They go with the next change. */
  mark({ order = [], shapes = {} } = {}) {
    [...this.chosen.children].forEach((item, place) => {
      if (order[place]) item.querySelector(".text").append(" ", placeMark(order[place]));
      item.querySelectorAll("input").forEach((input, side) => {
        const verdict = shapes[item.dataset.card]?.[side];
        if (verdict) markInput(input, verdict);
      });
    });
  }

  draw(focus) {
    const unused = this.cards.filter(({ id }) => !this.order.includes(id));
    this.pool.replaceChildren(...unused.map((card) => this.poolItem(card)));
    this.chosen.replaceChildren(...this.order.map((id, place) => this.planItem(this.card(id), place)));
    this.nothing.hidden = this.order.length > 0;
    if (focus) this.focusOn(...focus);
  }

  card(id) {
    return this.cards.find((card) => card.id === id);
  }

  poolItem({ id, text }) {
    const add = button("Add", () => this.add(id));
    add.append(unseen(` “${text}” to the plan`));
    return make("li", {}, make("span", { className: "text" }, text), add);
  }

  planItem({ id, text }, place) {
    const act = (label, name, wanted) => {
      const element = button(label, () => this[name](place));
      element.dataset.act = name;
      element.setAttribute("aria-label", `${wanted} “${text}”`);
      return element;
    };
    const up = act("↑", "up", "Move up");
    const down = act("↓", "down", "Move down");
    up.setAttribute("aria-disabled", String(place === 0));
    down.setAttribute("aria-disabled", String(place === this.order.length - 1));
    const item = make("li", {}, make("span", { className: "text" }, text), this.shapeFields(id, text),
      make("span", { className: "moves" }, up, down, act("Remove", "drop", "Remove")));
    item.dataset.card = id;
    return item;
  }

  shapeFields(id, text) {
    const field = (i, name) => {
      const input = make("input", { type: "text", inputMode: "numeric", autocomplete: "off", size: 2,
        value: this.shapes.get(id)[i], "aria-label": `${name} of “${text}”` });
      input.addEventListener("input", () => {
        this.shapes.get(id)[i] = input.value;
        unmark(input);
      });
      return make("span", { className: "side" }, input);
    };
    const times = make("span", { "aria-hidden": "true" }, "×");
    return make("span", { className: "shape" }, field(0, "Rows"), times, field(1, "Columns"));
  }

  add(id) {
    this.order.push(id);
    this.draw([id, "up"]);
    this.say(`Added as step ${this.order.length}.`);
  }

  up(place) {
    this.swap(place, place - 1, "up");
  }

  down(place) {
    this.swap(place, place + 1, "down");
  }

  drop(place) {
    this.order.splice(place, 1);
    const near = this.order[Math.min(place, this.order.length - 1)];
    this.draw(near ? [near, "drop"] : undefined);
    if (!near) this.pool.querySelector("button")?.focus();
    this.say("Taken out of the plan.");
  }

  swap(place, other, name) {
    if (!(other in this.order)) return;
    const id = this.order[place];
    [this.order[place], this.order[other]] = [this.order[other], this.order[place]];
    this.draw([id, name]);
    this.say(`Now step ${other + 1} of ${this.order.length}.`);
  }

  /** The card has moved, and the button that moved it keeps the focus. */
  focusOn(id, name) {
    const item = [...this.chosen.children].find(({ dataset }) => dataset.card === id);
    item?.querySelector(`[data-act="${name}"]`).focus();
  }
}
