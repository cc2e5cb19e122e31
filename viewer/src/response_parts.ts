// The thoughts, calls of tools and actions of a response.

export type Part = { kind: string | null; text: string };

/** The parts of a response in their order, in time that is linear in its length. Thoughts and calls may be cut off. */
export function partsOf(text: string): Part[] {
  const parts: Part[] = [];
  const opening = /<(think|action|tool_call)>/gi;
  const unclosed = new Set<string>(); // kinds that end nowhere in the rest, which is then not searched again
  let start = 0;
  for (let open = opening.exec(text); open; open = opening.exec(text)) {
    const kind = (open[1] as string).toLowerCase();
    const closing = new RegExp(`</${kind}>`, "gi");
    closing.lastIndex = opening.lastIndex;
    if (unclosed.has(kind) || !closing.exec(text)) {
      unclosed.add(kind);
      if (kind === "action") continue;
      closing.lastIndex = text.length;
    }
    parts.push({ kind: null, text: text.slice(start, open.index) }, { kind, text: text.slice(open.index, closing.lastIndex) });
    start = opening.lastIndex = closing.lastIndex;
  }
  return [...parts, { kind: null, text: text.slice(start) }].filter((part) => part.text);
}
