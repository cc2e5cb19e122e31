// Keyboard shortcuts, which are off while something is typed.

export const SHORTCUTS: [string, string][] = [
  ["j k", "next and previous step"],
  ["n p", "next and previous step where the signs of estimators A and B differ"],
  ["] [", "next and previous trajectory of the group"],
  ["g", "the group of the step"],
  ["s", "the group's graph of states"],
  ["t", "the table of rollouts"],
  ["↑ ↓", "the rollout above or below in the table"],
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
