// A trajectory as a conversation in one scroll, and the groups and advantages of the step that is being read.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { repeats } from "./align";
import { useDocument } from "./data";
import { numbered, TOGETHER } from "./documents";
import type { Estimate, Estimator, Group, Rollouts, Step, Trajectory } from "./documents";
import { type Chosen, choose, largest, Picker, useEstimate } from "./estimators";
import { counted, number, percent, shade, signed } from "./format";
import { StepTable } from "./graph";
import { GroupHead, Strips } from "./group";
import { Hierarchy } from "./hierarchy";
import { onKey } from "./keys";
import { forksOf } from "./lanes";
import { go, links, replace } from "./route";
import { NoteEditor } from "./notes";
import { Block, Line, Marked, Outcome, plain, Response, Wide } from "./texts";

type Props = {
  path: string;
  run: string;
  notable: boolean;
  version: number;
  trajectory: string;
  step: number;
  estimators: Estimator[];
  chosen: Chosen[];
};

export function TranscriptPage({ path, run, notable, version, trajectory, step, estimators, chosen }: Props) {
  const found = useDocument<Rollouts>(`${path}/rollouts`, {}, version);
  const at = found.value?.columns.number[found.value.columns.trajectory.indexOf(trajectory)] ?? null;
  const group = useDocument<Group>(at === null ? null : `${path}/groups/${at}`, {}, version);
  const place = group.value?.trajectories.findIndex((one) => one.trajectory === trajectory) ?? -1;
  const one = group.value?.trajectories[place];
  const current = one ? Math.min(Math.max(0, step - (one.branch_step ?? 0)), one.length - 1) : 0; // its place in the rows
  const a = useEstimate(path, group.value ? at : null, chosen[0] as Chosen, version);
  const b = useEstimate(path, group.value ? at : null, chosen[1] as Chosen, version);
  const [side, setSide] = useState(false);
  const followed = useRef<number | null>(null); // the step that a person has scrolled to, which needs no scrolling
  const shown = useRef(current);
  shown.current = current;
  const page = useRef<HTMLElement>(null);

  const first = one && group.value ? one.row - group.value.row : 0;
  const apart = one ? Array.from({ length: one.length }, (_, at) => at).filter((at) => disagree(a.value, b.value, first + at)) : [];
  const visit = (name: string | undefined, where: number | undefined) =>
    name !== undefined && where !== undefined && go(links.step(run, name, one && name === trajectory ? numbered(one, where) : where));
  useLayoutEffect(() => {
    const members = group.value?.trajectories ?? [];
    return onKey({
      j: () => one && current + 1 < one.length && visit(trajectory, current + 1),
      k: () => current > 0 && visit(trajectory, current - 1),
      n: () => visit(trajectory, apart.find((at) => at > current)),
      p: () => visit(trajectory, apart.filter((at) => at < current).pop()),
      "]": () => visit(members[place + 1]?.trajectory, 0),
      "[": () => visit(members[place - 1]?.trajectory, 0),
      g: () => at !== null && go(links.group(run, at)),
      s: () => at !== null && go(links.graph(run, at)),
    });
  });
  useEffect(() => {
    if (!one) return;
    let timer = 0;
    let byHand = false;
    const arm = () => { byHand = true; };
    const scrolled = () => {
      if (!byHand) return;
      clearTimeout(timer);
      timer = setTimeout(() => {
        byHand = false;
        const top = (document.getElementById("main")?.getBoundingClientRect().top ?? 0) + 80;
        const read = [...(page.current?.querySelectorAll(".turn") ?? [])].findIndex((turn) => turn.getBoundingClientRect().bottom > top);
        if (read < 0 || read === shown.current) return;
        followed.current = read;
        replace(links.step(run, trajectory, numbered(one, read)));
      }, 120);
    };
    for (const name of ["wheel", "touchmove"]) addEventListener(name, arm, { passive: true });
    document.addEventListener("scroll", scrolled, { passive: true, capture: true });
    return () => {
      clearTimeout(timer);
      for (const name of ["wheel", "touchmove"]) removeEventListener(name, arm);
      document.removeEventListener("scroll", scrolled, { capture: true });
    };
  }, [run, one?.trajectory]);

  const problem = found.error ?? group.error ?? (found.value && at === null ? `No rollout ${trajectory.slice(0, 200)} in this run.` : null);
  if (problem) return <p class="error page" role="alert">{problem}</p>;
  if (!group.value || !one) return <p class="page" role="status">Loading …</p>;
  const names = chosen.map((picked) => (picked.trained ? `${picked.name}, as trained` : picked.name));
  return (
    <article class="page transcript" ref={page}>
      <div class="turns">
        <GroupHead
          {...{ path, run, version }} group={group.value}
          inner={<> › <Outcome of={one} /> <Line text={trajectory} most={60} /> › step {numbered(one, current)} of {numbered(one, one.length)}</>}
        />
        <p class="note">Bars of A and B have one scale: half a bar is {number(Math.max(largest(a.value), largest(b.value)))}, the group's largest advantage.</p>
        <p class="note">return {number(one.episode_return)} · {counted(one.length, "step")}{one.invalid > 0 && ` · ${counted(one.invalid, "invalid action")}`}{one.truncated && " · ended by the step limit"}</p>
        {one.parent !== null && (
          <p class="branch">
            This branch leaves <a href={links.step(run, one.parent, one.branch_step ?? 0)}><Line text={one.parent} most={60} /></a> at step {one.branch_step}; the steps
            before are those of that rollout.
          </p>
        )}
        {one.error !== null && <p class="error">{one.aborted ? "Aborted: " : ""}<Line text={one.error} most={400} /></p>}
        <Turns {...{ path, run, version, one, current, followed, names }} group={group.value} a={a.value} b={b.value} />
      </div>
      <aside class={side ? "side open" : "side"} aria-label="Groups and advantages">
        <button type="button" class="sheet" aria-expanded={side} onClick={() => setSide(!side)}>Advantages and groups of step {numbered(one, current)}</button>
        <div class="side-parts">
          <p class="row">
            <button type="button" disabled={current === 0} onClick={() => visit(trajectory, current - 1)} aria-label="Previous step">‹</button>
            <strong>step {numbered(one, current)}</strong>
            <button type="button" disabled={current + 1 >= one.length} onClick={() => visit(trajectory, current + 1)} aria-label="Next step">›</button>
            <button type="button" disabled={!apart.some((at) => at > current)} onClick={() => visit(trajectory, apart.find((at) => at > current))}>
              next A ≠ B
            </button>
            <span class="note">{counted(apart.length, "step")} where the signs of A and B differ</span>
          </p>
          <Advantages a={a.value} b={b.value} names={names} row={first + current} />
          <NoteEditor key={trajectory} {...{ path, trajectory, version, notable }} />
          <details class="estimators">
            <summary>Estimators and their parameters</summary>
            <div class="pickers">
              <Picker label="A" estimators={estimators} chosen={chosen[0] as Chosen} choose={(picked) => choose("a", picked)} depth={group.value.depth} problem={a.error} />
              <Picker label="B" estimators={estimators} chosen={chosen[1] as Chosen} choose={(picked) => choose("b", picked)} depth={group.value.depth} problem={b.error} />
            </div>
          </details>
          {(a.error ?? b.error) && <p class="error" role="alert">{a.error ?? b.error}</p>}
          <h2>Rollouts of the group</h2>
          <Strips key={String(side)} run={run} group={group.value} estimate={a.value} current={{ trajectory: place, step: current }} />
          <Hierarchy run={run} group={group.value} row={first + current} a={a.value} b={b.value} />
        </div>
      </aside>
    </article>
  );
}

/** Whether one estimator reinforces a step and the other does not. */
function disagree(a: Estimate | null, b: Estimate | null, row: number): boolean {
  const [ours, theirs] = [a, b].map((estimate) => estimate?.columns.advantage?.[row]);
  if (ours === null || ours === undefined || theirs === null || theirs === undefined) return false;
  const sign = (value: number) => (Math.abs(value) < 1e-9 ? 0 : Math.sign(value));
  return sign(ours) !== sign(theirs);
}

function Advantages({ a, b, names, row }: { a: Estimate | null; b: Estimate | null; names: string[]; row: number }) {
  return (
    <dl class="advantages" aria-live="polite">
      {[a, b].map((estimate, place) => (
        <div style={{ background: shade(estimate?.columns.advantage?.[row], largest(estimate)) ?? "" }}>
          <dt>{"AB"[place]}: {names[place]}</dt>
          <dd>{estimate ? signed(estimate.columns.advantage?.[row], 3) : "…"}</dd>
          <dd class="note" title="R: the rewards from this step on, discounted and multiplied by reward_scale, less the penalty">R {number(estimate?.columns.return?.[row], 3)}</dd>
        </div>
      ))}
    </dl>
  );
}

// ------------------------------------------------------------------------------------------------- the conversation

type TurnsProps = {
  path: string; run: string; version: number; group: Group; one: Trajectory; current: number; names: string[];
  followed: { current: number | null }; a: Estimate | null; b: Estimate | null;
};

function Turns({ path, run, version, group, one, current, followed, names, a, b }: TurnsProps) {
  const again = useMemo(() => repeats(group), [group]);
  const forks = useMemo(() => forksOf(group), [group]);
  const list = useRef<HTMLDivElement>(null);
  const starts = Array.from({ length: Math.ceil(one.length / TOGETHER) }, (_, block) => block * TOGETHER);
  const [seen, setSeen] = useState<Set<string>>(new Set());
  const [loaded, setLoaded] = useState(-1);
  const wanted = Math.floor(current / TOGETHER) * TOGETHER;
  const key = (start: number) => `${one.trajectory} ${start}`;
  useEffect(() => {
    const watch = new IntersectionObserver((entries) => {
      const near = entries.filter((entry) => entry.isIntersecting).map((entry) => key(Number((entry.target as HTMLElement).dataset.start)));
      if (near.length) setSeen((before) => (near.every((name) => before.has(name)) ? before : new Set([...before, ...near])));
    }, { rootMargin: "600px" });
    for (const block of list.current?.children ?? []) watch.observe(block);
    return () => watch.disconnect();
  }, [one.trajectory, starts.length]);
  useEffect(() => {
    if (followed.current === current) return;
    followed.current = null;
    const turn = list.current?.querySelector(`[data-step="${current}"]`);
    if (current) turn?.scrollIntoView({ block: "start" });
    else list.current?.parentElement?.scrollIntoView({ block: "start" });
  }, [one.trajectory, current, loaded]);
  return (
    <div ref={list}>
      {starts.map((start) => (
        <Together
          key={key(start)} {...{ path, run, version, group, one, current, names, a, b, again, forks, start }}
          wanted={start === wanted || seen.has(key(start))} ready={start === wanted ? setLoaded : undefined}
        />
      ))}
    </div>
  );
}

type TogetherProps = Omit<TurnsProps, "followed"> & {
  again: (number | null)[]; forks: number[][]; start: number; wanted: boolean; ready: ((row: number) => void) | undefined;
};

function Together({ path, run, version, group, one, current, names, a, b, again, forks, start, wanted, ready }: TogetherProps) {
  const steps = Math.min(TOGETHER, one.length - start);
  const texts = useDocument<Step[]>(wanted ? `${path}/steps/${one.row + start}/${steps}` : null, {}, version);
  const row = one.row + start;
  useEffect(() => {
    if (texts.value) ready?.(row); // heights have changed: the current step is scrolled to again
  }, [texts.value !== null]);
  return (
    <div data-start={start}>
      {texts.error && <p class="error" role="alert">{texts.error}</p>}
      {Array.from({ length: steps }, (_, place) => (
        <Turn
          key={place} {...{ run, group, names, a, b }} step={start + place} texts={texts.value?.[place] ?? null}
          row={row + place - group.row} again={again[row + place - group.row] ?? null} fork={forks[row + place - group.row] ?? []} one={one} current={start + place === current}
        />
      ))}
    </div>
  );
}

type TurnProps = {
  run: string; group: Group; one: Trajectory; step: number; row: number; texts: Step | null;
  again: number | null; fork: number[]; current: boolean; names: string[]; a: Estimate | null; b: Estimate | null;
};

function Turn({ run, group, one, step, row, texts, again, fork, current, names, a, b }: TurnProps) {
  const { steps } = group;
  const at = numbered(one, step);
  const most = Math.max(largest(a), largest(b));
  const action = steps.action[row];
  const state = group.states[steps.state[row] as number] ?? null;
  const next = steps.next[row];
  const last = step + 1 === one.length;
  const valid = steps.valid[row];
  const won = fork.filter((other) => group.trajectories[steps.trajectory[other] as number]?.won).length;
  return (
    <section class={`turn ${current ? "current" : ""} ${valid ? "" : "invalid"}`} data-step={step} aria-label={`Step ${at}`} aria-current={current ? "step" : undefined}>
      <div class="margin">
        <a href={links.step(run, one.trajectory, at)}><strong>{at}</strong></a>
        <Bar name={`A: ${names[0]}`} estimate={a} row={row} most={most} />
        <Bar name={`B: ${names[1]}`} estimate={b} row={row} most={most} />
        {!valid && <span class="badge bad">invalid</span>}
        {disagree(a, b, row) && <span class="badge apart">A ≠ B</span>}
        {steps.reward[row] !== 0 && <span class="badge">reward {number(steps.reward[row], 3)}</span>}
      </div>
      <div class="said">
        {again === null ? <Block text={state} label={`State of step ${at}`} /> : (
          <details>
            <summary>The same state as at step {again}: <Line text={state} most={60} /></summary>
            <Block text={state} label={`State of step ${at}`} />
          </details>
        )}
        {fork.length > 1 && (
          <Folded title={`${counted(fork.length, "rollout")} of the tree continue from here, ${won} won`} open={step === 0 && one.parent !== null}>
            {() => <Wide label={`Branches at step ${at}`} tall><StepTable {...{ run, group }} rows={fork} estimate={a} current={row} /></Wide>}
          </Folded>
        )}
        {texts && texts.prompt !== null && (
          <Folded title={`Prompt${texts.prompt_tokens === null ? "" : `, ${counted(texts.prompt_tokens, "token")}`}`}>
            {() => <Block text={texts.prompt} label={`Prompt of step ${at}`} />}
          </Folded>
        )}
        {texts && texts.response !== null && texts.response !== texts.action && <Response text={texts.response} label={`Response of step ${at}`} />}
        {texts?.message && <Folded title="Message as the server sent it">{() => <Block text={texts.message} label={`Message of step ${at}`} />}</Folded>}
        {texts?.tokens && texts.logprobs && <Tokens ids={texts.tokens} texts={texts.token_texts} logprobs={texts.logprobs} total={texts.response_tokens ?? 0} />}
        <p class="did">
          <span aria-hidden="true">→ </span>{action === null || action === undefined ? <span class="none">no action</span> : <Action text={group.actions[action] ?? null} />}{" "}
          {texts?.admissible === false && valid && <span class="badge bad">not admissible</span>}
        </p>
        {texts?.why_invalid && <p class="error">Invalid: {texts.why_invalid}.</p>}
        {texts?.admissible_actions && (
          <Folded title={`${texts.admissible_count} admissible actions`}>
            {() => <ul class="actions">{texts.admissible_actions?.map((text) => <li class={typeof text === "string" && text === texts.action ? "taken" : ""}><Line text={text} most={300} /></li>)}</ul>}
          </Folded>
        )}
        {texts && <Facts step={texts} score={steps.score[row] ?? null} />}
        {last && next !== null && next !== undefined && (
          <>
            <h2>State after the last step</h2>
            <Block text={group.states[next] ?? null} label="State after the last step" />
          </>
        )}
      </div>
    </section>
  );
}

/** A part that is built when it is opened. */
function Folded({ title, open: first = false, children }: { title: string; open?: boolean; children: () => preact.ComponentChildren }) {
  const [open, setOpen] = useState(first);
  return <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}><summary>{title}</summary>{open && children()}</details>;
}

/** An action on one line; a call of a tool as its name and arguments. */
function Action({ text }: { text: Group["actions"][number] }) {
  return <strong class="taken"><Marked text={plain(text).replace(/<\/?tool_call>/g, " ").replace(/\s+/g, " ").trim().slice(0, 600)} /></strong>;
}

/** An advantage as a bar from the middle: to the right if positive, as long as its share of the largest of A and B. */
function Bar({ name, estimate, row, most }: { name: string; estimate: Estimate | null; row: number; most: number }) {
  const value = estimate?.columns.advantage?.[row] ?? null;
  const share = value === null || !most ? 0 : Math.abs(value) / most;
  return (
    <span class="bar" title={`advantage ${name}: ${signed(value, 3)}`}>
      <span class="track" aria-hidden="true"><span class={(value ?? 0) < 0 ? "minus" : "plus"} style={{ width: `${50 * share}%` }} /></span>
      <span>{name[0]} {signed(value)}</span>
    </span>
  );
}

function Facts({ step, score }: { step: Step; score: number | null }) {
  const facts = [
    score ? `score ${number(score, 3)}` : "",
    step.finish_reason && step.finish_reason !== "stop" && `generation ended by ${step.finish_reason}`,
    step.response_tokens !== null && counted(step.response_tokens, "response token"),
    step.cut_pairs && `${step.cut_pairs} past steps cut from the prompt`,
    step.policy_version > 0 && `policy after ${counted(step.policy_version, "update")}`,
    step.policy_s !== null && step.policy_s >= 0.005 && `policy ${number(step.policy_s)} s`,
  ].filter(Boolean);
  return facts.length ? <p class="note">{facts.join(" · ")}</p> : null;
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
              title={`token ${place}, id ${id}: probability ${percent(Math.exp(value), 1)}`}
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
