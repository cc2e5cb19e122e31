// A histogram that filters: a click on a bar, or a drag over several, chooses their values.
import { useRef } from "preact/hooks";
import { counted, number } from "./format";

/** The lower edges of the first and the last chosen bar. */
export type Range = [number, number];
export type Values = (number | null)[];

const BARS = 20;

export type Bins = { first: number; step: number; count: number };

/** About 20 bars of a round width; null if all values are equal. */
export function binsOf(values: Values): Bins | null {
  let low = Infinity;
  let high = -Infinity;
  let whole = true;
  for (const value of values) {
    if (value === null) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
    whole &&= Number.isInteger(value);
  }
  if (!(high > low)) return null;
  const rough = (high - low) / BARS;
  const size = 10 ** Math.floor(Math.log10(rough));
  const round = size * ([1, 2, 5].find((times) => times * size >= rough) ?? 10);
  const step = whole ? Math.max(1, round) : round;
  const first = Math.floor(low / step) * step;
  return { first, step, count: barOf({ first, step, count: 0 }, high) + 1 };
}

/** The bar of a value. Rounding must not move a lower edge into the bar before it. */
export const barOf = ({ first, step }: Bins, value: number): number => Math.floor((value - first) / step + 1e-6);

export const isWithin = (bins: Bins, range: Range, value: number | null): boolean =>
  value !== null && barOf(bins, value) >= barOf(bins, range[0]) && barOf(bins, value) <= barOf(bins, range[1]);

type Props = { label: string; bins: Bins; all: Values; kept: Values; range: Range | null; set: (range: Range | null) => void; names?: readonly string[] };

export function Histogram({ label, bins, all, kept, range, set, names }: Props) {
  const anchor = useRef(0);
  const place = useRef<HTMLDivElement>(null);
  const counts = [all, kept].map((values) => {
    const bars = new Array<number>(bins.count).fill(0);
    for (const value of values) if (value !== null) bars[barOf(bins, value)]!++;
    return bars;
  }) as [number[], number[]];
  const most = Math.max(...counts[0]);
  const height = (count: number) => `${100 * Math.sqrt(count / most)}%`; // so that rare values are seen
  const edge = (bar: number) => bins.first + bar * bins.step;
  const digits = Math.max(0, -Math.floor(Math.log10(bins.step) + 1e-9));
  const isUnit = bins.step === 1;
  const name = (bar: number) => names?.[bar] ?? (isUnit ? number(edge(bar), 0) : `${number(edge(bar), digits)} to ${number(edge(bar + 1), digits)}`);
  const chosen = range && [barOf(bins, range[0]), barOf(bins, range[1])] as const;
  const shown = chosen && `${chosen[0] === chosen[1] ? name(chosen[0]) : `${name(chosen[0])} … ${name(chosen[1])}`} ×`;
  const isChosen = (bar: number) => chosen !== null && bar >= chosen[0] && bar <= chosen[1];
  const upTo = (bar: number) => set([edge(Math.min(anchor.current, bar)), edge(Math.max(anchor.current, bar))]);
  const only = (bar: number) => {
    anchor.current = bar;
    set(chosen && chosen[0] === bar && chosen[1] === bar ? null : [edge(bar), edge(bar)]);
  };
  const pressed = (event: KeyboardEvent, bar: number) => {
    const to = bar + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? 0);
    if (event.key === "Escape") set(null);
    else if (event.key === "Enter" || event.key === " ") only(bar);
    else if (to !== bar && to >= 0 && to < bins.count) {
      (place.current?.children[to] as HTMLElement).focus();
      if (event.shiftKey) upTo(to);
    } else return;
    event.preventDefault();
  };
  return (
    <div class="histogram" role="group" aria-label={`${label}: histogram`}>
      <p><b>{label}</b>{shown && <button type="button" class="link" onClick={() => set(null)} aria-label={`${shown}: clear ${label}`}>{shown}</button>}</p>
      <div class="columns" ref={place}>
        {counts[0].map((count, bar) => (
          <button
            type="button" class={chosen && !isChosen(bar) ? "column off" : "column"} tabIndex={bar === (chosen?.[0] ?? 0) ? 0 : -1} aria-pressed={isChosen(bar)}
            title={`${name(bar)}: ${counts[1][bar]} of ${counted(count, "rollout")}`} aria-label={`${label} ${name(bar)}: ${counts[1][bar]} of ${counted(count, "rollout")}`}
            onPointerDown={(event) => { if (event.button === 0) { event.currentTarget.releasePointerCapture(event.pointerId); only(bar); } }}
            onPointerEnter={(event) => event.buttons === 1 && upTo(bar)}
            onKeyDown={(event) => pressed(event, bar)}
          >
            <span class="every" style={{ height: height(count) }} /><span class="kept" style={{ height: height(counts[1][bar]!) }} />
          </button>
        ))}
      </div>
      <p class="note ends"><span>{name(0)}</span>{bins.count > 1 && <span>{name(bins.count - 1)}</span>}</p>
    </div>
  );
}
