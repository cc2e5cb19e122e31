// Builds src/ into hgpo_train/view/static: index.html, app.js and app.css. The first line of app.js has the digest of the
// sources, which tests/view/test_bundle.py compares.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const here = import.meta.dirname;
const out = join(here, "../hgpo_train/view/static");

const hash = createHash("sha256");
const sources = ["package-lock.json", "build.mjs", ...readdirSync(join(here, "src")).sort().map((name) => `src/${name}`)];
for (const name of sources) hash.update(`${name}\n`).update(readFileSync(join(here, name))).update("\n");
const digest = hash.digest("hex");

await build({
  entryPoints: [join(here, "src/app.tsx")],
  outdir: out,
  bundle: true,
  minify: true,
  format: "iife",
  target: ["es2022", "chrome111", "firefox113", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "inline",
  charset: "ascii",
  banner: { js: `/* sources: sha256 ${digest} */` },
});
writeFileSync(join(out, "index.html"), readFileSync(join(here, "src/index.html")));
