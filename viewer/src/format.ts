export const percent = (value: number | null | undefined, digits = 0): string => {
  if (value === null || value === undefined) return "–";
  return `${number(100 * value, digits)}%`;
};

export const share = (part: number | null, whole: number): number | null => (part === null || !whole ? null : part / whole);

/** A measurement, with the same decimals whatever its value is: those of a column agree. */
export const number = (value: number | null | undefined, digits = 2): string => {
  if (value === null || value === undefined) return "–";
  const text = fixed(Math.abs(value), digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
};

/** Decimals as the commands print them: a tie goes to the even digit, as in Python, and not up, as in `toFixed`. */
function fixed(value: number, digits: number): string {
  const rounded = value.toFixed(digits);
  const exact = value.toFixed(Math.min(100, digits + 40)); // beyond them, no number of this size has digits
  const before = exact.slice(0, exact.length - 40 + (digits ? 0 : -1));
  const isTie = /^\.?50*$/.test(exact.slice(before.length)) && !rounded.includes("e");
  return isTie && Number(before.at(-1)) % 2 === 0 ? before : rounded;
}

/** A number with its sign, such as an advantage. */
export const signed = (value: number | null | undefined, digits = 2): string => {
  const text = number(value, digits);
  return Number(text) > 0 ? `+${text}` : text;
};

export const integer = (count: number): string => count.toLocaleString("en");

export const counted = (count: number, one: string, many = `${one}s`): string =>
  `${integer(count)} ${count === 1 ? one : many}`;

/** A background between two colours: of `--plus` for positive values, of `--minus` for negative ones. */
export function shade(value: number | null | undefined, most: number): string | undefined {
  if (!value || !most) return undefined;
  const share = Math.round(8 + 40 * Math.min(1, Math.abs(value) / most));
  return `color-mix(in srgb, var(--${value > 0 ? "plus" : "minus"}) ${share}%, var(--panel))`;
}

/** The values of nested settings by their names, such as `policy.name`. */
export function flat(value: unknown, name = "", into = new Map<string, string>()): Map<string, string> {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, inner] of Object.entries(value)) flat(inner, name ? `${name}.${key}` : key, into);
  } else into.set(name, typeof value === "string" ? value : JSON.stringify(value));
  return into;
}
