// The look, as a constructed style sheet: pages whose policy allows no style but their own allow it all the same.

const CSS = `
:host {
  display: block;
  container-type: inline-size;
  color-scheme: light dark;
  --paper: light-dark(#f8f7f3, #11151b);
  --card: light-dark(#ffffff, #181d25);
  --ink: light-dark(#1b2330, #e5e9ef);
  --soft: light-dark(#56606f, #a3adba);
  --line: light-dark(#dedcd4, #2c343f);
  --edge: light-dark(#858b95, #7b8694);
  --accent: light-dark(#17559b, #8fbdf3);
  --on-accent: light-dark(#ffffff, #0c1726);
  --source: light-dark(#dcebfb, #1d3a5c);
  --good: light-dark(#1c7a43, #6fcf97);
  --good-paper: light-dark(#eef8f1, #14271c);
  --bad: light-dark(#b3261e, #ff9d92);
  --bad-paper: light-dark(#fdf1ef, #2c1b1b);
  --serif: ui-serif, "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, "Liberation Serif", serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
}
:host([hidden]) { display: none; }
:host([theme="light"]) { color-scheme: light; }
:host([theme="dark"]) { color-scheme: dark; }

*, *::before, *::after { box-sizing: border-box; }
[hidden] { display: none !important; }

.widget {
  padding: clamp(0.75rem, 3cqi, 1.5rem);
  background: var(--paper);
  color: var(--ink);
  font: 1rem/1.55 var(--sans);
  text-align: left;
}

.panel, .explore, .exercise, .body, form, .card { display: grid; grid-template-columns: minmax(0, 1fr); }
.panel, .explore, .exercise, .body, form { gap: 1rem; }
p, h2, h3 { margin: 0; }
h2 { font: 500 1.4rem/1.25 var(--serif); text-wrap: balance; }
h3 { font-size: 1rem; font-weight: 600; }
h2:focus { outline: none; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; border-radius: 4px; }

.unseen {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap;
}

.card {
  gap: 0.9rem;
  min-width: 0;
  margin: 0;
  padding: clamp(0.9rem, 3cqi, 1.4rem);
  background: var(--card);
  border: 1px solid var(--line);
  border-radius: 12px;
}

/* Controls */

.tabs { display: flex; flex-wrap: wrap; gap: 0.4rem; margin-bottom: 1rem; }
.controls, .row { display: flex; flex-wrap: wrap; align-items: center; gap: 0.6rem 1.4rem; }
.row { gap: 0.6rem; }
.pair { display: flex; align-items: center; gap: 0.6rem; }
label, legend { font-weight: 600; }
.check { display: inline-flex; align-items: center; gap: 0.5rem; min-height: 2rem; font-weight: 500; }
.check input { width: 1.25rem; height: 1.25rem; margin: 0; accent-color: var(--accent); }

button, select, input { font: inherit; color: inherit; }
select, input:not([type="checkbox"], [type="range"]) {
  padding: 0.35rem 0.5rem;
  min-height: 2rem;
  background: var(--card);
  border: 1px solid var(--edge);
  border-radius: 7px;
}
button {
  min-height: 2.1rem;
  padding: 0.3rem 0.9rem;
  border: 1px solid var(--edge);
  border-radius: 7px;
  background: transparent;
  cursor: pointer;
}
button:hover { border-color: var(--accent); color: var(--accent); }
button.primary { border-color: var(--accent); background: var(--accent); color: var(--on-accent); font-weight: 600; }
button.primary:hover { color: var(--on-accent); filter: brightness(1.08); }
button[aria-disabled="true"] { border-color: var(--line); background: transparent; color: var(--soft); cursor: default; }
.tab[aria-pressed="true"] { border-color: var(--accent); box-shadow: inset 0 -3px var(--accent); font-weight: 600; }

.stepper { display: grid; grid-template-columns: auto minmax(0, 1fr) auto; align-items: center; gap: 0.9rem; }
.slide { display: grid; gap: 0.15rem; }
.slide input { width: 100%; height: 1.6rem; margin: 0; accent-color: var(--accent); }
.ticks { display: flex; justify-content: space-between; padding: 0 0.3rem; }
.ticks span { width: 0.45rem; height: 0.3rem; border-radius: 2px; background: var(--line); transition: background 120ms; }
.ticks .passed { background: var(--accent); }

/* The stage */

.headline { display: flex; flex-wrap: wrap; align-items: flex-start; justify-content: space-between; gap: 0.8rem 2rem; }
.headline > :first-child { flex: 1 1 20rem; min-width: 0; display: grid; gap: 0.35rem; }
.formula { justify-self: start; max-width: 100%; font-size: 1.2rem; }
.formula .scroll { overflow-y: hidden; padding: 0.3rem; }
.formula math { margin: 0; }
mtd { text-align: left; }
.flow { display: flex; flex-wrap: wrap; align-items: center; gap: 0.9rem 1rem; }
.flow > .scroll { max-width: 100%; }
.operator { font-size: 1.4rem; color: var(--soft); }
.origin {
  min-height: 3.1rem;
  padding: 0.6rem 0.9rem;
  border-left: 4px solid var(--accent);
  border-radius: 4px;
  background: var(--paper);
  font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere;
}
.finding { color: var(--soft); }

/* Tables */

.scroll { overflow-x: auto; max-width: 100%; padding: 3px; }
table { border-collapse: separate; border-spacing: 2px; font-variant-numeric: tabular-nums; }
caption, .caption { padding-bottom: 0.3rem; text-align: left; font-weight: 600; white-space: nowrap; }
.caption { padding: 0 2px 2px; }
caption math, .caption math { font-size: 1.15em; }
caption small, .caption small, .hint, .status, .note { color: var(--soft); font-size: 0.925rem; font-weight: 400; }
th { padding: 0.15rem 0.35rem; font-size: 0.9rem; font-weight: 500; color: var(--soft); white-space: nowrap; }
thead th { text-align: right; }
.heat thead th { text-align: center; }
tbody th {
  position: sticky; left: 0; z-index: 1; padding-left: 0.1rem; background: var(--card); text-align: left; color: var(--ink);
}
td { position: relative; min-width: 2.9rem; height: 2.1rem; padding: 0.2rem 0.4rem; border-radius: 5px; text-align: right; }
thead td { min-width: 0; height: auto; padding: 0; }
.plain tbody td { box-shadow: inset 0 0 0 1px var(--line); }
.heat tbody td {
  min-width: 3.3rem;
  height: 2.6rem;
  text-align: center;
  background-color: light-dark(var(--heat-light, transparent), var(--heat-dark, transparent));
  color: light-dark(var(--ink-light, var(--ink)), var(--ink-dark, var(--ink)));
}
td.masked {
  color: var(--soft);
  box-shadow: inset 0 0 0 1px var(--line);
  background-image: repeating-linear-gradient(135deg, transparent 0 6px, var(--line) 6px 7px);
}
.heat tbody td.masked { color: var(--ink); }
.followed th { font-weight: 700; }
.followed th::before { content: "▸ "; color: var(--accent); }
.plain tbody td.source { background: var(--source); }
td.source { box-shadow: inset 0 0 0 2px var(--accent) !important; font-weight: 600; }
td.target { outline: 3px solid var(--accent); outline-offset: -1px; font-weight: 700; z-index: 1; }
.made td { cursor: pointer; }
.made td:focus-visible { outline: 4px double var(--accent); outline-offset: 1px; z-index: 2; }

.cells td { padding: 0; }
.cells input { width: 5.5rem; text-align: right; }
.cells input[data-verdict] { padding-right: 1.7rem; }
input[data-verdict="missing"] { border: 2px dashed var(--edge); }
[aria-invalid="true"] { border-color: var(--bad) !important; border-width: 2px !important; background: var(--bad-paper) !important; }
input[data-verdict="ok"] { border-color: var(--good); background: var(--good-paper); }
.mark { position: absolute; right: 0.5rem; top: 50%; translate: 0 -50%; font-weight: 700; color: var(--bad); pointer-events: none; }
.mark.ok { color: var(--good); }
.mark.missing { color: var(--soft); }

details { border: 1px solid var(--line); border-radius: 12px; background: var(--card); }
summary { padding: 0.7rem 1.1rem; font-weight: 600; cursor: pointer; border-radius: 12px; }
.inside .flow { align-items: flex-start; gap: 1.2rem 1.6rem; }
.inside { display: grid; grid-template-columns: minmax(0, 1fr); gap: 0.9rem; padding: 0.2rem 1.1rem 1.1rem; }
.inside .hint:empty { display: none; }

/* Exercises */

.instructions { max-width: 46rem; text-wrap: pretty; }
fieldset.card { border-radius: 12px; }
fieldset legend { float: left; width: 100%; padding: 0; font: 500 1.15rem/1.3 var(--serif); }
fieldset legend + * { clear: both; }
.verdict:empty, .note:empty, .feedback:empty, .hints:empty, .status:empty { display: none; }
.verdict { justify-self: start; font-weight: 600; }
.verdict.ok { color: var(--good); }
.verdict.wrong { color: var(--bad); }
.hint-card { justify-items: start; border-left: 4px solid var(--accent); border-radius: 4px; background: var(--paper); }
.feedback .card { justify-items: start; }
.misconceptions { display: grid; gap: 0.8rem; margin: 0; padding: 0; list-style: none; }
.misconception { padding-left: 0.9rem; border-left: 4px solid var(--bad); }
.remedy { margin-top: 0.25rem; }
.well { color: var(--good); font-weight: 600; }
.status { font-size: 1rem; color: var(--ink); font-weight: 600; }
.problem:empty { position: absolute; } /* takes no room, yet what appears in it is announced */
.problem:not(:empty) { padding: 0.8rem 1rem; border-left: 4px solid var(--bad); border-radius: 4px; background: var(--bad-paper); }
.problem strong { display: block; color: var(--bad); }

.plan { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1rem; }
.pile { display: grid; align-content: start; gap: 0.6rem; padding: 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
.cards { display: grid; gap: 0.5rem; margin: 0; padding: 0; list-style: none; counter-reset: step; }
.cards li { display: flex; flex-wrap: wrap; align-items: center; justify-content: space-between; gap: 0.4rem 0.8rem;
  padding: 0.5rem 0.7rem; border: 1px solid var(--line); border-radius: 8px; background: var(--paper); }
.cards .text { flex: 1 1 11rem; min-width: 0; }
.chosen li { counter-increment: step; }
.chosen .text::before { content: counter(step) ". "; font-weight: 700; }
.side { position: relative; }
.side input[data-verdict] { width: 4.2rem; padding-right: 1.7rem; text-align: right; }
.place { font-weight: 600; color: var(--bad); white-space: nowrap; }
.place.ok { color: var(--good); }
.maybe { margin: 0; padding-left: 1.3rem; }
.shape, .moves { display: inline-flex; align-items: center; gap: 0.35rem; }
.shape input { width: 3rem; text-align: center; }
.moves button { min-width: 2.1rem; padding: 0.3rem 0.55rem; }

@container (min-width: 48rem) {
  .plan { grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
}
@container (max-width: 30rem) {
  .stepper { grid-template-columns: 1fr 1fr; }
  .slide { grid-row: 1; grid-column: 1 / -1; }
  .flow { flex-direction: column; align-items: flex-start; gap: 0.6rem; }
  .heat tbody td { min-width: 2.75rem; }
  .cells input { width: 3.6rem; padding: 0.35rem; }
  .cells input[data-verdict] { width: 4.4rem; padding-right: 1.3rem; }
  .mark { right: 0.35rem; }
  td { min-width: 2.5rem; padding: 0.2rem 0.25rem; font-size: 0.925rem; }
  th { font-size: 0.85rem; }
}
@media (prefers-reduced-motion: reduce) {
  *, *::before, *::after { transition: none !important; }
}
@media (forced-colors: active) {
  td { border: 1px solid; }
  td.source { border: 2px solid Highlight; }
  td.target { outline: 3px solid Highlight; }
}
`;

export const sheet = new CSSStyleSheet();
sheet.replaceSync(CSS);
