// Formulae as MathML, which browsers draw and screen readers speak, with LaTeX as annotation for whoever copies them.

const SPACE = "http://www.w3.org/1998/Math/MathML";
const GAP = "\u00a0"; // plain spaces at the ends of text are dropped

function node(tag, ...children) {
  const element = document.createElementNS(SPACE, tag);
  element.append(...children);
  return element;
}

const i = (name) => node("mi", name);
const o = (sign) => node("mo", sign);
const n = (number) => node("mn", number);
const row = (...parts) => node("mrow", ...parts);
const sub = (base, below) => node("msub", base, below);
const sup = (base, above) => node("msup", base, above);
const over = (top, bottom) => node("mfrac", top, bottom);
const text = (words) => node("mtext", words);
const ij = (name) => sub(i(name), row(i("i"), i("j")));
const at = (name, index) => sub(i(name), i(index));
const sumOverJ = () => node("munder", o("∑"), i("j"));

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

const projected = (name) => () => [i(name), o("="), i("X"), at("W", name)];

/** Right-hand sides, by step. */
const FORMULAS = {
  query: projected("Q"),
  key: projected("K"),
  value: projected("V"),
  raw_scores: () => [i("S"), o("="), i("Q"), sup(i("K"), o("⊤"))],
  scaled_scores: () => [i("T"), o("="), over(i("S"), node("msqrt", at("d", "k")))],
  masked_scores: () => [
    ij("M"), o("="),
    cases(
      [ij("T"), row(text(`if${GAP}`), i("i"), text(`${GAP}may see${GAP}`), i("j"))],
      [row(o("−"), i("∞")), text("else")],
    ),
  ],
  softmax_max: (scores) => [at("m", "i"), o("="), node("munder", o("max"), i("j")), ij(scores)],
  softmax_exp: (scores) => [ij("E"), o("="), sup(i("e"), row(ij(scores), o("−"), at("m", "i")))],
  softmax_sum: () => [at("z", "i"), o("="), sumOverJ(), ij("E")],
  weights: () => [ij("A"), o("="), over(ij("E"), at("z", "i"))],
  weighted_values: () => [ij("A"), at("V", "j")],
  outputs: () => [at("O", "i"), o("="), sumOverJ(), ij("A"), at("V", "j")],
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

/** A step's formula; null where the step is not known. `scores` names what the softmax is taken of. */
export function formula(step, latex, scores = "T") {
  return FORMULAS[step] ? math(row(...FORMULAS[step](scores)), latex, true) : null;
}

/** √d as a formula. */
export const root = (number) => math(row(node("msqrt", n(String(number)))));
