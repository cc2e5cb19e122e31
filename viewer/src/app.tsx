// The shell: runs, views, theme, keyboard, and the watch for new rows.
import { render } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { forget, get, isFile, onChanged, useDocument } from "./data";
import type { Head } from "./documents";
import { counted } from "./format";
import { ComparePage } from "./compare";
import { type Chosen, chosenOf, estimatorsOf } from "./estimators";
import { GroupPage } from "./group";
import { focusSoon, onKey, SHORTCUTS } from "./keys";
import { OverviewPage } from "./overview";
import { go, links, useRoute } from "./route";
import { TranscriptPage } from "./transcript";
import { Line } from "./texts";
import { RolloutsPage } from "./rollouts";
import "./style.css";

const WATCH_MS = 3000;

type Theme = "light" | "dark";

function storedTheme(): Theme | null {
  try {
    const found = localStorage.getItem("hgpo-theme");
    return found === "light" || found === "dark" ? found : null;
  } catch {
    return null; // storage is not allowed
  }
}

function useTheme(): [Theme, () => void] {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const [chosen, setChosen] = useState<Theme | null>(storedTheme);
  const [dark, setDark] = useState(system.matches);
  useEffect(() => {
    const changed = () => setDark(system.matches);
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  const theme = chosen ?? (dark ? "dark" : "light");
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  const toggle = () => {
    const next = theme === "dark" ? "light" : "dark";
    setChosen(next);
    try {
      localStorage.setItem("hgpo-theme", next);
    } catch {
      // it is then forgotten with the page
    }
  };
  return [theme, toggle];
}

/** A number that grows when a run has new rows. */
function useVersion(): number {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    if (isFile) return;
    let known: string | null = null;
    const look = async () => {
      if (document.hidden) return;
      try {
        const found = JSON.stringify(await (await fetch("api/versions", { cache: "no-store" })).json());
        if (known !== null && found !== known) {
          forget();
          setVersion((number) => number + 1);
        }
        known = found;
      } catch {
        // the server has ended; the next request says so
      }
    };
    look();
    onChanged(look);
    const timer = setInterval(look, WATCH_MS);
    return () => clearInterval(timer);
  }, []);
  return version;
}

function App() {
  const route = useRoute();
  const version = useVersion();
  const head = useDocument<Head>("runs", {}, version);
  const [theme, toggleTheme] = useTheme();
  const [help, setHelp] = useState(false);
  const dialog = useRef<HTMLDialogElement>(null);

  useEffect(() => {
    const element = dialog.current;
    if (help && !element?.open) element?.showModal();
    if (!help && element?.open) element.close();
  }, [help]);

  const runs = head.value?.runs ?? [];
  const place = Math.max(0, runs.findIndex((run) => run.name === route.run));
  const run = runs[place];

  useLayoutEffect(() => {
    if (!run) return;
    return onKey({
      o: () => go(links.overview(run.name)),
      t: () => {
        go(links.rollouts(run.name));
        focusSoon(".every-rollout tbody a");
      },
      "/": () => {
        go(links.rollouts(run.name));
        focusSoon("#filter-text");
      },
      d: toggleTheme,
      "?": () => setHelp((open) => !open),
    });
  });
  useEffect(() => {
    const what = route.view === "step" ? `step ${route.step} of ${route.trajectory}` : route.view;
    document.title = run ? `${run.name}: ${what} · HGPO viewer` : "HGPO viewer";
  }, [run?.name, route]);

  if (head.error) return <p class="error page" role="alert">{head.error}</p>;
  if (!run || !head.value) return <p class="page" role="status">Loading …</p>;
  if (route.run && route.run !== run.name) {
    return <p class="error page" role="alert">No run named {route.run} is open here. <a href={links.overview(run.name)}>{run.name}</a></p>;
  }
  const path = `runs/${place}`;
  const { value } = head;
  const chosen = chosenOf(route.settings, run, value);
  const shared = { path, run: run.name, version };
  const pick = (iteration: string) => go(links.rollouts(run.name, { filter: `iteration = ${iteration}`, search: null, bars: null }));
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to content
      </a>
      <header>
        <strong class="brand">HGPO viewer</strong>
        {runs.length > 1 ? (
          <select aria-label="Run" value={run.name} onChange={(event) => go(links.overview(event.currentTarget.value))}>
            {runs.map((one) => <option value={one.name}>{one.name}{one.problem && " (cannot be shown)"}</option>)}
          </select>
        ) : (
          <span class="run-name" title={run.path}><Line text={run.name} most={40} /></span>
        )}
        <nav aria-label="Views">
          <a href={links.overview(run.name)} aria-current={route.view === "overview" ? "page" : undefined}>Overview</a>
          <a href={links.rollouts(run.name)} aria-current={["rollouts", "group", "step"].includes(route.view) ? "page" : undefined}>Rollouts</a>
          {runs.length > 1 && <a href={links.compare(run.name)} aria-current={route.view === "compare" ? "page" : undefined}>Compare</a>}
        </nav>
        {run.live && <span class="live" title="a program is writing this run; what it commits is shown within three seconds">live</span>}
        <span class="spacer" />
        <button type="button" onClick={toggleTheme} aria-label={theme === "dark" ? "Light colours" : "Dark colours"}>
          {theme === "dark" ? "☀" : "☾"}
        </button>
        <button type="button" onClick={() => setHelp(true)} aria-label="Keyboard shortcuts" aria-haspopup="dialog">?</button>
      </header>
      {run.selection && run.selection.tasks < run.selection.of && (
        <p class="note selection" role="note">
          This page contains {run.selection.tasks} of {counted(run.selection.of, "task")} of the run; figures of the overview are of all. For the
          others, write it with larger <code>--tasks</code> or <code>--max-mb</code>, or open the run with <code>hgpo view</code>.
        </p>
      )}
      <main id="main" tabIndex={-1}>
        {run.problem ? (
          <p class="error page" role="alert">This run cannot be shown: <Line text={run.problem} most={1000} /></p>
        ) : route.view === "overview" ? (
          <OverviewPage {...{ path, run, runs, version, pick }} settings={route.settings} />
        ) : route.view === "compare" ? (
          <ComparePage runs={runs} place={place} settings={route.settings} version={version} head={value} />
        ) : route.view === "group" && route.group !== null ? (
          <GroupPage {...shared} number={route.group} tab={route.tab} chosen={chosen} colours={route.settings.get("colours") === "b" ? 1 : 0} />
        ) : route.view === "step" && route.trajectory !== null ? (
          <TranscriptPage {...shared} notable={run.notable} trajectory={route.trajectory} step={route.step} estimators={estimatorsOf(run, value)} chosen={chosen} />
        ) : (
          <RolloutsPage {...{ path, run, version }} settings={route.settings} chosen={chosen[0] as Chosen} />
        )}
      </main>
      <dialog ref={dialog} aria-labelledby="shortcuts" onClose={() => setHelp(false)}>
        <h2 id="shortcuts">Keyboard shortcuts</h2>
        <dl class="shortcuts">
          {SHORTCUTS.map(([keys, meaning]) => (
            <div>
              <dt>{keys.split(" ").map((key) => <kbd>{key}</kbd>)}</dt>
              <dd>{meaning}</dd>
            </div>
          ))}
        </dl>
        <button type="button" onClick={() => setHelp(false)}>Close</button>
      </dialog>
    </>
  );
}

get<Head>("runs").catch(() => undefined); // requested while the page is built
render(<App />, document.getElementById("app") as HTMLElement);
