// Numbers as people write and read them.

const MINUS = "\u2212";

/** The decimal sign of a language, a point where the language is not known. */
export function decimalSign(lang) {
  try {
    const parts = new Intl.NumberFormat(lang || "en").formatToParts(0.5);
    return parts.find(({ type }) => type === "decimal")?.value ?? ".";
  } catch {
    return ".";
  }
}

/** How many decimals a number has once it is rounded to at most `most`. */
function digitsOf(number, most) {
  if (!Number.isFinite(number)) return 0;
  return (number.toFixed(most).replace(/\.?0+$/, "").split(".")[1] ?? "").length;
}

/** How many decimals these numbers need, all of them, to be printed alike. */
export const digitsOfAll = (numbers, most) => Math.max(0, ...numbers.map((number) => digitsOf(number, most)));

/** Printing by a language's decimal sign. Masked scores, which are null on the wire, are minus infinity. */
export class Printer {
  constructor(decimals, lang) {
    this.decimals = decimals;
    this.sign = decimalSign(lang);
  }

  /** With exactly `digits` decimals, by default as many as the number needs and no more than there may be. */
  print(number, digits = digitsOf(number, this.decimals)) {
    if (number === null || number === -Infinity) return `${MINUS}∞`;
    if (!Number.isFinite(number)) return Number.isNaN(number) ? "undefined" : "∞";
    const plain = number.toFixed(digits).replace(/^-(?=0(\.0*)?$)/, "");
    return plain.replace("-", MINUS).replace(".", this.sign);
  }

  /** As a factor or summand behind another: negative ones in brackets. */
  within(number) {
    const text = this.print(number);
    return text.startsWith(MINUS) ? `(${text})` : text;
  }

  /** "= 0.5", or "≈ 0.333" where digits were dropped. */
  result(number) {
    const exact = !Number.isFinite(number) || Math.abs(Number(number.toFixed(this.decimals)) - number) < 1e-12;
    return `${exact ? "=" : "≈"} ${this.print(number)}`;
  }
}

/** The number a text stands for, or null; so for 1,234, which may be two numbers unless the decimal sign is a comma. */
export function read(text, sign = ".") {
  if (sign !== "," && /[1-9]\d{0,2},\d{3}$/.test(text.trim())) return null;
  const plain = text.trim().replace(MINUS, "-").replace(",", ".");
  if (!/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain)) return null;
  const number = Number(plain);
  return Number.isFinite(number) && Math.abs(number) <= 1e6 ? number : null;
}
