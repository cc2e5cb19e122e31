// The filter of rollouts, written as in SQL's WHERE: `outcome = 'lost' and length > 10 and not task contains 'mug'`.
// It is read and applied here, so that it is the same with a server and in a file, and no server runs what is written.

export type Value = string | number | boolean | null;
export type Kind = "text" | "number" | "flag";
export type Test = (row: Record<string, Value>) => boolean;

type Token = { kind: "text" | "number" | "sign" | "word" | "end"; text: string };

const MOST = 2000;
const TOKEN = /\s*(?:('[^']*'|"[^"]*")|(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)|(<=|>=|!=|<>|[=<>()])|(\p{L}[\p{L}\p{N}_]*))/iuy;
const END: Token = { kind: "end", text: "the end" };

const ORDER: Record<string, (order: number) => boolean> = {
  "=": (order) => order === 0,
  "!=": (order) => order !== 0,
  "<>": (order) => order !== 0,
  "<": (order) => order < 0,
  "<=": (order) => order <= 0,
  ">": (order) => order > 0,
  ">=": (order) => order >= 0,
};

function tokensOf(text: string): Token[] {
  const tokens: Token[] = [];
  const length = text.trimEnd().length;
  for (let end = 0; end < length; end = TOKEN.lastIndex) {
    TOKEN.lastIndex = end;
    const found = TOKEN.exec(text);
    if (!found) throw new Error(`filter: expected a column, a value or an operator, received ${text.slice(end).trim().slice(0, 20)}`);
    const [, quoted, digits, sign, word] = found;
    if (quoted !== undefined) tokens.push({ kind: "text", text: quoted.slice(1, -1) });
    else if (digits !== undefined) tokens.push({ kind: "number", text: digits });
    else if (sign !== undefined) tokens.push({ kind: "sign", text: sign });
    else tokens.push({ kind: "word", text: (word as string).toLowerCase() });
  }
  return tokens;
}

/** A text as a filter contains it. */
export const quoted = (text: string): string => (text.includes("'") ? `"${text.replaceAll('"', "")}"` : `'${text}'`);

const includes = (value: Value | undefined, part: string): boolean => String(value ?? "").toLowerCase().includes(part);

/** Whether a row passes a filter; raises an error of one line if it cannot be read. */
export function compile(text: string, kinds: Record<string, Kind>): Test {
  if (text.length > MOST) throw new Error(`filter: expected at most ${MOST} characters, received ${text.length}`);
  const tokens = tokensOf(text);
  let at = 0;
  const next = (): Token => tokens[at] ?? END;
  const take = (): Token => tokens[at++] ?? END;
  const takes = (word: string): boolean => {
    const found = next().kind !== "text" && next().text === word;
    if (found) at++;
    return found;
  };
  const expected = (what: string): Error => new Error(`filter: expected ${what}, received ${next().text.slice(0, 40)}`);

  const either = (): Test => {
    const tests = [both()];
    while (takes("or")) tests.push(both());
    return (row) => tests.some((test) => test(row));
  };
  const both = (): Test => {
    const tests = [negated()];
    while (takes("and")) tests.push(negated());
    return (row) => tests.every((test) => test(row));
  };
  const negated = (): Test => {
    if (!takes("not")) return single();
    const test = negated();
    return (row) => !test(row);
  };
  const single = (): Test => {
    if (takes("(")) {
      const test = either();
      if (!takes(")")) throw expected(")");
      return test;
    }
    if (next().kind === "text") {
      const part = take().text.toLowerCase(); // a text alone is looked for in the task
      return (row) => includes(row.task, part) || includes(row.task_id, part);
    }
    const kind = Object.hasOwn(kinds, next().text) ? kinds[next().text] : undefined;
    if (next().kind !== "word" || !kind) throw expected(`a column (${Object.keys(kinds).join(", ")}) or a text in quotes`);
    return compared(take().text, kind);
  };
  const compared = (name: string, kind: Kind): Test => {
    if (kind === "flag") return (row) => row[name] === true;
    if (kind === "text" && takes("contains")) {
      if (next().kind !== "text") throw expected("a text in quotes");
      const part = take().text.toLowerCase();
      return (row) => includes(row[name], part);
    }
    const sign = next().text;
    const fits = ORDER[sign];
    if (next().kind !== "sign" || !fits) throw expected(`${Object.keys(ORDER).join(" ")}${kind === "text" ? " or contains" : ""} after ${name}`);
    at++;
    if (takes("null")) return (row) => fits(row[name] === null ? 0 : 1);
    if (next().kind !== kind) throw expected(`a ${kind}${kind === "text" ? " in quotes" : ""} for ${name}`);
    const value = kind === "number" ? Number(take().text) : take().text;
    return (row) => {
      const own = row[name] ?? null;
      return own !== null && fits(own === value ? 0 : own < value ? -1 : 1);
    };
  };

  if (!tokens.length) return () => true;
  const test = either();
  if (next() !== END) throw expected("and, or, or the end");
  return test;
}
