// A diff of two texts by words: Myers' shortest edit script, within a limit of work.

export type Part = { kind: "same" | "ours" | "theirs"; text: string };

const WORDS = 1500;
const EDITS = 400;
/** Texts that share less than this part of their letters are shown one after the other. */
const ALIKE = 0.4;

export function diff(ours: string, theirs: string): Part[] {
  const a = words(ours);
  const b = words(theirs);
  let start = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  let end = 0;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const middle = edits(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const letters = (parts: Part[]) => parts.reduce((sum, part) => sum + part.text.replace(/\s+/g, "").length, 0);
  const shared = letters(middle.filter((part) => part.kind === "same")) + letters([{ kind: "same", text: a.slice(0, start).join("") + a.slice(a.length - end).join("") }]);
  if (shared < ALIKE * Math.min(letters([{ kind: "ours", text: ours }]), letters([{ kind: "theirs", text: theirs }]))) {
    return merged([{ kind: "ours", text: ours }, { kind: "same", text: "\n" }, { kind: "theirs", text: theirs }]);
  }
  const before: Part = { kind: "same", text: a.slice(0, start).join("") };
  const after: Part = { kind: "same", text: a.slice(a.length - end).join("") };
  return merged([before, ...middle, after]);
}

const words = (text: string): string[] => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) ?? [];

function edits(a: string[], b: string[]): Part[] {
  const whole: Part[] = [
    { kind: "ours", text: a.join("") },
    { kind: "theirs", text: b.join("") },
  ];
  if (!a.length || !b.length || a.length > WORDS || b.length > WORDS) return whole;
  const trace: Map<number, number>[] = [];
  let reach = new Map<number, number>([[1, 0]]);
  for (let d = 0; d <= Math.min(EDITS, a.length + b.length); d++) {
    trace.push(new Map(reach));
    for (let k = -d; k <= d; k += 2) {
      const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
      let x = down ? (reach.get(k + 1) as number) : (reach.get(k - 1) as number) + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      reach.set(k, x);
      if (x >= a.length && x - k >= b.length) return path(trace, a, b);
    }
  }
  return whole;
}

function path(trace: Map<number, number>[], a: string[], b: string[]): Part[] {
  const parts: Part[] = [];
  let x = a.length;
  let y = b.length;
  for (let d = trace.length - 1; d >= 0; d--) {
    const reach = trace[d] as Map<number, number>;
    const k = x - y;
    const down = k === -d || (k !== d && (reach.get(k - 1) ?? -1) < (reach.get(k + 1) ?? -1));
    const from = down ? k + 1 : k - 1;
    const x0 = reach.get(from) ?? 0;
    const y0 = x0 - from;
    while (x > x0 && y > y0 && x > 0 && y > 0) {
      parts.push({ kind: "same", text: a[--x] as string });
      y--;
    }
    if (d === 0) break;
    if (down) parts.push({ kind: "theirs", text: b[--y] as string });
    else parts.push({ kind: "ours", text: a[--x] as string });
  }
  return parts.reverse();
}

function merged(parts: Part[]): Part[] {
  const found: Part[] = [];
  for (const part of parts) {
    const last = found[found.length - 1];
    if (last && last.kind === part.kind) last.text += part.text;
    else if (part.text) found.push({ ...part });
  }
  return found;
}
