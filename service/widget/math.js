// One head of self-attention in float64, step by step: the same arrays as the service's own tutor, by the same ids.

/** @typedef {number[][]} Matrix */
/**
 * @typedef {object} Problem
 * @property {Matrix} inputs embeddings, one row per token
 * @property {{query: Matrix, key: Matrix, value: Matrix}} projections
 * @property {boolean} [is_causal] row i sees columns 0..i only
 * @property {number|null} [scale] factor of the scores; null or absent for 1/sqrt(d_k)
 * @property {string[]} [labels] a word per token
 */

export const transposed = (a) => a[0].map((_, column) => a.map((row) => row[column]));

export const dot = (a, b) => a.reduce((sum, number, i) => sum + number * b[i], 0);

export function product(a, b) {
  const columns = transposed(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
}

const each = (a, change) => a.map((row, i) => row.map((number, j) => change(number, i, j)));

/** What raw scores are multiplied by. */
export const factorOf = (problem) => problem.scale ?? 1 / Math.sqrt(problem.projections.query[0].length);

/** Whether row i may look at column j. */
export const sees = (problem, i, j) => !problem.is_causal || j <= i;

/** The step whose array the softmax is taken of. */
export const lastScores = (problem) => (problem.is_causal ? "masked_scores" : "scaled_scores");

/** How each step is computed from those before it. */
const COMPUTE = {
  query: ({ inputs, projections }) => product(inputs, projections.query),
  key: ({ inputs, projections }) => product(inputs, projections.key),
  value: ({ inputs, projections }) => product(inputs, projections.value),
  raw_scores: (_, { query, key }) => product(query, transposed(key)),
  scaled_scores: (problem, { raw_scores }) => each(raw_scores, (score) => score * factorOf(problem)),
  masked_scores: (problem, { scaled_scores }) =>
    each(scaled_scores, (score, i, j) => (sees(problem, i, j) ? score : -Infinity)),
  softmax_max: (problem, values) => values[lastScores(problem)].map((row) => [Math.max(...row)]),
  softmax_exp: (problem, values) =>
    each(values[lastScores(problem)], (score, i) => Math.exp(score - values.softmax_max[i][0])),
  softmax_sum: (_, { softmax_exp }) => softmax_exp.map((row) => [row.reduce((a, b) => a + b, 0)]),
  weights: (_, { softmax_exp, softmax_sum }) => each(softmax_exp, (exp, i) => exp / softmax_sum[i][0]),
  weighted_values: (_, { weights, value }) =>
    weights.map((row) => row.map((weight, j) => value[j].map((number) => weight * number))),
  outputs: (_, { weights, value }) => product(weights, value),
};

/** Ids of the problem's steps, in order: all, but `masked_scores` only where something is masked. */
export const stepsOf = (problem) =>
  Object.keys(COMPUTE).filter((step) => problem.is_causal || step !== "masked_scores");

/** An array per step. Never rounded: what is printed is rounded when it is printed. */
export function work(problem) {
  const values = {};
  for (const step of stepsOf(problem)) values[step] = COMPUTE[step](problem, values);
  return values;
}
