// The page for people: a form over POST /v1/attention and a drawing of its answer. No framework, no build step.

const CELLS_UP_TO = 8; // wider embeddings are edited as JSON
const DRAWN_TOKENS = 32; // a larger table helps nobody and slows the browser down
const DRAWN_COLUMNS = 8;
const GIVE_UP_MS = 30_000;

const $ = (id) => document.getElementById(id);

const state = {
  models: [],
  model: null, // an entry of GET /v1/models
  tokens: [], // labels of the rows of the form
  shown: null, // what the last answer drew
  running: null, // AbortController of the request under way
};

/** An element with properties and children; text goes in as text, never as markup. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** The row of column names above rows of tokens. */
function titles(names) {
  const columns = names.map((name) => make("th", { scope: "col", textContent: name }));
  return make("tr", {}, make("th", { scope: "col", className: "token", textContent: "token" }), ...columns);
}

function tokenRow(name, cells) {
  return make("tr", {}, make("th", { scope: "row", textContent: name }), ...cells);
}

const printed = (number) => number.toFixed(2).replace(/^-(?=0\.00$)/, "").replace("-", "−");

// --- Calls ---------------------------------------------------------------------------------------------------------

/** What went wrong, in the words the page shows. */
class Failure extends Error {
  constructor(title, detail, { errors = [], type = "", status = 0 } = {}) {
    super(detail);
    Object.assign(this, { title, errors, type, status });
  }
}

/** Fetch, with the service's problems and the network's as a `Failure`. */
async function call(path, options = {}) {
  const key = $("key").value;
  const headers = { accept: "application/json", ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  const late = AbortSignal.timeout(GIVE_UP_MS);
  const signal = AbortSignal.any([late, ...(options.signal ? [options.signal] : [])]);
  try {
    const response = await fetch(path, { ...options, headers, signal });
    const text = await response.text();
    if (response.ok) return { body: JSON.parse(text), headers: response.headers };
    throw failureOf(response, text);
  } catch (error) {
    if (error instanceof Failure || options.signal?.aborted) throw error;
    if (late.aborted) throw new Failure("No answer", `The service did not answer within ${GIVE_UP_MS / 1000} seconds.`);
    if (error instanceof SyntaxError) throw new Failure("Unreadable answer", "The service's answer was not JSON.");
    throw new Failure(
      "The service cannot be reached",
      "No connection came about. Check the network, or whether the service is running, and press Attend again.",
    );
  }
}

function failureOf(response, text) {
  try {
    const { title, detail, errors, type } = JSON.parse(text);
    return new Failure(title ?? `Status ${response.status}`, detail ?? "", { errors, type, status: response.status });
  } catch {
    const { status } = response;
    return new Failure(`Status ${status}`, "The service gave no further details.", { status });
  }
}

// --- Readiness and models ------------------------------------------------------------------------------------------

async function showReadiness() {
  const say = (yes, text) => {
    $("ready").dataset.state = yes ? "yes" : "no";
    $("ready-text").textContent = text;
  };
  try {
    const response = await fetch("healthz/ready", { signal: AbortSignal.timeout(GIVE_UP_MS) });
    if (response.ok) return say(true, "Ready");
    const problem = await response.json().catch(() => ({}));
    say(false, problem.detail ? `Not ready: ${problem.detail}` : "Not ready");
  } catch {
    say(false, "Cannot be reached");
  }
}

async function loadModels() {
  const { body } = await call("v1/models");
  const names = body.models.map((model) => model.name);
  const twice = (name) => names.indexOf(name) !== names.lastIndexOf(name);
  state.models = body.models.map((model) => ({
    ...model,
    asked: twice(model.name) ? `${model.name}@${model.version}` : model.name,
  }));
  $("model").replaceChildren(...state.models.map(({ asked }) => make("option", { value: asked, textContent: asked })));
  const first = ["lesson", body.default].find((name) => names.includes(name)) ?? names[0];
  if (first === undefined) throw new Failure("No models", "This service has no model to try.");
  $("model").value = state.models.findLast((model) => model.name === first).asked;
  chooseModel();
}

function chooseModel() {
  state.model = state.models.find((model) => model.asked === $("model").value);
  const { description, is_causal: always } = state.model;
  const sizes = `${plural(state.model.embed_dim, "number")} per token, ${plural(state.model.num_heads, "head")}.`;
  $("model-about").textContent = description ? `${description.replace(/\.?$/, ".")} ${capital(sizes)}` : capital(sizes);
  $("causal").checked = Boolean(always);
  $("causal").disabled = Boolean(always);
  startOver();
}

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
const capital = (text) => text[0].toUpperCase() + text.slice(1);

// --- The form ------------------------------------------------------------------------------------------------------

const asCells = () => state.model.embed_dim <= CELLS_UP_TO;
const columnNames = () => {
  const { labels, embed_dim: width } = state.model;
  return labels?.length === width ? labels : Array.from({ length: width }, (_, i) => `x${i + 1}`);
};

/** Put the model's example, or made-up numbers, into the form. */
function startOver() {
  const { example } = state.model;
  const inputs = example?.inputs ?? madeUp(state.model);
  state.tokens = inputs.map((_, row) => example?.labels?.[row] ?? `t${row + 1}`);
  $("cells-field").hidden = !asCells();
  $("json-field").hidden = asCells();
  if (asCells()) {
    fillCells(inputs);
  } else {
    $("json").value = `[\n${inputs.map((row) => ` ${JSON.stringify(row)}`).join(",\n")}\n]`;
    const origin = example ? "" : " Those you find here are made up.";
    $("json-hint").textContent = `A list of tokens, each a list of ${state.model.embed_dim} numbers.${origin}`;
  }
  clearProblem();
}

/** Four tokens of normally distributed numbers, the same for a model on every visit (mulberry32, Box-Muller). */
function madeUp({ name, embed_dim: width }) {
  let seed = [...name].reduce((sum, letter) => (Math.imul(sum, 31) + letter.codePointAt(0)) | 0, 7);
  const uniform = () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return Array.from({ length: 4 }, () => Array.from({ length: width }, () => Number(normal().toFixed(2))));
}

function fillCells(inputs) {
  const caption = make("caption", {}, "Token embeddings", make("small", {}, "Every number can be changed."));
  const header = make("thead", {}, titles(columnNames()));
  $("cells").replaceChildren(caption, header, make("tbody", {}, ...inputs.map(cellRow)));
  $("drop-token").disabled = inputs.length < 2;
}

function cellRow(numbers, row) {
  const cells = numbers.map((number, column) => {
    const input = make("input", { type: "text", inputMode: "decimal", autocomplete: "off", value: String(number) });
    input.id = `cell-${row}-${column}`;
    input.setAttribute("aria-label", `${state.tokens[row]}, ${columnNames()[column]}`);
    return make("td", {}, input);
  });
  return tokenRow(state.tokens[row], cells);
}

function addToken() {
  state.tokens.push(`t${state.tokens.length + 1}`);
  const row = cellRow(columnNames().map(() => 0), state.tokens.length - 1);
  $("cells").tBodies[0].append(row);
  $("drop-token").disabled = false;
  edited();
  row.querySelector("input").focus();
}

function dropToken() {
  state.tokens.pop();
  $("cells").tBodies[0].lastElementChild.remove();
  if (state.tokens.length < 2) {
    $("add-token").focus();
    $("drop-token").disabled = true;
  }
  edited();
}

function edited() {
  $("status").textContent = "Changed. Press Attend to compute it.";
}

/** The numbers of the form; a `Failure` with the pointers of the cells that hold none. */
function readInputs() {
  return asCells() ? readCells() : readJson();
}

function readCells() {
  const errors = [];
  const inputs = [...$("cells").tBodies[0].rows].map((tr, row) =>
    [...tr.querySelectorAll("input")].map((input, column) => {
      const number = numberOf(input.value);
      if (typeof number === "string") errors.push({ pointer: `/inputs/${row}/${column}`, detail: number });
      return number;
    }),
  );
  if (errors.length) {
    const some = errors.length === 1 ? "One cell needs a number" : `${errors.length} cells need a number`;
    throw new Failure(some, "Nothing was sent.", { errors });
  }
  return inputs;
}

/** The number a text stands for, or in words why it stands for none. */
function numberOf(text) {
  const plain = text.trim().replace("−", "-");
  if (plain === "") return "is empty; write a number, such as 0";
  if (/^[+-]?\d+,\d+$/.test(plain)) return `“${plain}” has a comma; write ${plain.replace(",", ".")}`;
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain)) return `“${plain}” is not a number; write one such as 0.5`;
  return Number.isFinite(Number(plain)) ? Number(plain) : `“${plain}” is too large`;
}

function readJson() {
  const errors = [{ pointer: "/inputs", detail: "" }]; // marks the field; the message says it all
  const refuse = (detail) => new Failure("The embeddings cannot be read", detail, { errors });
  let inputs;
  try {
    inputs = JSON.parse($("json").value);
  } catch (error) {
    throw refuse(`That is not valid JSON: ${error.message}`);
  }
  const rowOk = (row) => Array.isArray(row) && row.every((number) => typeof number === "number");
  if (!Array.isArray(inputs) || !inputs.every(rowOk)) {
    throw refuse("Write a list of tokens, each a list of numbers, such as [[0.1, 0.2], [0.3, 0.4]].");
  }
  state.tokens = inputs.map((_, row) => state.model.example?.labels?.[row] ?? `t${row + 1}`);
  return inputs;
}

// --- Problems ------------------------------------------------------------------------------------------------------

function clearProblem() {
  $("problem").replaceChildren();
  for (const field of $("form").querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    if (field.id.startsWith("cell-")) field.removeAttribute("aria-describedby");
  }
}

/** The fields of the form that a JSON pointer of the request means. */
function fieldsAt(pointer) {
  const [, name, row, column] = pointer.split("/");
  if (name === "inputs" && !asCells()) return [$("json")];
  if (name === "inputs" && column !== undefined) return [$(`cell-${row}-${column}`)].filter(Boolean);
  if (name === "inputs" && row !== undefined) return [...$("cells").querySelectorAll(`[id^="cell-${row}-"]`)];
  return [{ model: $("model"), backend: $("backend"), is_causal: $("causal") }[name]].filter(Boolean);
}

/** A JSON pointer in the words of the form. */
function placeOf(pointer) {
  const [, name, row, column] = pointer.split("/");
  if (name !== "inputs" || row === undefined) return name ?? "request";
  const token = `token ${state.tokens[row] ?? Number(row) + 1}`;
  return column === undefined ? token : `${token}, ${columnNames()[column] ?? `column ${Number(column) + 1}`}`;
}

function showFailure(failure, moveFocus) {
  if (!(failure instanceof Failure)) {
    console.error(failure);
    failure = new Failure("This page has a bug", String(failure));
  }
  const told = failure.errors.filter(({ detail }) => detail);
  const lines = told.map(({ pointer, detail }) => `${capital(placeOf(pointer))}: ${detail}`);
  // The service's own detail often is "pointer: detail" of its one error, which reads better with the place in words.
  const repeated = told.length === 1 && failure.message.endsWith(told[0].detail);
  $("problem").replaceChildren(make("strong", {}, failure.title), repeated ? lines[0] : failure.message);
  if (lines.length && !repeated) $("problem").append(make("ul", {}, ...lines.map((line) => make("li", {}, line))));
  if (/^\/problems\/[\w-]+$/.test(failure.type)) {
    $("problem").append(" ", make("a", { href: failure.type.slice(1), textContent: "About this error" }));
  }
  if ([401, 403].includes(failure.status)) {
    $("key-field").hidden = false;
    failure.errors = [];
    $("key").setAttribute("aria-invalid", "true");
  }
  const fields = failure.errors.flatMap(({ pointer }) => fieldsAt(pointer));
  for (const field of fields) {
    field.setAttribute("aria-invalid", "true");
    if (field.id.startsWith("cell-")) field.setAttribute("aria-describedby", "problem");
  }
  if (moveFocus) fields[0]?.focus();
  $("status").textContent = "";
  $("results").hidden = $("again").hidden = true;
}

// --- Asking --------------------------------------------------------------------------------------------------------

/** Send what the form holds and draw the answer. Only if the visitor pressed Attend may focus move to a mistake. */
async function attend(byHand) {
  state.running?.abort();
  const running = (state.running = new AbortController());
  clearProblem();
  $("key").removeAttribute("aria-invalid");
  try {
    if (!state.model) await loadModels();
    const model = state.model;
    const body = JSON.stringify({
      model: model.asked,
      inputs: readInputs(),
      ...($("causal").checked && !$("causal").disabled && { is_causal: true }),
      ...($("backend").value && { backend: $("backend").value }),
      return: ["outputs", "weights"],
    });
    const shown = { tokens: [...state.tokens], causal: $("causal").checked, model, body };
    $("status").textContent = "Computing";
    const headers = { "content-type": "application/json" };
    const answer = await call("v1/attention", { method: "POST", headers, body, signal: running.signal });
    if (running.signal.aborted) return;
    const { weights } = answer.body;
    const heads = Array.isArray(weights[0][0]) ? weights : [weights];
    state.shown = { ...shown, heads, outputs: answer.body.outputs };
    drawAnswer(answer);
  } catch (failure) {
    if (!running.signal.aborted) showFailure(failure, byHand);
  }
}

function drawAnswer({ body, headers }) {
  const { heads, tokens, model } = state.shown;
  const head = Math.min(Number($("head").value) || 0, heads.length - 1);
  const options = heads.map((_, i) => make("option", { value: String(i), textContent: `${i + 1} of ${heads.length}` }));
  $("head").replaceChildren(...options);
  $("heads").hidden = heads.length === 1;
  $("results").hidden = $("again").hidden = false;
  drawHead(head);
  drawOutputs();
  const { name, device, provider, dtype } = body.backend;
  const by = [name, provider && provider !== name && `(${provider})`, device && `on ${device}`, dtype && `in ${dtype}`];
  const version = body.model?.version ? `, version ${body.model.version}` : "";
  $("computed-by").textContent = `${by.filter(Boolean).join(" ")}; model ${body.model?.name ?? model.name}${version}`;
  $("timing").textContent = timingLine(headers.get("server-timing") ?? "");
  $("curl").textContent = curlLine(state.shown.body);
  $("copied").textContent = "";
  const sizes = `${plural(tokens.length, "token")}, ${plural(heads.length, "head")}`;
  $("status").textContent = `Done: ${sizes}, computed by ${name}.`;
}

// --- Drawing -------------------------------------------------------------------------------------------------------

function drawHead(head) {
  const { heads, tokens, causal } = state.shown;
  const weights = heads[head];
  const names = tokens.slice(0, DRAWN_TOKENS);
  $("head").value = String(head);
  setDisabled($("head-previous"), head === 0);
  setDisabled($("head-next"), head === heads.length - 1);

  const caption = heads.length === 1 ? "Attention weights" : `Attention weights of head ${head + 1} of ${heads.length}`;
  const axis = make("th", { scope: "colgroup", colSpan: names.length, className: "axis", textContent: "looks at" });
  const header = make("thead", {}, make("tr", {}, make("td"), axis), titles(names));
  const rows = names.map((name, row) => {
    const most = Math.max(...weights[row]);
    const cells = names.map((_, column) => {
      const weight = weights[row][column];
      const masked = causal && column > row;
      const cell = make("td", { textContent: printed(weight) });
      cell.classList.toggle("most", weight === most);
      cell.classList.toggle("masked", masked);
      cell.style.setProperty("--w", String(weight));
      return cell;
    });
    return tokenRow(name, cells);
  });
  $("weights").replaceChildren(make("caption", {}, caption), header, make("tbody", {}, ...rows));
  const cut = tokens.length > names.length;
  $("weights-cut").hidden = !cut;
  $("weights-cut").textContent = cut ? `Drawn: the first ${names.length} of ${tokens.length} tokens.` : "";
  $("reading-example").textContent = readingExample(weights);
}

/** A button that just got disabled keeps no focus, so its neighbour takes it. */
function setDisabled(button, disabled) {
  const focused = document.activeElement === button;
  button.disabled = disabled;
  if (disabled && focused) $("head").focus();
}

/** One row of this very picture, read aloud: the lesson's pronoun, else the token that looks hardest at another. */
function readingExample(weights) {
  const { tokens, model } = state.shown;
  const size = Math.min(tokens.length, DRAWN_TOKENS);
  if (size < 2) return "";
  const best = (row, columns) => columns.reduce((a, b) => (weights[row][b] > weights[row][a] ? b : a));
  const all = [...Array(size).keys()];
  const pronoun = model.name === "lesson" ? tokens.indexOf("her") : -1;
  if (pronoun >= 0) {
    const column = best(pronoun, all);
    const number = printed(weights[pronoun][column]);
    const person = tokens[column] === "Mia" ? ", the person it stands for" : "";
    return `Find the row “her”: ${number} of its weight is on “${tokens[column]}”${person}.`;
  }
  const other = (row) => best(row, all.filter((column) => column !== row));
  const row = all.reduce((a, b) => (weights[b][other(b)] > weights[a][other(a)] ? b : a));
  const column = other(row);
  return `Here “${tokens[row]}” puts ${printed(weights[row][column])} of its weight on “${tokens[column]}”.`;
}

function drawOutputs() {
  const { outputs, tokens } = state.shown;
  const width = Math.min(outputs[0].length, DRAWN_COLUMNS);
  const drawn = outputs.slice(0, DRAWN_TOKENS);
  const columns = Array.from({ length: width }, (_, i) => `out ${i + 1}`);
  const rows = drawn.map((numbers, row) => {
    const cells = numbers.slice(0, width).map((number) => make("td", { textContent: printed(number) }));
    return tokenRow(tokens[row], cells);
  });
  const about = "What each token becomes: the values of all tokens, mixed by its row of weights.";
  const caption = make("caption", {}, "Outputs", make("small", {}, about));
  $("outputs").replaceChildren(caption, make("thead", {}, titles(columns)), make("tbody", {}, ...rows));
  const cuts = [
    outputs.length > drawn.length && `the first ${drawn.length} of ${outputs.length} tokens`,
    outputs[0].length > width && `the first ${width} of ${outputs[0].length} columns`,
  ].filter(Boolean);
  $("outputs-cut").hidden = !cuts.length;
  $("outputs-cut").textContent = cuts.length ? `Shown: ${cuts.join(", ")}.` : "";
}

/** `decode;dur=0.1, queue;dur=2` as `decode 0.10 · queue 2.00`. */
function timingLine(header) {
  const stages = header.split(",").map((part) => /^\s*([\w-]+).*?;\s*dur=([\d.]+)/.exec(part)).filter(Boolean);
  return stages.map(([, stage, ms]) => `${stage} ${Number(ms).toFixed(2)}`).join(" · ") || "not reported";
}

function curlLine(body) {
  const key = $("key").value ? ` \\\n  -H "Authorization: Bearer $ATTENTION_KEY"` : "";
  const url = new URL("v1/attention", document.baseURI).href; // location.origin, with a proxy's prefix if it has one
  return `curl -sS ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${body.replaceAll("'", "'\\''")}'`;
}

async function copyCurl() {
  try {
    await navigator.clipboard.writeText($("curl").textContent);
    $("copied").textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren($("curl")); // no clipboard on plain http
    $("copied").textContent = "Selected: press Ctrl+C, or ⌘C, to copy.";
  }
}

/** A container that scrolls can be reached by keyboard; one that does not is no stop of the Tab key. */
function watchScrollers() {
  const check = (box) => {
    const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  };
  const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => check(target.closest(".scroll"))));
  for (const box of document.querySelectorAll(".scroll")) {
    observer.observe(box);
    for (const child of box.children) observer.observe(child);
  }
}

// --- Start ---------------------------------------------------------------------------------------------------------

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  attend(true);
});
$("model").addEventListener("change", () => {
  chooseModel();
  attend(false);
});
$("causal").addEventListener("change", () => attend(false));
$("backend").addEventListener("change", () => attend(false));
$("cells").addEventListener("input", edited);
$("json").addEventListener("input", edited);
$("add-token").addEventListener("click", addToken);
$("drop-token").addEventListener("click", dropToken);
$("start-over").addEventListener("click", () => {
  startOver();
  attend(false);
});
$("head").addEventListener("change", () => drawHead(Number($("head").value)));
$("head-previous").addEventListener("click", () => drawHead(Number($("head").value) - 1));
$("head-next").addEventListener("click", () => drawHead(Number($("head").value) + 1));
$("copy").addEventListener("click", copyCurl);

$("form").hidden = false;
watchScrollers();
showReadiness();
attend(false);
