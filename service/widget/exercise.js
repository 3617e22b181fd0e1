// Exercise: numbers to be worked by hand, graded by the service cell by cell, with hints that give away little by little.

import { Failure } from "./api.js";
import { button, make, plural, uniqueId } from "./dom.js";
import { formula } from "./mathml.js";
import { VERDICTS, markInput, unmark } from "./marks.js";
import { Plan } from "./plan.js";
import { STEPS } from "./steps.js";
import { drawTable, formulaBox, inputTable } from "./tables.js";

/** Levels of exercises, by id, from one number to two heads; those of a whiteboard have the whole recipe. */
export const LEVELS = {
  "dot-product": "One dot product",
  scores: "Scores",
  scaling: "Scaling",
  softmax: "Softmax",
  mixing: "Mixing the values",
  recipe: "The whole recipe",
  causal: "The recipe, causal",
  "two-heads": "Two heads",
};

export const WHOLE = ["recipe", "causal", "two-heads"];

const GIVEN_PROJECTIONS = { query: "w_query", key: "w_key", value: "w_value" };

const numbered = (count) => Array.from({ length: count }, (_, i) => String(i + 1));

export class Exercise {
  /**
   * @param {{printer: import("./numbers.js").Printer, emit: (name: string, detail: object) => void,
   *          api: import("./api.js").Api, request: object, fixed: {level: boolean, seed: boolean}}} options
   *        request: what is asked of the service; fixed: what the learner may not change
   */
  constructor({ printer, emit, api, request, fixed }) {
    Object.assign(this, { printer, emit, api, request, fixed });
    this.status = make("p", { className: "status", role: "status" });
    this.alert = make("div", { className: "problem", role: "alert" });
    this.body = make("div", { className: "body" });
    this.root = make("section", { className: "exercise", "aria-label": "Exercise" });
    this.root.append(...(fixed.level ? [] : [this.chooser()]), this.body, this.alert, this.keyField());
    this.body.append(this.status);
  }

  // --- Asking for an exercise

  chooser() {
    const known = Object.entries(LEVELS).filter(([id]) => this.request.mode !== "whiteboard" || WHOLE.includes(id));
    const level = make("select", { id: uniqueId("level") }, ...known.map(([id, text]) =>
      make("option", { value: id, selected: id === "recipe" }, text)));
    level.addEventListener("change", () => {
      this.request = { ...this.request, level: level.value };
      this.start();
    });
    const label = make("label", { htmlFor: level.id }, "Level");
    return make("div", { className: "controls" }, make("div", { className: "pair" }, label, level));
  }

  /** Get an exercise and show it; answers whether there is one. */
  async start() {
    this.status.replaceChildren("Asking for an exercise …");
    return this.attempt(async () => {
      this.show(await this.api.post("v1/exercises", this.request));
      this.status.replaceChildren();
      return true;
    });
  }

  /** Do what may fail; a failure is told. */
  async attempt(work) {
    this.alert.replaceChildren();
    try {
      return await work();
    } catch (error) {
      const known = error instanceof Failure;
      if (!known) console.error(error);
      const [title, detail] = known ? [error.title, error.message] : ["This page has a bug", String(error)];
      this.alert.replaceChildren(make("strong", {}, title), detail);
      this.status.replaceChildren();
      this.key.hidden = ![401, 403].includes(error.status);
      this.emit("attention-error", { title, detail });
      return false;
    }
  }

  keyField() {
    const input = make("input", { type: "password", id: uniqueId("key"), autocomplete: "off" });
    const send = button("Use this key", () => {
      this.api.key = input.value.trim();
      this.key.hidden = true;
      if (!this.exercise) this.start();
    });
    const label = make("label", { htmlFor: input.id }, "API key");
    this.key = make("div", { className: "controls", hidden: true }, label, input, send);
    return this.key;
  }

  // --- The exercise on the screen

  show(exercise) {
    this.exercise = exercise;
    this.fields = new Map(); // by step: one `inputTable` per block
    this.cards = new Map(); // by step: where verdicts and hints go
    this.plan = exercise.cards ? new Plan(exercise.cards, (message) => this.status.replaceChildren(message)) : null;
    this.feedback = make("div", { className: "feedback" });
    this.hint = make("div", { className: "hints", role: "status" });
    const form = make("form", { noValidate: true }, this.givens(),
      ...(this.plan ? [this.plan.root] : exercise.steps.map((step) => this.stepCard(step))), this.actions());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.grade();
    });
    this.heading = make("h2", { tabIndex: -1 }, exercise.title);
    this.body.replaceChildren(this.heading, make("p", { className: "instructions" }, exercise.instructions), form,
      this.status, this.hint, this.feedback);
  }

  givens() {
    const { inputs, projections, given, labels } = this.exercise;
    const sheets = [];
    const width = (matrix) => numbered(matrix[0].length);
    if (inputs) sheets.push({ name: "inputs", values: inputs, rows: labels, columns: width(inputs) });
    for (const [name, matrix] of Object.entries(projections ?? {})) {
      sheets.push({ name: GIVEN_PROJECTIONS[name], values: matrix, rows: numbered(matrix.length), columns: width(matrix) });
    }
    for (const [step, array] of Object.entries(given ?? {})) {
      for (const { values, words } of blocks(array, step, labels, this.exercise.num_heads)) {
        const columns = values[0].length === labels.length && tokensAcross(step) ? labels : width(values);
        sheets.push({ name: step, values, rows: labels.slice(0, values.length), columns, caption: words });
      }
    }
    const box = make("div", { className: "card given" }, make("h3", {}, "Given"),
      make("div", { className: "flow" }, ...sheets.map((sheet) => drawTable(sheet, this.printer).root)));
    box.hidden = !sheets.length;
    return box;
  }

  stepCard({ id, title, formula: latex, shape, row_labels: rows, column_labels: columns }) {
    const tables = blocksOf(shape, id, this.exercise.labels, this.exercise.num_heads).map((block) => {
      const label = (row, column) =>
        `${title}${block.words ? `, ${block.words}` : ""}: row ${row + 1} “${rows?.[row] ?? row + 1}”, column ${columnOf(columns, column)}`;
      const sheet = { name: id, label, caption: block.words, rows: rows ?? numbered(block.rows),
        columns: (columns ?? numbered(block.columns)).map((name) => name || "1") };
      return inputTable(sheet, (row, column, input) => unmark(input));
    });
    this.fields.set(id, { shape, tables });
    const note = make("p", { className: "note" });
    const verdict = make("span", { className: "verdict" });
    this.cards.set(id, { note, verdict });
    return make("fieldset", { className: "card step" }, make("legend", {}, title),
      latex ? formulaBox(formula(latex)) : null, // a whiteboard prompts no rules
      make("div", { className: "flow" }, ...tables.map(({ root }) => root)), verdict, note);
  }

  actions() {
    const check = make("button", { type: "submit", className: "primary" }, this.plan ? "Check the plan" : "Check");
    const buttons = [check, button("Hint", () => this.showHint(1))];
    if (!this.plan) buttons.push(button("Clear the marks", () => this.clearMarks()));
    if (!this.fixed.seed) buttons.push(button("New numbers", () => this.start().then(() => this.heading.focus())));
    return make("div", { className: "row" }, ...buttons);
  }

  get answers() {
    if (this.plan) return { plan: this.plan.answer };
    const answers = {};
    for (const [step, { shape, tables }] of this.fields) {
      const found = tables.map(({ inputs }) => inputs.map((line) => line.map(({ value }) => value.trim() || null)));
      answers[step] = shape.length > 2 ? found : found[0];
    }
    return answers;
  }

  // --- Grading

  async grade() {
    this.status.replaceChildren("Checking …");
    const exercise = this.exercise.exercise;
    const { answers } = this;
    await this.attempt(async () => {
      const graded = await this.api.post("v1/exercises/grade", { exercise, answers });
      this.clearMarks();
      for (const step of graded.steps ?? []) {
        if (step.id === "plan") this.plan?.mark(step.cells);
        else this.mark(step);
      }
      await this.tell(graded);
      const misconceptions = (graded.misconceptions ?? []).map(({ id }) => id);
      const { seed, level, mode } = this.exercise;
      this.emit("attention-graded", { score: graded.score, misconceptions, exercise, answers, seed, level, mode });
    });
  }

  mark({ id, correct, cells, credit, carried_forward: carried, note }) {
    const card = this.cards.get(id);
    const fields = this.fields.get(id);
    if (!card || !fields) return;
    const [icon] = correct ? VERDICTS.ok : VERDICTS.wrong;
    const partly = credit > 0 ? ` Not all right yet: ${percent(credit)} of the credit` : " Not right yet";
    card.verdict.replaceChildren(make("span", { "aria-hidden": "true" }, icon), correct ? " All right" : partly);
    card.verdict.className = `verdict ${correct ? "ok" : "wrong"}`;
    const told = [carried ? "It follows from your earlier numbers, so it counts as right." : "", note ?? ""];
    card.note.replaceChildren(told.filter(Boolean).join(" "));
    const verdicts = fields.shape.length > 2 ? cells : [cells];
    fields.tables.forEach(({ inputs }, block) => inputs.forEach((line, row) => line.forEach((input, column) => {
      const verdict = verdicts?.[block]?.[row]?.[column];
      if (verdict in VERDICTS) markInput(input, verdict);
    })));
  }

  clearMarks() {
    for (const { tables } of this.fields.values()) tables.forEach(({ inputs }) => inputs.flat().forEach(unmark));
    for (const { note, verdict } of this.cards.values()) {
      note.replaceChildren();
      verdict.replaceChildren();
      verdict.className = "verdict";
    }
    this.feedback.replaceChildren();
    this.status.replaceChildren();
  }

  /** The whole in words: the score, the misconceptions, how answers were read, and what comes next. */
  async tell({ score, misconceptions = [], ambiguous = [], read_as: readAs = {}, next, steps = [] }) {
    const counts = this.plan ? { all: 0 } : cellCounts(steps);
    const some = counts.all ? `: ${counts.ok} of ${plural(counts.all, "cell")} right` : "";
    this.status.replaceChildren(`Score ${percent(score)}${some}.`);
    const found = misconceptions.map(({ title, text, remedy }) => make("li", { className: "misconception" },
      make("strong", {}, title), make("p", {}, text), remedy ? make("p", { className: "remedy" }, remedy) : null));
    const parts = [];
    const planNote = this.plan && steps.find(({ id }) => id === "plan");
    if (planNote?.note) parts.push(make("p", {}, planNote.note));
    if (found.length) {
      parts.push(make("h3", {}, found.length === 1 ? "What may have happened" : "What may have happened, in order"),
        make("ul", { className: "misconceptions" }, ...found));
    }
    for (const group of await this.titlesOf(ambiguous)) {
      parts.push(make("p", {}, "These numbers do not tell which of these it was:"),
        make("ul", { className: "maybe" }, ...group.map((title) => make("li", {}, title))));
    }
    const lines = this.readings(readAs);
    if (lines.length) parts.push(make("p", { className: "hint" }, `Read as: ${lines.join("; ")}.`));
    if (next) parts.push(this.onward(next));
    if (score === 1 && !next) parts.push(make("p", { className: "well" }, "All right. Well done."));
    this.feedback.replaceChildren(...(parts.length ? [make("div", { className: "card" }, ...parts)] : []));
  }

  /** The titles of mistakes that cannot be told apart, group by group; their ids where titles cannot be had. */
  async titlesOf(groups) {
    if (!groups.length) return [];
    const known = await this.api.get("v1/misconceptions").catch(() => ({ misconceptions: [] }));
    const titles = new Map(known.misconceptions.map(({ id, title }) => [id, title]));
    return groups.map((ids) => ids.map((id) => titles.get(id) ?? id));
  }

  onward(next) {
    return button("Go on to the numbers", () => {
      this.show(next);
      this.status.replaceChildren();
      this.heading.focus();
    }, "primary");
  }

  /** Where what was typed is not the number as it was read: a decimal comma, a fraction. */
  readings(readAs) {
    const lines = [];
    for (const [step, { shape, tables }] of this.fields) {
      const read = shape.length > 2 ? readAs[step] : [readAs[step]];
      tables.forEach(({ inputs }, block) => inputs.forEach((line, row) => line.forEach((input, column) => {
        const number = read?.[block]?.[row]?.[column];
        const typed = input.value.trim();
        if (typeof number !== "number" || Number(typed) === number) return;
        lines.push(`“${typed}” is ${this.printer.print(Number(number.toPrecision(6)), undefined)}`);
      })));
    }
    return lines.slice(0, 6);
  }

  // --- Hints

  async showHint(level, step) {
    await this.attempt(async () => {
      const body = { exercise: this.exercise.exercise, answers: this.answers, level, ...(step && { step }) };
      const hint = await this.api.post("v1/exercises/hint", body);
      const more = hint.step && { 1: "Tell me the rule", 2: "Show me one number" }[level];
      const next = more ? button(more, () => this.showHint(level + 1, hint.step)) : null;
      this.hint.replaceChildren(make("div", { className: "card hint-card" },
        make("p", {}, hint.step ? make("strong", {}, `Hint ${level} of 3: `) : null, hint.text),
        hint.formula ? formulaBox(formula(hint.formula)) : null, next));
      if (level > 1) (next ?? this.hint.firstChild).focus?.();
    });
  }
}

// --- Blocks: arrays of more than two axes are one table per index of the axes before the last two

const tokensAcross = (step) => ["raw_scores", "scaled_scores", "masked_scores", "softmax_exp", "weights"].includes(step);

function blockWords(step, index, labels, heads) {
  if (heads > 1) return `head ${index + 1}`;
  return step === "weighted_values" ? labels[index] : `part ${index + 1}`;
}

function blocks(array, step, labels, heads) {
  if (!Array.isArray(array[0][0])) return [{ values: array }];
  return array.map((values, i) => ({ values, words: `${STEPS[step]?.name ?? step}, ${blockWords(step, i, labels, heads)}` }));
}

function blocksOf(shape, step, labels, heads) {
  const [rows, columns] = shape.slice(-2);
  if (shape.length < 3) return [{ rows, columns }];
  return numbered(shape[0]).map((_, i) => ({ rows, columns, words: blockWords(step, i, labels, heads) }));
}

const columnOf = (columns, column) =>
  !columns?.[column] || columns[column] === String(column + 1) ? String(column + 1) : `${column + 1} “${columns[column]}”`;

const percent = (share) => `${Math.round(share * 100)} %`;

function cellCounts(steps) {
  const cells = steps.flatMap(({ cells: found }) => (found ?? []).flat(3)).filter((verdict) => verdict in VERDICTS);
  return { ok: cells.filter((verdict) => verdict === "ok").length, all: cells.length };
}
