// What is on the stage in each step: the tables it is made from, the table it makes, and where each number comes from.

import { factorOf, lastScores, sees } from "./math.js";

/**
 * @typedef {object} Sheet a table to be drawn
 * @property {string} name a step's id, or a given's
 * @property {number[][]} values
 * @property {string[]} rows
 * @property {string[]} columns
 * @property {((row: number, column: number) => boolean)|null} [hidden] whether a mask made a cell what it is
 */
/**
 * @typedef {object} Origin where one number comes from
 * @property {[string, number|null, number|null][]} marks sheets with the row, the column or the cell that it is made of
 * @property {string} place what it is called
 * @property {string} sum how it is computed, written out
 * @property {number} value
 */
/**
 * @typedef {object} Scene
 * @property {Sheet[]} operands
 * @property {Sheet} result
 * @property {(row: number, column: number) => Origin} origin
 */

const WEIGHTS = { query: ["w_query", "Q"], key: ["w_key", "K"], value: ["w_value", "V"] };

const numbered = (row) => row.map((_, i) => String(i + 1));

/** The tables of a problem that has been worked, by name. */
function sheetsOf({ problem, values, labels, columns }) {
  const { inputs, projections } = problem;
  const given = { inputs, w_query: projections.query, w_key: projections.key, w_value: projections.value };
  const tokensByTokens = new Set(["raw_scores", "scaled_scores", "masked_scores", "softmax_exp", "weights"]);
  return (name) => {
    const found = given[name] ?? values[name];
    const names = name.startsWith("w_") ? columns : labels;
    const across = name === "inputs" ? columns : tokensByTokens.has(name) ? labels : numbered(found[0]);
    const hidden = ["softmax_exp", "weights"].includes(name) ? (i, j) => !sees(problem, i, j) : null;
    return { name, values: found, rows: names, columns: across, hidden };
  };
}

/** @returns {Scene} */
function projecting(step, context) {
  const [matrix, letter] = WEIGHTS[step];
  const { problem, values, labels, printer, sheet } = context;
  const weights = problem.projections[step];
  return {
    operands: [sheet("inputs"), sheet(matrix)],
    result: sheet(step),
    origin: (row, column) => ({
      marks: [["inputs", row, null], [matrix, null, column]],
      place: `${letter}[${labels[row]}, ${column + 1}]`,
      sum: products(printer, problem.inputs[row], weights.map((line) => line[column])),
      value: values[step][row][column],
    }),
  };
}

function products(printer, left, right) {
  return left.map((number, i) => `${printer.within(number)}·${printer.within(right[i])}`).join(" + ");
}

/** Scenes of all steps, by id; each takes what has been worked and answers a `Scene`. */
const SCENES = {
  query: (context) => projecting("query", context),
  key: (context) => projecting("key", context),
  value: (context) => projecting("value", context),

  raw_scores: ({ values, labels, printer, sheet }) => ({
    operands: [sheet("query"), sheet("key")],
    result: sheet("raw_scores"),
    origin: (row, column) => ({
      marks: [["query", row, null], ["key", column, null]],
      place: `S[${labels[row]}, ${labels[column]}]`,
      sum: products(printer, values.query[row], values.key[column]),
      value: values.raw_scores[row][column],
    }),
  }),

  scaled_scores: ({ problem, values, labels, printer, sheet }) => ({
    operands: [sheet("raw_scores")],
    result: sheet("scaled_scores"),
    origin: (row, column) => {
      const score = printer.print(values.raw_scores[row][column]);
      const width = problem.projections.query[0].length;
      const byRoot = problem.scale === null || problem.scale === undefined;
      return {
        marks: [["raw_scores", row, column]],
        place: `T[${labels[row]}, ${labels[column]}]`,
        sum: byRoot ? `${score} ÷ √${width}` : `${score} × ${printer.print(factorOf(problem))}`,
        value: values.scaled_scores[row][column],
      };
    },
  }),

  masked_scores: ({ problem, values, labels, printer, sheet }) => ({
    operands: [sheet("scaled_scores")],
    result: sheet("masked_scores"),
    origin: (row, column) => ({
      marks: [["scaled_scores", row, column]],
      place: `M[${labels[row]}, ${labels[column]}]`,
      sum: sees(problem, row, column)
        ? `${printer.print(values.scaled_scores[row][column])}, as it was: “${labels[row]}” may see “${labels[column]}”`
        : `masked: “${labels[column]}” comes after “${labels[row]}”`,
      value: values.masked_scores[row][column],
    }),
  }),

  softmax_max: ({ problem, values, labels, printer, sheet }) => ({
    operands: [sheet(lastScores(problem))],
    result: sheet("softmax_max"),
    origin: (row) => ({
      marks: [[lastScores(problem), row, null]],
      place: `m[${labels[row]}]`,
      sum: `the largest of ${values[lastScores(problem)][row].map((score) => printer.print(score)).join("; ")}`,
      value: values.softmax_max[row][0],
    }),
  }),

  softmax_exp: ({ problem, values, labels, printer, sheet }) => ({
    operands: [sheet(lastScores(problem)), sheet("softmax_max")],
    result: sheet("softmax_exp"),
    origin: (row, column) => {
      const score = printer.print(values[lastScores(problem)][row][column]);
      return {
        marks: [[lastScores(problem), row, column], ["softmax_max", row, 0]],
        place: `E[${labels[row]}, ${labels[column]}]`,
        sum: `e to the power of ${score} − ${printer.within(values.softmax_max[row][0])}`,
        value: values.softmax_exp[row][column],
      };
    },
  }),

  softmax_sum: ({ values, labels, printer, sheet }) => ({
    operands: [sheet("softmax_exp")],
    result: sheet("softmax_sum"),
    origin: (row) => ({
      marks: [["softmax_exp", row, null]],
      place: `z[${labels[row]}]`,
      sum: values.softmax_exp[row].map((exp) => printer.print(exp)).join(" + "),
      value: values.softmax_sum[row][0],
    }),
  }),

  weights: ({ values, labels, printer, sheet }) => ({
    operands: [sheet("softmax_exp"), sheet("softmax_sum")],
    result: sheet("weights"),
    origin: (row, column) => ({
      marks: [["softmax_exp", row, column], ["softmax_sum", row, 0]],
      place: `A[${labels[row]}, ${labels[column]}]`,
      sum: `${printer.print(values.softmax_exp[row][column])} ÷ ${printer.print(values.softmax_sum[row][0])}`,
      value: values.weights[row][column],
    }),
  }),

  weighted_values: ({ values, labels, printer, token, sheet }) => ({
    operands: [sheet("weights"), sheet("value")],
    result: { ...sheet("value"), name: "weighted_values", values: values.weighted_values[token] },
    origin: (row, column) => ({
      marks: [["weights", token, row], ["value", row, column]],
      place: `${labels[token]} takes of ${labels[row]}, ${column + 1}`,
      sum: `${printer.print(values.weights[token][row])}·${printer.within(values.value[row][column])}`,
      value: values.weighted_values[token][row][column],
    }),
  }),

  outputs: ({ values, labels, printer, sheet }) => ({
    operands: [sheet("weights"), sheet("value")],
    result: sheet("outputs"),
    origin: (row, column) => ({
      marks: [["weights", row, null], ["value", null, column]],
      place: `O[${labels[row]}, ${column + 1}]`,
      sum: products(printer, values.weights[row], values.value.map((line) => line[column])),
      value: values.outputs[row][column],
    }),
  }),
};

/**
 * The scene of a step.
 * @param {string} step
 * @param {{problem: object, values: object, labels: string[], columns: string[], printer: object, token: number}} context
 * @returns {Scene}
 */
export const sceneOf = (step, context) => SCENES[step]({ ...context, sheet: sheetsOf(context) });

/** One sentence about a row of numbers that people can read, or nothing. */
export function finding(step, { values, labels, printer, token }) {
  if (step !== "weights") return "";
  const row = values.weights[token];
  const most = row.indexOf(Math.max(...row));
  const whom = most === token ? "itself" : `“${labels[most]}”`;
  return `“${labels[token]}” looks most at ${whom}: ${printer.print(row[most])} of its attention.`;
}
