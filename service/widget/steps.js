// What is told of each step: the same ids, titles and formulae as the service's, which a test compares, and plain words.

/** @type {Record<string, {title: string, latex: string, name: string, about: string}>} */
export const STEPS = {
  query: {
    title: "Project to queries",
    latex: "Q = X W_Q",
    name: "queries",
    about: "Each token asks a question: its embedding times the query weights.",
  },
  key: {
    title: "Project to keys",
    latex: "K = X W_K",
    name: "keys",
    about: "Each token says what it can be found by: its embedding times the key weights.",
  },
  value: {
    title: "Project to values",
    latex: "V = X W_V",
    name: "values",
    about: "Each token says what it hands over when it is looked at: its embedding times the value weights.",
  },
  raw_scores: {
    title: "Compare by dot product",
    latex: String.raw`S = Q K^\top`,
    name: "raw scores",
    about: "How well does a query fit a key? Multiply them number by number and add up. Rows ask, columns answer.",
  },
  scaled_scores: {
    title: "Scale",
    latex: String.raw`T = \frac{S}{\sqrt{d_k}}`,
    name: "scaled scores",
    about: "Longer keys make larger sums. Dividing by the root of their length keeps the softmax from going hard.",
  },
  masked_scores: {
    title: "Mask",
    latex: String.raw`M_{ij} = \begin{cases} T_{ij} & \text{if } i \text{ may see } j \\ -\infty & \text{else} \end{cases}`,
    name: "masked scores",
    about: "A causal token must not see what comes after it: those scores become minus infinity, their weights 0.",
  },
  softmax_max: {
    title: "Largest of each row",
    latex: String.raw`m_i = \max_j T_{ij}`,
    name: "largest scores",
    about: "The softmax begins with the largest score of each row. Taking it off first keeps the exponentials small.",
  },
  softmax_exp: {
    title: "Exponentiate",
    latex: String.raw`E_{ij} = e^{T_{ij} - m_i}`,
    name: "exponentials",
    about: "Every score becomes positive, and differences become ratios. The largest of a row becomes 1.",
  },
  softmax_sum: {
    title: "Sum each row",
    latex: String.raw`z_i = \sum_j E_{ij}`,
    name: "row sums",
    about: "What a row has to be divided by so that it sums to 1.",
  },
  weights: {
    title: "Divide by the sum",
    latex: String.raw`A_{ij} = \frac{E_{ij}}{z_i}`,
    name: "attention weights",
    about: "Each row says how a token shares out its attention. It sums to 1.",
  },
  weighted_values: {
    title: "Weigh the values",
    latex: "A_{ij} V_j",
    name: "weighted values",
    about: "The followed token takes of every value as much as it attends to it.",
  },
  outputs: {
    title: "Sum the weighted values",
    latex: String.raw`O_i = \sum_j A_{ij} V_j`,
    name: "outputs",
    about: "What each token becomes: the values of all tokens, mixed by its row of weights.",
  },
};

/** What is given, in words. */
export const GIVEN = {
  inputs: "embeddings",
  w_query: "query weights",
  w_key: "key weights",
  w_value: "value weights",
};

/** Steps whose arrays are tokens by tokens, drawn as heatmaps. */
export const HEAT = new Set(["raw_scores", "scaled_scores", "masked_scores", "softmax_exp", "weights"]);
