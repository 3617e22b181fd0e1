// Verdicts: a sign and a word beside what they are about, never colour alone.

import { make, uniqueId, unseen } from "./dom.js";

export const VERDICTS = { ok: ["✓", "right"], wrong: ["✗", "not right"], missing: ["…", "missing"], invalid: ["?", "not a number"] };

const PLACES = { ok: "well placed", wrong: "not right here", invalid: "not right here" };

/** The verdict of a card's place. */
export function placeMark(verdict) {
  const [icon] = VERDICTS[verdict];
  return make("span", { className: `place ${verdict}` }, make("span", { "aria-hidden": "true" }, icon), ` ${PLACES[verdict]}`);
}

/** Put a verdict beside an input, for eyes and for ears. */
export function markInput(input, verdict) {
  unmark(input);
  const [icon, words] = VERDICTS[verdict];
  const mark = make("span", { className: `mark ${verdict}`, id: uniqueId("mark") },
    make("span", { "aria-hidden": "true" }, icon), unseen(words));
  input.after(mark);
  input.dataset.verdict = verdict;
  input.setAttribute("aria-describedby", mark.id);
  if (["wrong", "invalid"].includes(verdict)) input.setAttribute("aria-invalid", "true");
}

export function unmark(input) {
  input.nextElementSibling?.remove();
  delete input.dataset.verdict;
  input.removeAttribute("aria-describedby");
  input.removeAttribute("aria-invalid");
}
