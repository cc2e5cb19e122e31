// Curves of one run or of several: results of rollouts and metrics of training, by iteration, environment steps or time.
import { useEffect, useState } from "preact/hooks";
import { Chart, type Curve, type Interval } from "./chart";
import { get } from "./data";
import type { Curves, Measure, Run } from "./documents";
import { downloadCsv } from "./download";
import { change } from "./route";
import { Line } from "./texts";

/** A value of a metric, and where it is on each axis: the experience of the policy that has it. */
type Point = { iteration: number; steps: number; seconds: number | null; value: number; interval: Interval };

const AXES = { iteration: "iteration", steps: "environment steps", seconds: "seconds of training" } as const;
type Axis = keyof typeof AXES;

const MEASURES: Record<string, { of: Measure; share?: boolean }> = {
  success: { of: "success", share: true }, return: { of: "mean_return" }, length: { of: "mean_length" }, score: { of: "score" },
  "valid actions": { of: "valid", share: true }, "admissible actions": { of: "admissible", share: true },
};
const FIRST = ["success", "return", "length", "val/success_rate"];
const NONE = "none";

/** The values of a metric, placed by the training of the policy: that of the run itself, or of the run that it evaluates. */
function pointsOf({ results, metrics, metrics_iterations: updates }: Curves, name: string, training: Curves): Point[] {
  // Iteration n is played by the policy after n updates, and so is an evaluation in line n of the metrics. All else in
  // this line is of the update that it counts, whose rollouts were played after one less.
  const shift = /^(training|val)\//.test(name) ? 0 : 1;
  const durations = training.metrics["timing_s/step"];
  const before = (iteration: number) => training.results.reduce((sum, one) => sum + (one.iteration < iteration ? one.steps : 0), 0);
  const until = (iteration: number) =>
    durations ? training.metrics_iterations.reduce((sum, update, at) => sum + (update <= iteration ? (durations[at] ?? 0) : 0), 0) : null;
  const point = (iteration: number, value: number | null | undefined, interval: Interval): Point[] =>
    value === null || value === undefined ? [] : [{ iteration, steps: before(iteration), seconds: until(iteration), value, interval }];
  const measure = MEASURES[name]?.of;
  if (measure) return results.flatMap((one) => point(one.iteration, one[measure], one.intervals[measure]));
  return updates.flatMap((update, at) => point(update - shift, metrics[name]?.[at], null));
}

/** The exponential moving average, without its bias towards the first value. */
function smoothed(values: number[], weight: number): number[] {
  let sum = 0;
  let weights = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + (1 - weight);
    return sum / weights;
  });
}

type Shown = { name: string; path: string; trainer: string | null };

/** Runs with the addresses of their documents, and of those of the training that they evaluate. */
export function withTrainers(runs: Run[]): Shown[] {
  const pathOf = (name: string) => `runs/${runs.findIndex((run) => run.name === name)}`;
  return runs.map(({ name, trainer }) => ({ name, path: pathOf(name), trainer: trainer && pathOf(trainer) }));
}

type Props = { runs: Shown[]; settings: URLSearchParams; version: number; pick?: (iteration: string) => void };

export function CurvesPart({ runs, settings, version, pick }: Props) {
  const [found, setFound] = useState<(Curves | null)[][]>([]);
  useEffect(() => {
    let current = true;
    const curvesAt = (path: string) => get<Curves>(`${path}/curves`).catch(() => null);
    const asked = runs.map(({ path, trainer }) => Promise.all([path, trainer ?? path].map(curvesAt)));
    Promise.all(asked).then((all) => current && setFound(all));
    return () => { current = false; };
  }, [runs.map(({ path }) => path).join(), version]);

  const points = (at: number, name: string): Point[] => {
    const [own, training] = found[at] ?? [];
    return own && training && !own.seeds ? pointsOf(own, name, training) : [];
  };
  const known = new Set([...Object.keys(MEASURES), ...found.flatMap(([own]) => Object.keys(own?.metrics ?? {}))]);
  const names = [...known].filter((name) => runs.some((_, at) => points(at, name).length > 1));
  if (!names.length) return null;
  const wanted = settings.get("metrics")?.split(",") ?? FIRST;
  const shown = names.filter((name) => wanted.includes(name));
  const axis = Object.hasOwn(AXES, settings.get("x") ?? "") ? (settings.get("x") as Axis) : "iteration";
  const weight = Math.min(0.99, Math.max(0, Number(settings.get("smooth")) || 0));
  const toggle = (name: string) => {
    const chosen = shown.includes(name) ? shown.filter((one) => one !== name) : [...shown, name];
    change({ metrics: chosen.join(",") || NONE });
  };
  const csv = () => downloadCsv("curves", runs.flatMap((run, at) => shown.flatMap((name) =>
    points(at, name).map(({ interval, ...point }) => ({ run: run.name, metric: name, ...point, low: interval?.[0] ?? null, high: interval?.[1] ?? null })))));
  return (
    <section aria-label="Curves">
      <h2>Curves</h2>
      <div class="row">
        <label>x{" "}
          <select aria-label="Horizontal axis" value={axis} onChange={(event) => change({ x: event.currentTarget.value })}>
            {Object.entries(AXES).map(([value, name]) => <option value={value}>{name}</option>)}
          </select>
        </label>
        <label>smoothing{" "}
          <input type="range" min={0} max={0.99} step={0.01} aria-label="Smoothing" value={weight} onInput={(event) => change({ smooth: event.currentTarget.value })} /> {weight || "off"}
        </label>
        <button type="button" onClick={csv}>CSV</button>
      </div>
      <details class="metrics">
        <summary>Metrics ({shown.length} of {names.length})</summary>
        <div class="choices">
          {names.map((name) => <label><input type="checkbox" checked={shown.includes(name)} onChange={() => toggle(name)} /> <Line text={name} most={60} /></label>)}
        </div>
      </details>
      <div class="charts">
        {shown.map((name) => (
          <Chart
            key={name} title={weight ? `${name}, smoothed` : name} axis={AXES[axis]} share={MEASURES[name]?.share} pick={axis === "iteration" ? pick : undefined}
            {...aligned(runs.map((run, at) => ({ name: runs.length > 1 ? run.name : name, points: points(at, name) })), axis, weight)}
          />
        ))}
      </div>
      <p class="note">
        Bands are 95% intervals that take tasks as independent; smoothing (an exponential moving average) leaves them out. Iteration n is played after n
        updates, as in the step table: its update is line n + 1 of metrics.jsonl, evaluations (val) of line n are of the same policy; environment steps and seconds are those of training until then.{pick && " Click on a point to list its rollouts."}
      </p>
    </section>
  );
}

/** Curves over the places of all of them. */
function aligned(curves: { name: string; points: Point[] }[], axis: Axis, weight: number): { xs: number[]; curves: Curve[] } {
  const known = curves.map(({ name, points }) => ({ name, points: points.filter((point) => point[axis] !== null) }));
  const xs = [...new Set(known.flatMap(({ points }) => points.map((point) => point[axis] as number)))].sort((a, b) => a - b);
  return {
    xs,
    curves: known.map(({ name, points }) => {
      const shown = weight ? smoothed(points.map((point) => point.value), weight) : points.map((point) => point.value);
      const places = new Map(points.map((point, at) => [point[axis], at]));
      const at = (x: number) => places.get(x) ?? -1;
      return { name, values: xs.map((x) => shown[at(x)] ?? null), intervals: xs.map((x) => (weight ? null : (points[at(x)]?.interval ?? null))) };
    }),
  };
}
