// The example to begin with: the service's model "lesson". A test holds the two together.

export const LESSON = {
  labels: ["Mia", "reads", "her", "book"],
  columns: ["person", "thing", "action", "pronoun", "word"],
  inputs: [[1, 0, 0, 0, 0.5], [0, 0, 1, 0, 0.5], [0.2, 0, 0, 1, 0.5], [0, 1, 0, 0, 0.5]],
  projections: {
    query: [[0, 0, 2], [0.5, 0, 2.5], [2, 1.5, 0], [4, 0.5, 0], [0.1, 0.2, 0.1]],
    key: [[2, 0, 0], [0, 2, 0], [0, 0, 2], [0.5, 0.2, 0], [0.1, 0, 0.1]],
    value: [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.2, 0.1, 0], [0, 0.1, 0.1]],
  },
};
