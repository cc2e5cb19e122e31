// A step: what the policy saw and wrote, and the hierarchy of groups that its advantage is computed in.
import { useLayoutEffect } from "preact/hooks";
import { get, useDocument } from "./data";
import type { Estimator, Group, Step } from "./documents";
import { type Chosen, Picker, useEstimate } from "./estimators";
import { number, shade, signed } from "./format";
import { GroupHead, largest, Strip } from "./group";
import { Hierarchy } from "./hierarchy";
import { onKey } from "./keys";
import { go, links } from "./route";
import { Block, Line, Marked, Response } from "./texts";
import { Outcome } from "./tree";

type Props = {
  path: string;
  run: string;
  version: number;
  trajectory: string;
  step: number;
  estimators: Estimator[];
  chosen: Chosen[];
  setChosen: (chosen: Chosen[]) => void;
};

export function StepPage({ path, run, version, trajectory, step, estimators, chosen, setChosen }: Props) {
  const found = useDocument<{ group: number; row: number }>(`${path}/find`, { trajectory }, version, `${path} found`);
  const at = found.value?.group ?? null;
  const group = useDocument<Group>(at === null ? null : `${path}/groups/${at}`, {}, version);
  const place = group.value?.trajectories.findIndex((one) => one.trajectory === trajectory) ?? -1;
  const one = group.value?.trajectories[place];
  const current = one ? Math.min(Math.max(0, step), one.length - 1) : 0;
  const row = one ? one.row + current : null;
  const texts = useDocument<Step>(row === null ? null : `${path}/steps/${row}`, {}, version);
  const a = useEstimate(path, group.value ? at : null, chosen[0] as Chosen, version);
  const b = useEstimate(path, group.value ? at : null, chosen[1] as Chosen, version);

  const visit = (name: string | undefined, where: number) => name !== undefined && go(links.step(run, name, where));
  useLayoutEffect(() => {
    if (one && current + 1 < one.length) get(`${path}/steps/${one.row + current + 1}`).catch(() => undefined);
    const members = group.value?.trajectories ?? [];
    return onKey({
      j: () => one && current + 1 < one.length && visit(trajectory, current + 1),
      k: () => current > 0 && visit(trajectory, current - 1),
      "]": () => visit(members[place + 1]?.trajectory, 0),
      "[": () => visit(members[place - 1]?.trajectory, 0),
      g: () => at !== null && go(links.group(run, at)),
      s: () => at !== null && go(links.graph(run, at)),
    });
  });

  const problem = found.error ?? group.error ?? texts.error;
  if (problem) return <p class="error page" role="alert">{problem}</p>;
  if (!group.value || !one || row === null) return <p class="page" role="status">Loading …</p>;
  const inside = row - group.value.row;
  const choose = (which: number) => (changed: Chosen) => setChosen(chosen.map((old, place) => (place === which ? changed : old)));
  return (
    <article class="page">
      <GroupHead
        run={run} group={group.value}
        inner={<> › <Outcome of={one} /> <Line text={trajectory} most={60} /> › step {current} of {one.length}</>}
      />
      {one.error !== null && <p class="error">{one.aborted ? "Aborted: " : ""}<Line text={one.error} most={400} /></p>}
      <div class="row stepper">
        <button type="button" disabled={current === 0} onClick={() => visit(trajectory, current - 1)} aria-label="Previous step">‹</button>
        <div class="strip-scroll" role="region" aria-label="Steps of the trajectory" tabIndex={0}>
          <Strip run={run} group={group.value} trajectory={trajectory} estimate={a.value} current={current} />
        </div>
        <button type="button" disabled={current + 1 >= one.length} onClick={() => visit(trajectory, current + 1)} aria-label="Next step">›</button>
      </div>
      <div class="columns">
        <section aria-label="The step" class="texts">
          {texts.value ? <Texts path={path} step={texts.value} group={group.value} row={inside} /> : <p role="status">Loading …</p>}
        </section>
        <section aria-label="Groups and advantages" class="groups">
          <div class="pickers">
            <Picker label="A" estimators={estimators} chosen={chosen[0] as Chosen} choose={choose(0)} depth={group.value.depth} problem={a.error} />
            <Picker label="B" estimators={estimators} chosen={chosen[1] as Chosen} choose={choose(1)} depth={group.value.depth} problem={b.error} />
          </div>
          <Advantages a={a.value} b={b.value} names={chosen.map((picked) => picked.name)} row={inside} />
          <Hierarchy run={run} group={group.value} row={inside} a={a.value} b={b.value} />
        </section>
      </div>
    </article>
  );
}

function Advantages({ a, b, names, row }: {
  a: ReturnType<typeof useEstimate>["value"]; b: ReturnType<typeof useEstimate>["value"]; names: string[]; row: number;
}) {
  return (
    <dl class="advantages" aria-live="polite">
      {[a, b].map((estimate, place) => {
        const value = estimate?.columns.advantage?.[row];
        return (
          <div style={{ background: shade(value, largest(estimate)) ?? "" }}>
            <dt>{"AB"[place]}: {names[place]}</dt>
            <dd>{estimate ? signed(value, 3) : "…"}</dd>
            <dd class="note" title="R: the rewards from this step on, discounted and multiplied by reward_scale, less the penalty">R {number(estimate?.columns.return?.[row], 3)}</dd>
          </div>
        );
      })}
    </dl>
  );
}

function Texts({ path, step, group, row }: { path: string; step: Step; group: Group; row: number }) {
  const where = `${path}/steps/${step.row}`;
  const next = group.steps.next[row];
  const last = row + 1 >= group.rows || group.steps.trajectory[row + 1] !== group.steps.trajectory[row];
  return (
    <>
      <h2>State</h2>
      <Block text={step.state} label="State" place={{ path: where, column: "state" }} />
      <h2>
        Action{" "}
        {step.action_valid ? <span class="badge">valid</span> : <span class="badge bad">invalid</span>}
        {step.admissible === false && step.action_valid && <span class="badge bad">not admissible</span>}
      </h2>
      <Block text={step.action} label="Action" place={{ path: where, column: "action" }} />
      {step.why_invalid && <p class="error">Invalid: {step.why_invalid}.</p>}
      <p class="note">
        reward {number(group.steps.reward[row], 3)}
        {group.steps.score[row] !== null && ` · score ${number(group.steps.score[row], 3)}`}
        {step.finish_reason && ` · generation ended by ${step.finish_reason}`}
        {step.prompt_tokens !== null && ` · ${step.prompt_tokens} prompt tokens`}
        {step.response_tokens !== null && ` · ${step.response_tokens} response tokens`}
        {step.cut_pairs ? ` · ${step.cut_pairs} past steps cut from the prompt` : ""}
        {` · policy after ${step.policy_version} updates`}
        {step.policy_s !== null && ` · policy ${step.policy_s.toFixed(2)} s`}
      </p>
      {last && next !== null && next !== undefined && (
        <>
          <h2>State after the last step</h2>
          <Block text={group.states[next] ?? null} label="State after the last step" place={{ path: where, column: "next_state" }} />
        </>
      )}
      <h2>Response</h2>
      <Response text={step.response} place={{ path: where, column: "response" }} />
      {step.tokens && step.logprobs && <Tokens ids={step.tokens} texts={step.token_texts} logprobs={step.logprobs} total={step.response_tokens ?? 0} />}
      <details open={step.response === null}>
        <summary>Prompt</summary>
        <Block text={step.prompt} label="Prompt" place={{ path: where, column: "prompt" }} />
      </details>
      {step.admissible_actions && (
        <details>
          <summary>{step.admissible_count} admissible actions</summary>
          <ul class="actions">
            {step.admissible_actions.map((action) => (
              <li class={typeof action === "string" && action === step.action ? "taken" : ""}><Line text={action} most={300} /></li>
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

/** A token's text in which a line break can be seen. */
const visible = (text: string): string => text.replace(/\n/g, "⏎\n");

/** The response's tokens, darker where they were less likely; as ids if the run's tokenizer is not on this machine. */
function Tokens({ ids, texts, logprobs, total }: { ids: number[]; texts: (string | null)[] | null; logprobs: number[]; total: number }) {
  const sum = logprobs.reduce((before, value) => before + value, 0);
  const mean = logprobs.length ? sum / logprobs.length : 0;
  return (
    <details open={texts !== null}>
      <summary>Log-probabilities: {signed(sum)} in all, {signed(mean)} per token</summary>
      <p class="note">
        {texts ? "The tokens of the response" : "The ids of the tokens (the run's tokenizer is not on this machine)"}, darker where the policy thought them
        less likely.
      </p>
      <p class={texts ? "tokens read" : "tokens"} dir="auto">
        {ids.map((id, place) => {
          const value = logprobs[place] ?? 0;
          return (
            <span
              title={`token ${place}, id ${id}: probability ${(100 * Math.exp(value)).toFixed(1)}%`}
              style={{ background: `color-mix(in srgb, var(--minus) ${Math.round(45 * (1 - Math.exp(value / 2)))}%, var(--panel))` }}
            >
              {typeof texts?.[place] === "string" ? <Marked text={visible(texts[place])} /> : id}
            </span>
          );
        })}
      </p>
      {total > ids.length && <p class="note">{total - ids.length} more tokens.</p>}
    </details>
  );
}
