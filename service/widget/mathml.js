// Formulae as MathML, which browsers draw and screen readers speak, with LaTeX as annotation for whoever copies them.

import { make } from "./dom.js";

const SPACE = "http://www.w3.org/1998/Math/MathML";
const GAP = "\u00a0"; // plain spaces at the ends of text are dropped

function node(tag, ...children) {
  const element = document.createElementNS(SPACE, tag);
  element.append(...children);
  return element;
}

const i = (name) => node("mi", name);
const o = (sign) => node("mo", sign);
const row = (...parts) => node("mrow", ...parts);
const sub = (base, below) => node("msub", base, below);
const sup = (base, above) => node("msup", base, above);
const over = (top, bottom) => node("mfrac", top, bottom);
const text = (words) => node("mtext", words);
const ij = (name) => sub(i(name), row(i("i"), i("j")));
const at = (name, index) => sub(i(name), i(index));

function cases(...rows) {
  const lines = rows.map((cells) => node("mtr", ...cells.map((cell) => node("mtd", cell))));
  return row(o("{"), node("mtable", ...lines));
}

/** Symbols of arrays, by step or by name of what is given. */
const SYMBOLS = {
  inputs: () => i("X"),
  w_query: () => at("W", "Q"),
  w_key: () => at("W", "K"),
  w_value: () => at("W", "V"),
  query: () => i("Q"),
  key: () => i("K"),
  value: () => i("V"),
  raw_scores: () => i("S"),
  scaled_scores: () => i("T"),
  masked_scores: () => i("M"),
  softmax_max: () => i("m"),
  softmax_exp: () => i("E"),
  softmax_sum: () => i("z"),
  weights: () => i("A"),
  weighted_values: () => row(ij("A"), at("V", "j")),
  outputs: () => i("O"),
};

const projected = (name, matrix) => () => [i(name), o("="), i("X"), at("W", matrix)];
const power = (scores, index) => sup(i("e"), sub(i(scores), row(i("i"), i(index))));
const sumOver = (index) => node("munder", o("∑"), i(index));
const largest = (scores) => () => [at("m", "i"), o("="), node("munder", o("max"), i("j")), ij(scores)];
const exponentials = (scores) => () => [ij("E"), o("="), sup(i("e"), row(ij(scores), o("−"), at("m", "i")))];
const softmax = (scores) => () =>
  [ij("A"), o("="), over(power(scores, "j"), row(sumOver("k"), power(scores, "k")))];

/** Every formula of the recipe, by its LaTeX. The softmax takes T, or M behind a mask; in steps or at once. */
const FORMULAS = {
  "Q = X W_Q": projected("Q", "Q"),
  "K = X W_K": projected("K", "K"),
  "V = X W_V": projected("V", "V"),
  [String.raw`S = Q K^\top`]: () => [i("S"), o("="), i("Q"), sup(i("K"), o("⊤"))],
  [String.raw`T = \frac{S}{\sqrt{d_k}}`]: () => [i("T"), o("="), over(i("S"), node("msqrt", at("d", "k")))],
  [String.raw`M_{ij} = \begin{cases} T_{ij} & \text{if } i \text{ may see } j \\ -\infty & \text{else} \end{cases}`]: () => [
    ij("M"), o("="),
    cases(
      [ij("T"), row(text(`if${GAP}`), i("i"), text(`${GAP}may see${GAP}`), i("j"))],
      [row(o("−"), i("∞")), text("else")],
    ),
  ],
  [String.raw`m_i = \max_j T_{ij}`]: largest("T"),
  [String.raw`m_i = \max_j M_{ij}`]: largest("M"),
  [String.raw`E_{ij} = e^{T_{ij} - m_i}`]: exponentials("T"),
  [String.raw`E_{ij} = e^{M_{ij} - m_i}`]: exponentials("M"),
  [String.raw`z_i = \sum_j E_{ij}`]: () => [at("z", "i"), o("="), sumOver("j"), ij("E")],
  [String.raw`A_{ij} = \frac{E_{ij}}{z_i}`]: () => [ij("A"), o("="), over(ij("E"), at("z", "i"))],
  [String.raw`A_{ij} = \frac{e^{T_{ij}}}{\sum_k e^{T_{ik}}}`]: softmax("T"),
  [String.raw`A_{ij} = \frac{e^{M_{ij}}}{\sum_k e^{M_{ik}}}`]: softmax("M"),
  "A_{ij} V_j": () => [ij("A"), at("V", "j")],
  [String.raw`O_i = \sum_j A_{ij} V_j`]: () => [at("O", "i"), o("="), sumOver("j"), ij("A"), at("V", "j")],
};

function math(content, latex, block) {
  const element = node("math", latex ? node("semantics", content, annotation(latex)) : content);
  if (block) element.setAttribute("display", "block");
  return element;
}

function annotation(latex) {
  const element = node("annotation", latex);
  element.setAttribute("encoding", "application/x-tex");
  return element;
}

/** The symbol of a step's array, or of an input. */
export const symbol = (name) => math(row(...(SYMBOLS[name] ? [SYMBOLS[name]()] : [text(name)])));

/** A formula of the recipe; another one stands there as it is written. */
export function formula(latex) {
  if (!FORMULAS[latex]) return make("code", {}, latex);
  return math(row(...FORMULAS[latex]()), latex, true);
}
