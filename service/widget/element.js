// <self-attention>: the widget as a custom element. It needs no style and no script of the page around it.

import { Api } from "./api.js";
import { make } from "./dom.js";
import { Exercise, LEVELS, WHOLE } from "./exercise.js";
import { Explore } from "./explore.js";
import { Printer } from "./numbers.js";
import { sheet } from "./style.js";

const MODES = { explore: "Explore", exercise: "Exercise", whiteboard: "Whiteboard" };

/**
 * Attributes, all optional:
 *   mode      explore | exercise | whiteboard; absent: tabs let the learner choose, beginning with explore
 *   level     of exercises; absent: the learner chooses
 *   seed      of exercises; absent: new numbers each time
 *   decimals  of the numbers shown, 0..6
 *   theme     light | dark | auto, which follows the reader's settings
 *   lang      whose decimal sign numbers are printed with
 *   base      where the service is; absent: where this script came from
 * Property: `problem`, embeddings and projections to explore instead of the example's.
 * Events, composed and bubbling: attention-ready, attention-step, attention-graded, attention-error.
 */
export class SelfAttention extends HTMLElement {
  static observedAttributes = ["mode", "level", "seed", "decimals", "lang", "base"];

  #views = new Map();
  #mode = "";
  #problem;
  #pending = false;

  constructor() {
    super();
    this.attachShadow({ mode: "open" }).adoptedStyleSheets = [sheet];
  }

  get problem() {
    return this.#problem;
  }

  set problem(problem) {
    this.#problem = problem;
    this.#buildSoon();
  }

  connectedCallback() {
    if (Object.hasOwn(this, "problem")) { // set before the browser knew this element
      const { problem } = this;
      delete this.problem;
      this.problem = problem;
    }
    this.#buildSoon();
  }

  attributeChangedCallback(_, before, now) {
    if (before !== now) this.#buildSoon();
  }

  /** Build once for any number of attributes that change at the same time. */
  #buildSoon() {
    if (!this.isConnected || this.#pending) return;
    this.#pending = true;
    queueMicrotask(() => {
      this.#pending = false;
      if (this.isConnected) this.#build();
    });
  }

  #build() {
    this.#views.clear();
    const given = this.getAttribute("mode");
    this.panel = make("div", { className: "panel" });
    const frame = make("div", { className: "widget", lang: "en" });
    if (!(given in MODES)) frame.append(this.#chooser());
    frame.append(this.panel);
    this.shadowRoot.replaceChildren(frame);
    this.#open(given in MODES ? given : "explore").then(() => this.#emit("attention-ready", { mode: this.#mode }));
  }

  #chooser() {
    const buttons = Object.entries(MODES).map(([mode, text]) => {
      const element = make("button", { type: "button", className: "tab" }, text);
      element.dataset.mode = mode;
      element.addEventListener("click", () => this.#open(mode));
      return element;
    });
    this.tabs = buttons;
    return make("div", { className: "tabs", role: "group", "aria-label": "What to do" }, ...buttons);
  }

  /** Show a mode; what was done in another one stays as it is. */
  async #open(mode) {
    this.#mode = mode;
    for (const tab of this.tabs ?? []) tab.setAttribute("aria-pressed", String(tab.dataset.mode === mode));
    for (const [name, view] of this.#views) view.root.hidden = name !== mode;
    if (this.#views.has(mode)) return;
    const view = mode === "explore" ? this.#explore() : this.#exercise(mode);
    this.#views.set(mode, view);
    this.panel.append(view.root);
    if (mode !== "explore") await view.start();
  }

  #explore() {
    return new Explore({ printer: this.#printer(3), emit: (...event) => this.#emit(...event), problem: this.#problem });
  }

  #exercise(mode) {
    const [level, seed, decimals] = ["level", "seed", "decimals"].map((name) => this.getAttribute(name));
    const request = { mode: mode === "whiteboard" ? "whiteboard" : "guided" };
    if (mode === "whiteboard" ? WHOLE.includes(level) : level in LEVELS) request.level = level;
    if (isWhole(seed)) request.seed = Number(seed);
    if (isWhole(decimals)) request.decimals = Number(decimals);
    const fixed = { level: "level" in request, seed: "seed" in request };
    const api = new Api(new URL(this.getAttribute("base") ?? "../../", this.hasAttribute("base") ? document.baseURI
      : import.meta.url));
    return new Exercise({ printer: this.#printer(6), emit: (...event) => this.#emit(...event), api, request, fixed });
  }

  #printer(decimals) {
    const given = this.getAttribute("decimals");
    return new Printer(isWhole(given) ? Math.min(Number(given), 6) : decimals, this.lang || document.documentElement.lang);
  }

  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }
}

const isWhole = (text) => /^\d{1,16}$/.test(text ?? "");

if (!customElements.get("self-attention")) customElements.define("self-attention", SelfAttention);
