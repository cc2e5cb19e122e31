// Curves, with a table of the same numbers.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Series } from "./documents";
import { number, percent } from "./format";
import { Wide } from "./texts";

export type Interval = [number, number] | null;
export type Curve = { name: string; values: Series; intervals?: Interval[] };

type Props = {
  title: string;
  axis?: string;
  xs: number[];
  curves: Curve[];
  share?: boolean | undefined;
  pick?: ((x: string) => void) | undefined;
};

const HEIGHT = 160;

export function Chart({ title, axis = "iteration", xs, curves, share, pick }: Props) {
  const place = useRef<HTMLDivElement>(null);
  const coloured = curves.map((curve, at) => ({ ...curve, colour: at })); // a run has one colour in all charts
  const shown = coloured.filter((curve) => curve.values.some((value) => value !== null));
  const bounded = shown.filter((curve) => curve.intervals?.some((interval) => interval !== null));
  const digits = decimals(shown.flatMap((curve) => curve.values));
  const format = (value: number | null) => (share ? percent(value, 1) : number(value, digits));
  const key = JSON.stringify([xs, shown]);
  useEffect(() => {
    const element = place.current;
    if (!element || !shown.length) return;
    let plot: uPlot | null = null;
    const draw = () => {
      plot?.destroy();
      const style = getComputedStyle(element);
      const colour = (name: string) => style.getPropertyValue(name).trim();
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      const options: uPlot.Options = {
        width: Math.max(200, element.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false },
        scales: { x: { time: false }, ...(share ? { y: { range: [0, 1] as [number, number] } } : {}) },
        axes: [
          { ...axis, size: 30, space: 60, incrs: [1, 2, 5].flatMap((one) => Array.from({ length: 9 }, (_, power) => one * 10 ** power)).sort((a, b) => a - b) },
          { ...axis, size: 52, values: (_: uPlot, ticks: number[]) => ticks.map((tick) => (share ? percent(tick) : String(tick).replace("-", "−"))) },
        ],
        series: [
          {},
          ...shown.map((curve) => ({
            stroke: colour(`--curve-${curve.colour % 6}`), width: 2, dash: curve.colour >= 6 ? [6, 4] : undefined, spanGaps: true, points: { show: xs.length < 60 },
          })),
          ...bounded.flatMap(() => [{ points: { show: false } }, { points: { show: false } }]),
        ],
        bands: bounded.map((curve, at) => ({
          series: [shown.length + 2 + 2 * at, shown.length + 1 + 2 * at] as [number, number],
          fill: `${colour(`--curve-${curve.colour % 6}`)}2e`,
        })),
      };
      const bounds = bounded.flatMap((curve) => [0, 1].map((end) => xs.map((_, at) => curve.intervals?.[at]?.[end] ?? null)));
      plot = new uPlot(options, [xs, ...shown.map((curve) => curve.values), ...bounds] as uPlot.AlignedData, element);
      plot.over.addEventListener("click", () => {
        const at = plot?.cursor.idx;
        if (pick && at !== null && at !== undefined) pick(String(xs[at]));
      });
    };
    draw();
    let width = element.clientWidth;
    const sizes = new ResizeObserver(() => {
      if (element.clientWidth !== width) {
        width = element.clientWidth;
        draw();
      }
    });
    sizes.observe(element);
    const themes = new MutationObserver(draw);
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      sizes.disconnect();
      themes.disconnect();
      plot?.destroy();
    };
  }, [key]);
  if (!shown.length) return null;
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <div ref={place} role="img" aria-label={`${title} by ${axis}; the table below has the numbers`} />
      <ul class="keys">
        {shown.map((curve) => (
          <li><Key at={curve.colour} /> {curve.name}, last: <b>{format(curve.values.findLast((value) => value !== null) ?? null)}</b></li>
        ))}
      </ul>
      <details>
        <summary>Table</summary>
        <Wide label={`${title}: table`}>
          <table>
            <thead><tr><th scope="col">{axis}</th>{shown.map((curve) => <th scope="col" class="figure">{curve.name}</th>)}</tr></thead>
            <tbody>
              {xs.map((x, at) => (
                <tr>
                  <th scope="row">{pick ? <button type="button" class="link" onClick={() => pick(String(x))}>{x}</button> : number(x, Number.isInteger(x) ? 0 : 1)}</th>
                  {shown.map((curve) => <td class="figure">{format(curve.values[at] ?? null)}{ranged(curve.intervals?.[at], format)}</td>)}
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      </details>
    </figure>
  );
}

/** The colour of a curve, with gaps where its line is dashed: colours are used again from the seventh on. */
export function Key({ at }: { at: number }) {
  const colour = `var(--curve-${at % 6})`;
  return <span class="key" style={{ background: at < 6 ? colour : `repeating-linear-gradient(90deg, ${colour} 0 5px, transparent 5px 8px)` }} aria-hidden="true" />;
}

/** As many decimals as three digits of the largest value need; none for counts. */
function decimals(values: Series): number {
  const most = Math.max(...values.map((value) => Math.abs(value ?? 0)));
  return most && !values.every((value) => value === null || Number.isInteger(value)) ? Math.min(12, Math.max(0, 2 - Math.floor(Math.log10(most)))) : 0;
}

const ranged = (interval: Interval | undefined, format: (value: number) => string) =>
  interval ? <small> ({format(interval[0])} to {format(interval[1])})</small> : null;
