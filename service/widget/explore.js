// Explore: play with the numbers, walk through the steps, and see where each number comes from.

import { button, make, uniqueId } from "./dom.js";
import { LESSON } from "./lesson.js";
import { lastScores, stepsOf, work } from "./math.js";
import { formula } from "./mathml.js";
import { read } from "./numbers.js";
import { finding, sceneOf } from "./scenes.js";
import { STEPS } from "./steps.js";
import { drawTable, formulaBox, inputTable, makeWalkable } from "./tables.js";

const FIRST_TOKEN = "her"; // the lesson's riddle; the first token where there is none of that name

const OPERATORS = { query: "×", key: "×", value: "×", raw_scores: "·", outputs: "×", weighted_values: "×",
  softmax_exp: "−", weights: "÷" };

export class Explore {
  /**
   * @param {{printer: import("./numbers.js").Printer, emit: (name: string, detail: object) => void,
   *          problem?: import("./math.js").Problem}} options
   */
  constructor({ printer, emit, problem }) {
    this.printer = printer;
    this.emit = emit;
    this.given = problem ?? LESSON;
    this.begin();
    this.root = make("section", { className: "explore", "aria-label": "Explore self-attention" });
    this.root.append(this.controls(), this.stepper(), this.stage(), this.editor());
    this.show();
  }

  begin() {
    const { inputs, projections, labels, columns, is_causal: isCausal, scale } = structuredClone(this.given);
    this.problem = { inputs, projections, is_causal: Boolean(isCausal), scale: scale ?? null };
    this.ownScale = scale ?? null;
    this.labels = labels ?? inputs.map((_, i) => `t${i + 1}`);
    this.columns = columns ?? inputs[0].map((_, i) => String(i + 1));
    this.token = Math.max(0, this.labels.indexOf(FIRST_TOKEN));
    this.place = { row: this.token, column: 0 };
    this.step = "query";
  }

  // --- What there is to set

  controls() {
    const token = make("select", { id: uniqueId("token") },
      ...this.labels.map((label, i) => make("option", { value: String(i), selected: i === this.token }, label)));
    token.addEventListener("change", () => {
      this.token = Number(token.value);
      this.place = { row: this.step === "weighted_values" ? 0 : this.token, column: 0 };
      this.show();
    });
    this.tokenField = token;
    this.scaled = checkbox("Scale by √d", true, (on) => this.set({ scale: on ? this.ownScale : 1 }));
    this.causal = checkbox("Causal mask", this.problem.is_causal, (on) => this.set({ is_causal: on }));
    const label = make("label", { htmlFor: token.id }, "Follow");
    return make("div", { className: "controls", role: "group", "aria-label": "How to attend" },
      make("div", { className: "pair" }, label, token), this.scaled.root, this.causal.root);
  }

  set(change) {
    Object.assign(this.problem, change);
    if (!stepsOf(this.problem).includes(this.step)) this.step = "scaled_scores";
    this.show();
  }

  stepper() {
    this.slider = make("input", { type: "range", min: "0", step: "1", "aria-label": "Step of the recipe" });
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.previous = button("Previous", () => this.go(this.index - 1));
    this.next = button("Next", () => this.go(this.index + 1), "primary");
    this.ticks = make("div", { className: "ticks", "aria-hidden": "true" });
    return make("div", { className: "stepper" }, this.previous,
      make("div", { className: "slide" }, this.slider, this.ticks), this.next);
  }

  get steps() {
    return stepsOf(this.problem);
  }

  get index() {
    return this.steps.indexOf(this.step);
  }

  go(index) {
    const steps = this.steps;
    this.step = steps[Math.min(Math.max(index, 0), steps.length - 1)];
    this.place = { row: this.step === "weighted_values" ? 0 : this.token, column: 0 };
    this.show();
    this.emit("attention-step", { step: this.step, index: this.index, token: this.labels[this.token] });
  }

  // --- The stage

  stage() {
    this.title = make("h2", {});
    this.formula = make("div");
    this.about = make("p", {});
    this.tables = make("div", { className: "flow" });
    this.origin = make("p", { className: "origin", role: "status" });
    this.finding = make("p", { className: "finding" });
    return make("div", { className: "card" },
      make("div", { className: "headline" }, make("div", {}, this.title, this.about), this.formula),
      this.tables, this.origin, this.finding);
  }

  show() {
    this.values = work(this.problem);
    this.context = { problem: this.problem, values: this.values, labels: this.labels, columns: this.columns,
      printer: this.printer, token: this.token };
    this.scene = sceneOf(this.step, this.context);
    this.showStepper();
    const { title, latex, about } = STEPS[this.step];
    this.title.replaceChildren(`${this.index + 1}. ${title}`);
    this.about.replaceChildren(about);
    const scores = lastScores(this.problem) === "masked_scores" ? "M" : "T";
    // Behind a mask the softmax takes masked scores, and its formulae say so.
    const said = this.step.startsWith("softmax") ? latex.replaceAll("T_{ij}", `${scores}_{ij}`) : latex;
    this.formula.replaceChildren(formulaBox(formula(said)));
    this.finding.replaceChildren(finding(this.step, this.context));
    this.finding.hidden = !this.finding.textContent;
    this.showTables();
    this.pin(this.place.row, this.place.column);
  }

  showStepper() {
    const steps = this.steps;
    const index = this.index;
    this.slider.max = String(steps.length - 1);
    this.slider.value = String(index);
    this.slider.setAttribute("aria-valuetext", `${index + 1} of ${steps.length}: ${STEPS[this.step].title}`);
    this.ticks.replaceChildren(...steps.map((_, i) => make("span", { className: i <= index ? "passed" : "" })));
    // Not `disabled`: a button that has just been pressed would lose the focus.
    this.previous.setAttribute("aria-disabled", String(index === 0));
    this.next.setAttribute("aria-disabled", String(index === steps.length - 1));
  }

  showTables() {
    const { operands, result } = this.scene;
    this.drawn = new Map([...operands, result].map((sheet) => [sheet.name, drawTable(sheet, this.printer)]));
    const made = this.drawn.get(result.name);
    made.table.classList.add("made");
    makeWalkable(made, {
      enter: (row, column) => this.pin(row, column),
      over: (row, column) => this.tell(row, column),
      out: () => this.tell(this.place.row, this.place.column),
    });
    const parts = operands.flatMap(({ name }, i) => [...(i ? [sign(OPERATORS[this.step])] : []),
      this.drawn.get(name).root]);
    this.tables.replaceChildren(...parts, sign(operands.length > 1 ? "=" : "→"), made.root);
    this.markToken();
  }

  /** The rows of the followed token, in every table that has a row per token. */
  markToken() {
    for (const [name, { table }] of this.drawn) {
      if (name.startsWith("w_") || this.step === "weighted_values" && name !== "weights") continue;
      table.tBodies[0].rows[this.token].classList.add("followed");
    }
  }

  /** Stay at a cell: it is the one that the Tab key comes to. */
  pin(row, column) {
    const { cells } = this.drawn.get(this.scene.result.name);
    this.place = { row: Math.min(row, cells.length - 1), column: Math.min(column, cells[0].length - 1) };
    for (const cell of cells.flat()) cell.tabIndex = -1;
    cells[this.place.row][this.place.column].tabIndex = 0;
    this.tell(this.place.row, this.place.column);
  }

  /** Say where a cell's number comes from, and show it. */
  tell(row, column) {
    const { marks, place, sum, value } = this.scene.origin(row, column);
    for (const { table } of this.drawn.values()) {
      for (const cell of table.querySelectorAll(".source, .target")) cell.classList.remove("source", "target");
    }
    for (const [name, atRow, atColumn] of marks) {
      this.drawn.get(name).cells.forEach((line, i) => line.forEach((cell, j) => {
        if ((atRow ?? i) === i && (atColumn ?? j) === j) cell.classList.add("source");
      }));
    }
    this.drawn.get(this.scene.result.name).cells[row][column].classList.add("target");
    const result = value === -Infinity || sum.includes("as it was") ? "" : ` ${this.printer.result(value)}`;
    const told = `${place}: ${sum}${result}`;
    if (this.origin.textContent === told) return; // nothing new: no need to say it again
    this.origin.replaceChildren(make("strong", {}, `${place}:`), ` ${sum}`, make("strong", {}, result));
  }

  // --- The numbers

  editor() {
    this.fields = make("div", { className: "flow" });
    this.fault = make("p", { className: "hint", role: "status" });
    const again = button("Start over", () => {
      this.begin();
      this.tokenField.value = String(this.token);
      this.scaled.box.checked = true;
      this.causal.box.checked = this.problem.is_causal;
      this.fillEditor();
      this.show();
    });
    this.fillEditor();
    return make("details", {}, make("summary", {}, "Change the numbers"),
      make("div", { className: "inside" }, this.fields, this.fault, make("div", {}, again)));
  }

  fillEditor() {
    const { inputs, projections } = this.problem;
    const widths = (matrix) => matrix[0].map((_, i) => String(i + 1));
    this.fault.replaceChildren();
    this.fields.replaceChildren(
      this.editable("inputs", "embeddings", inputs, this.labels, this.columns),
      this.editable("w_query", "query weights", projections.query, this.columns, widths(projections.query)),
      this.editable("w_key", "key weights", projections.key, this.columns, widths(projections.key)),
      this.editable("w_value", "value weights", projections.value, this.columns, widths(projections.value)),
    );
  }

  editable(name, caption, matrix, rows, columns) {
    const label = (row, column) => `${caption}, row ${row + 1} “${rows[row]}”, column ${columnWords(columns, column)}`;
    const value = (row, column) => this.printer.print(matrix[row][column]);
    return inputTable({ name, caption, rows, columns, label, value }, (row, column, input) => {
      const number = read(input.value, this.printer.sign);
      const place = label(row, column);
      if (number === null) {
        input.setAttribute("aria-invalid", "true");
        this.fault.replaceChildren(`${place}: write a number such as ${this.printer.print(0.5)}. Until then the`
          + " number before it is used.");
        return;
      }
      input.removeAttribute("aria-invalid");
      this.fault.replaceChildren();
      matrix[row][column] = number;
      this.show();
    }).root;
  }
}

const columnWords = (columns, column) =>
  columns[column] === String(column + 1) ? columns[column] : `${column + 1} “${columns[column]}”`;

const sign = (text) => make("span", { className: "operator", "aria-hidden": "true" }, text);

function checkbox(text, checked, onChange) {
  const box = make("input", { type: "checkbox", checked });
  box.addEventListener("change", () => onChange(box.checked));
  return { box, root: make("label", { className: "check" }, box, text) };
}
