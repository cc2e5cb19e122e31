// Texts of a run. They are data: shown as text, with marks for characters that cannot be seen or that turn the line.
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { diff } from "./diff";
import type { Text, Trajectory } from "./documents";
import { integer } from "./format";
import { partsOf } from "./response_parts";

const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff\ufffe\uffff]/gu;

export function Marked({ text }: { text: string }) {
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const found of text.matchAll(HIDDEN)) {
    const code = `U+${(found[0].codePointAt(0) as number).toString(16).toUpperCase().padStart(4, "0")}`;
    parts.push(text.slice(end, found.index), <span class="hidden-character">{code}</span>);
    end = found.index + found[0].length;
  }
  return <>{end ? [...parts, text.slice(end)] : text}</>;
}

export const plain = (text: Text | undefined): string =>
  text === null || text === undefined ? "" : typeof text === "string" ? text : `${text.cut}…`;

/** The first line of a text, for a list. */
export function Line({ text, most = 160 }: { text: Text | undefined; most?: number }) {
  const line = plain(text).slice(0, 4 * most).replace(/\s+/g, " ").trim();
  return (
    <bdi>
      <Marked text={line.length > most ? `${line.slice(0, most)}…` : line} />
    </bdi>
  );
}

type BlockProps = { text: Text; label: string; children?: (text: string) => ComponentChildren };

export function Block({ text, label, children }: BlockProps) {
  if (text === null) return <p class="none">not stored</p>;
  const shown = typeof text === "string" ? text : text.cut;
  const missing = typeof text === "string" ? 0 : text.length - shown.length;
  return (
    <>
      <div class="text" role="region" aria-label={label} tabIndex={0} dir="auto">
        {children ? children(shown) : shown ? <Marked text={shown} /> : <span class="none">empty</span>}
      </div>
      {missing > 0 && <p class="note">{integer(missing)} more characters.</p>}
    </>
  );
}

/** A response with its thoughts, calls of tools and action apart. */
export function Response({ text, label }: { text: Text; label: string }) {
  return (
    <Block text={text} label={label}>
      {(shown) =>
        partsOf(shown).map(({ kind, text: part }) => (kind ? <span class={kind}><Marked text={part} /></span> : <Marked text={part} />))
      }
    </Block>
  );
}

/** What a text of another step has in place of ours. */
export function Diff({ ours, theirs }: { ours: Text; theirs: Text }) {
  if (ours === null || theirs === null) return <p class="none">the run does not store the texts</p>;
  return (
    <div class="text diff" dir="auto" role="region" aria-label="Difference" tabIndex={0}>
      {diff(plain(ours).slice(0, 4000), plain(theirs).slice(0, 4000)).map((part) => {
        if (part.kind === "same") return <Marked text={part.text} />;
        return part.kind === "ours" ? (
          <del>
            <Marked text={part.text} />
          </del>
        ) : (
          <ins>
            <Marked text={part.text} />
          </ins>
        );
      })}
    </div>
  );
}

/** A part that scrolls sideways, and shows at its edges that there is more. */
export function Wide({ label, element, tall, children }: { label: string; element?: RefObject<HTMLDivElement | null>; tall?: boolean; children: ComponentChildren }) {
  const own = useRef<HTMLDivElement>(null);
  const place = element ?? own;
  useEffect(() => {
    const part = place.current;
    if (!part) return;
    const look = () => {
      part.classList.toggle("scrolled", part.scrollLeft > 1);
      part.classList.toggle("more", part.scrollLeft + part.clientWidth < part.scrollWidth - 1);
    };
    const sizes = new ResizeObserver(look);
    for (const one of [part, ...part.children]) sizes.observe(one);
    part.addEventListener("scroll", look, { passive: true });
    return () => {
      sizes.disconnect();
      part.removeEventListener("scroll", look);
    };
  }, []);
  return <div class={tall ? "table-scroll tall" : "table-scroll"} role="region" aria-label={label} tabIndex={0} ref={place}>{children}</div>;
}

/** The names of trajectories without the part that all of them begin with. */
export function shortNames(all: Trajectory[]): string[] {
  const names = all.map((one) => one.trajectory);
  const first = names[0] ?? "";
  let same = names.length > 1 ? first.length : 0;
  for (const name of names) while (!name.startsWith(first.slice(0, same))) same--;
  const cut = first.slice(0, same).search(/[^-/_:. ]*$/);
  return names.map((name) => (cut > 0 && name.length > cut ? `…${name.slice(cut)}` : name));
}

const OUTCOMES = {
  aborted: ["!", "aborted"], won: ["✓", "won"], unknown: ["?", "success unknown"], cut: ["…", "step limit"], lost: ["✗", "not won"],
} as const;

type Ended = Pick<Trajectory, "aborted" | "won" | "truncated">;

/** How a rollout ended: the name of its colour, and the key of `OUTCOMES`. */
export function outcomeOf({ aborted, won, truncated }: Ended): keyof typeof OUTCOMES {
  if (aborted) return "aborted";
  if (won === null) return "unknown";
  if (won) return "won";
  return truncated ? "cut" : "lost";
}

export function Outcome({ of }: { of: Ended }) {
  const kind = outcomeOf(of);
  const [mark, meaning] = OUTCOMES[kind];
  return <span class={`mark ${kind}`} role="img" aria-label={meaning} title={meaning}>{mark}</span>;
}
