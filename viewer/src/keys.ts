// Keyboard shortcuts, which are off while something is typed.

export const SHORTCUTS: [string, string][] = [
  ["j k", "next and previous step"],
  ["n p", "next and previous step where the signs of estimators A and B differ"],
  ["] [", "next and previous trajectory of the group"],
  ["g", "the group of the step"],
  ["s", "the group's graph of states"],
  ["t", "the table of rollouts"],
  ["↑ ↓ ← →", "in a table of rollouts, the link above, below or beside"],
  ["← →", "the next bar of a histogram; with Shift, choose up to it; Enter chooses one, Escape none"],
  ["/", "filter rollouts"],
  ["o", "overview of the run"],
  ["d", "dark or light colours"],
  ["?", "this list"],
];

/** Focus an element as soon as it is there: another view may have to load first. */
export function focusSoon(selector: string, tries = 200): void {
  const found = document.querySelector<HTMLElement>(selector);
  if (found) found.focus();
  else if (tries) requestAnimationFrame(() => focusSoon(selector, tries - 1));
}

/** Move the focus to the link beside, or to the next one above or below, in a table. */
export function moveFocus(event: KeyboardEvent): void {
  const from = document.activeElement as HTMLElement;
  const step = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const row = from.closest("tr");
  if (!step || !row || from.tagName !== "A") return;
  event.preventDefault();
  const linksOf = (part: Element) => [...part.querySelectorAll<HTMLElement>("a")];
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    linksOf(row)[linksOf(row).indexOf(from) + step]?.focus();
    return;
  }
  const left = from.getBoundingClientRect().left;
  const rows = [...(event.currentTarget as HTMLElement).children];
  for (let at = rows.indexOf(row) + step; rows[at]; at += step) {
    const found = linksOf(rows[at] as Element).find((link) => Math.abs(link.getBoundingClientRect().left - left) < 3);
    if (found) return found.focus();
  }
}

/** Call the action of a key that is pressed outside of inputs. Returns a function that ends it. */
export function onKey(actions: Record<string, () => void>): () => void {
  const pressed = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const target = event.target as HTMLElement;
    if (target.closest("input, select, textarea, dialog[open]")) return; // a closed dialog keeps the focus until the next frame
    const action = Object.hasOwn(actions, event.key) ? actions[event.key] : undefined;
    if (!action) return;
    event.preventDefault();
    action();
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}
