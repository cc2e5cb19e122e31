// The two estimators whose advantages are compared, and their parameters.
import { useState } from "preact/hooks";
import { isFile, type Loaded, type Query, useDocument } from "./data";
import type { Estimate, Estimator, Head, Parameter, Run } from "./documents";
import { change as changeSettings } from "./route";

type Value = number | string | boolean | null;

/** An estimator with the parameters that differ from their defaults, and whether it is that of the training run. */
export type Chosen = { name: string; set: Record<string, Value>; trained?: boolean };

const FIRST = ["history_length", "alpha", "mode", "context", "gamma"];

/** The advantages that a run was trained on, in the place of an estimator. */
const AS_TRAINED: Estimator = { name: "trained", summary: "The advantages that the run was trained on", scope: "group", parameters: [] };

/** The estimators that can be chosen for a run. */
export const estimatorsOf = (run: Run, head: Head): Estimator[] => (run.stored ? [AS_TRAINED, ...head.estimators] : head.estimators);

/**
 * The estimators A and B of the address, written as on the command line: `hgpo:history_length=4:alpha=2`. By default,
 * they are those that the command line named; or else A is what the run was trained on, its stored advantages if there are
 * some, and B another estimator, with the parameters of training that it knows.
 */
export function chosenOf(settings: URLSearchParams, run: Run, head: Head): Chosen[] {
  const { trained } = run;
  const known = estimatorsOf(run, head);
  const names = known.map((one) => one.name);
  const first = [...new Set([...head.opened, ...run.usual, ...names])].filter((name) => names.includes(name));
  const initial = (name: string): Chosen => {
    const has = known.find((one) => one.name === name)?.parameters.map((one) => one.name) ?? [];
    const set = Object.fromEntries(Object.entries(trained?.set ?? {}).filter(([key]) => has.includes(key)));
    return { name, set, trained: name === trained?.name };
  };
  return ["a", "b"].map((letter, place) => {
    const parts = (settings.get(letter) ?? "").split(":");
    const at = parts.findIndex((part) => part.includes("="));
    const name = (at < 0 ? parts : parts.slice(0, at)).join(":");
    if (!names.includes(name)) return initial((first[place] ?? first[0]) as string);
    const set: Record<string, Value> = {};
    for (const part of at < 0 ? [] : parts.slice(at)) {
      const equals = part.indexOf("=");
      set[part.slice(0, equals)] = valueOf(decodeURIComponent(part.slice(equals + 1)));
    }
    return { name, set };
  });
}

function valueOf(text: string): Value {
  try {
    return JSON.parse(text) as Value;
  } catch {
    return text;
  }
}

/** Put an estimator into the address, as A or B. */
export function choose(letter: "a" | "b", { name, set }: Chosen): void {
  const assigned = Object.entries(set).map(([key, value]) => `${key}=${encodeURIComponent(typeof value === "string" ? value : JSON.stringify(value))}`);
  changeSettings({ [letter]: [name, ...assigned].join(":") });
}

/** The query of an estimate. */
export const asQuery = (chosen: Chosen): Query => ({
  estimator: chosen.name, set: Object.entries(chosen.set).map(([name, value]) => `${name}=${JSON.stringify(value)}`),
});

/** The largest absolute value of a column in a group. */
export const largest = (estimate: Estimate | null, column = "advantage"): number =>
  Math.max(0, ...(estimate?.columns[column] ?? []).map((value) => Math.abs(value ?? 0)));

export function useEstimate(path: string, group: number | null, chosen: Chosen, version: number): Loaded<Estimate> {
  const address = group === null ? null : `${path}/groups/${group}/estimates`;
  return useDocument<Estimate>(address, asQuery(chosen), version, `${address}`);
}

type PickerProps = {
  label: string;
  estimators: Estimator[];
  chosen: Chosen;
  choose: (chosen: Chosen) => void;
  depth: number;
  problem: string | null;
};

export function Picker({ label, estimators, chosen, choose, depth, problem }: PickerProps) {
  const [all, setAll] = useState(false);
  const found = estimators.find((one) => one.name === chosen.name);
  const parameters = found?.parameters ?? [];
  const first = FIRST.flatMap((name) => parameters.filter((one) => one.name === name));
  const others = parameters.filter((one) => !FIRST.includes(one.name));
  const change = (parameter: Parameter, value: Value) => {
    const set = { ...chosen.set, [parameter.name]: value };
    if (value === parameter.default) delete set[parameter.name];
    choose({ ...chosen, set });
  };
  const field = (parameter: Parameter) => (
    <Field
      key={`${chosen.name} ${parameter.name}`} {...{ parameter, depth, label }}
      value={parameter.name in chosen.set ? (chosen.set[parameter.name] as Value) : parameter.default}
      change={(value) => change(parameter, value)}
    />
  );
  return (
    <fieldset class="picker">
      <legend>{label}{chosen.trained && " · as trained"}</legend>
      <select
        aria-label={`${label}: estimator`} value={chosen.name} title={found?.summary}
        onChange={(event) => choose({ name: event.currentTarget.value, set: {} })}
      >
        {estimators.map((one) => <option value={one.name}>{one.name}</option>)}
      </select>
      {isFile ? (
        chosen.name !== AS_TRAINED.name && <p class="note">{Object.keys(chosen.set).length ? "parameters of the training run" : "default parameters, rewards × 10"}</p>
      ) : (
        <>
          {first.map(field)}
          {others.length > 0 && (
            <button type="button" class="link" aria-expanded={all} onClick={() => setAll(!all)}>
              {all ? "Fewer parameters" : "All parameters"}
            </button>
          )}
          {all && others.map(field)}
        </>
      )}
      {problem && <p class="error" role="alert">{problem}</p>}
    </fieldset>
  );
}

const SHORT: Record<string, string> = { history_length: "K", alpha: "α", gamma: "γ" };
const RANGES: Record<string, [number, number, number]> = { alpha: [0, 5, 0.25], gamma: [0, 1, 0.01] };

function Field({ parameter, value, change, depth, label }: {
  parameter: Parameter; value: Value; change: (value: Value) => void; depth: number; label: string;
}) {
  const [draft, setDraft] = useState<string | null>(null); // what is being typed, which a new document must not replace
  const name = SHORT[parameter.name] ?? parameter.name;
  const described = `${label}: ${parameter.name}`;
  const range = parameter.name === "history_length" ? ([0, depth, 1] as const) : RANGES[parameter.name];
  if (parameter.kind === "bool") {
    return (
      <label title={parameter.meaning}>
        <input type="checkbox" checked={Boolean(value)} onChange={(event) => change(event.currentTarget.checked)} /> {name}
      </label>
    );
  }
  if (parameter.kind === "choice") {
    return (
      <label title={parameter.meaning}>
        <span>{name}</span>
        <select aria-label={described} value={String(value)} onChange={(event) => change(choice(parameter, event.currentTarget.value))}>
          {parameter.choices?.map((one) => <option value={String(one)}>{String(one)}</option>)}
        </select>
      </label>
    );
  }
  if (parameter.kind === "text") {
    return (
      <label title={parameter.meaning}>
        <span>{name}</span>
        <input type="text" aria-label={described} value={value === null ? "" : String(value)} onChange={(event) => change(event.currentTarget.value || parameter.default)} />
      </label>
    );
  }
  const numeric = (text: string) => {
    const read = Number(text);
    if (text !== "" && Number.isFinite(read)) change(parameter.kind === "int" ? Math.round(read) : read);
  };
  return (
    <label title={parameter.meaning}>
      <span>{name}</span>
      {range && (
        <input
          type="range" aria-label={described} min={range[0]} max={range[1]} step={range[2]} value={Number(value)}
          onInput={(event) => numeric(event.currentTarget.value)}
        />
      )}
      <input
        type="number" class="short" aria-label={range ? `${described}, number` : described} value={draft ?? Number(value)}
        step={parameter.kind === "int" ? 1 : "any"} min={parameter.least ?? undefined}
        max={parameter.name === "history_length" ? depth : (parameter.most ?? undefined)}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onChange={(event) => { setDraft(null); numeric(event.currentTarget.value); }}
      />
    </label>
  );
}

/** A choice with its own type: some choices are numbers. */
const choice = (parameter: Parameter, text: string): Value =>
  (parameter.choices as Value[] | undefined)?.find((one) => String(one) === text) ?? text;
