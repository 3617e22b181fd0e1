// Matrices as real tables: to read, to walk through by arrow keys, and to fill in.

import { make, scroller, shape, uniqueId, unseen } from "./dom.js";
import { paint, shares } from "./heat.js";
import { symbol } from "./mathml.js";
import { digitsOfAll } from "./numbers.js";
import { GIVEN, HEAT, STEPS } from "./steps.js";

const nameOf = (name) => GIVEN[name] ?? STEPS[name]?.name ?? name;

function captionOf(name, values, words = nameOf(name)) {
  const size = make("small", {}, shape(values));
  return make("caption", {}, symbol(name), " ", make("span", {}, words), " ", size);
}

function headOf(columns, corner) {
  const cells = columns.map((name) => make("th", { scope: "col" }, name));
  return make("thead", {}, make("tr", {}, make("td", {}, unseen(corner)), ...cells));
}

function bodyOf(rows, cellAt, count) {
  const lines = rows.map((name, row) => {
    const cells = Array.from({ length: count }, (_, column) => cellAt(row, column));
    return { line: make("tr", {}, make("th", { scope: "row" }, name), ...cells), cells };
  });
  return { body: make("tbody", {}, ...lines.map(({ line }) => line)), cells: lines.map(({ cells }) => cells) };
}

/** A formula in a box that scrolls where it is wider than the page. */
export const formulaBox = (content) => make("div", { className: "formula" }, scroller("formula", content));

/** A masked score says so to ears; eyes see the hatching. */
function numberCell(number, text, hidden) {
  const masked = hidden || number === -Infinity || number === null;
  const cell = make("td", {}, text, masked ? unseen(" masked") : null);
  cell.classList.toggle("masked", masked);
  return cell;
}

/**
 * A table to read.
 * @param {import("./scenes.js").Sheet} sheet
 * @param {import("./numbers.js").Printer} printer
 * @returns {{root: HTMLElement, table: HTMLTableElement, cells: HTMLTableCellElement[][]}}
 */
export function drawTable({ name, values, rows, columns, caption, hidden }, printer) {
  const digits = digitsOfAll(values.flat(), printer.decimals);
  const heat = HEAT.has(name) ? shares(values, name === "weights") : null;
  const { body, cells } = bodyOf(rows, (row, column) => {
    const number = values[row][column];
    const cell = numberCell(number, printer.print(number, digits), hidden?.(row, column));
    if (heat && heat[row][column] !== null) paint(cell, heat[row][column]);
    return cell;
  }, columns.length);
  const table = make("table", { className: heat ? "heat" : "plain" }, captionOf(name, values, caption),
    headOf(columns, "row"), body);
  return { root: scroller(caption ?? nameOf(name), table), table, cells };
}

/**
 * Let one cell of a drawn table be walked to: one stop of the Tab key, arrow keys, Home and End.
 * @param {ReturnType<typeof drawTable>} drawn
 * @param {{enter: (row: number, column: number) => void, over: (row: number, column: number) => void,
 *          out: () => void}} listeners
 */
export function makeWalkable({ table, cells }, listeners) {
  // A grid has no place for a caption: it stands before the table and names it all the same.
  const caption = make("div", { className: "caption", id: uniqueId("caption") }, ...table.caption.childNodes);
  table.caption.remove();
  table.before(caption);
  table.setAttribute("role", "grid");
  table.setAttribute("aria-labelledby", caption.id);
  const focusAt = (row, column) => cells[row]?.[column]?.focus();
  cells.forEach((line, row) => line.forEach((cell, column) => {
    cell.tabIndex = -1;
    cell.addEventListener("focus", () => listeners.enter(row, column));
    cell.addEventListener("pointerenter", () => listeners.over(row, column));
    cell.addEventListener("pointerleave", () => listeners.out());
    cell.addEventListener("click", () => cell.focus());
    cell.addEventListener("keydown", (event) => {
      const to = { ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1],
        ArrowRight: [row, column + 1], Home: [row, 0], End: [row, line.length - 1] }[event.key];
      if (!to) return;
      event.preventDefault();
      focusAt(...to);
    });
  }));
}

/**
 * A table to fill in. Up and Down go from row to row; Tab goes along a row.
 * @param {{name: string, rows: string[], columns: string[], caption?: string, shape: number[][],
 *          label: (row: number, column: number) => string, value?: (row: number, column: number) => string}} sheet
 * @param {(row: number, column: number, input: HTMLInputElement) => void} onInput
 */
export function inputTable({ name, rows, columns, caption, label, value }, onInput) {
  const inputs = rows.map((_, row) => columns.map((_, column) => {
    // No inputMode: the number pads of some phones have no minus sign.
    const input = make("input", { type: "text", autocomplete: "off", spellcheck: false, size: 5,
      value: value?.(row, column) ?? "", "aria-label": label(row, column) });
    input.setAttribute("autocapitalize", "off");
    input.addEventListener("input", () => onInput(row, column, input));
    return input;
  }));
  inputs.forEach((line, row) => line.forEach((input, column) => {
    input.addEventListener("keydown", (event) => {
      const next = { ArrowUp: row - 1, ArrowDown: row + 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      inputs[next]?.[column].select();
      inputs[next]?.[column].focus();
    });
  }));
  const { body, cells } = bodyOf(rows, (row, column) => make("td", {}, inputs[row][column]), columns.length);
  const table = make("table", { className: "cells" }, captionOf(name, inputs, caption), headOf(columns, "row"), body);
  return { root: scroller(`${caption ?? nameOf(name)}, to be filled in`, table), table, cells, inputs };
}
