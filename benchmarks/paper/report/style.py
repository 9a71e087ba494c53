"""The page's style sheet: light and dark, wide and narrow."""

CSS = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --paper: #fcfcfb;
  --line: #d9dee4; --soft: #f1f3f5; --own: #14734a; --bad: #b3261e; --link: #1a5fb4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ec; --dim: #9aa6b4; --paper: #14181d; --line: #313a45; --soft: #1d232a;
    --own: #5fce9a; --bad: #ff8a80; --link: #8ab8f5; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; scroll-behavior: smooth; }
body { margin: 0 auto; max-width: 80rem; padding: 2.5rem 1.5rem 5rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans",
  sans-serif; }
h1 { font-size: 2rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
header > p { color: var(--dim); margin: 0 0 1.5rem; }
h2 { font-size: 1.3rem; margin: 3rem 0 .5rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }
section > p, section > ul { max-width: 46rem; overflow-wrap: anywhere; }
section > p { margin: .6rem 0; }
section > ul { padding-left: 1.2rem; }
li { margin: .15rem 0; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
.cards { list-style: none; display: grid; gap: .75rem; padding: 0; margin: 0 0 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); }
.cards li { background: var(--soft); border-radius: .5rem; padding: .8rem 1rem; margin: 0; }
.cards strong { display: block; font-size: 1.7rem; line-height: 1.25; color: var(--own);
  font-variant-numeric: tabular-nums; }
.cards span { color: var(--dim); font-size: .82rem; line-height: 1.35; display: block; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; margin: 0;
  font-size: .9rem; }
.wide { overflow-x: auto; margin: 1rem 0; -webkit-overflow-scrolling: touch; }
.wide:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
figure.wide { margin: 1.25rem 0; }
figure svg { display: block; width: 100%; height: auto; }
.chart-speed-up svg, .chart-compile svg { min-width: 56rem; }
.chart-floor svg, .chart-busy svg { min-width: 28rem; max-width: 43rem; }
table { border-collapse: separate; border-spacing: 0; font-size: .84rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; vertical-align: top; white-space: nowrap; }
thead th { vertical-align: bottom; white-space: normal; min-width: 3.2rem; max-width: 7.5rem;
  font-weight: 600; color: var(--dim); border-bottom: 1.5px solid var(--line); }
tbody th, tfoot th { font-weight: 600; }
tbody tr + tr > * { border-top: 1px solid var(--soft); }
tbody tr:hover > * { background: var(--soft); }
tfoot tr:first-child > * { border-top: 1.5px solid var(--line); }
tfoot > tr > * { font-weight: 600; }
th:first-child { position: sticky; left: 0; background: var(--paper); z-index: 1; }
thead .group { text-align: center; border-bottom: 1px solid var(--line); padding-bottom: .15rem;
  white-space: nowrap; max-width: none; }
thead .group + .group { border-left: .5rem solid var(--paper); }
th.first, td.first { padding-left: 1.5rem; }
.w { text-align: left; }
.long { white-space: normal; min-width: 14.75rem; max-width: 28rem; overflow-wrap: anywhere; }
.none { color: var(--dim); opacity: .6; }
thead th.own, td.own { color: var(--own); }
td.own { font-weight: 600; }
td.own.none { font-weight: 400; }
.good { color: var(--own); font-weight: 600; }
.bad { color: var(--bad); font-weight: 700; }
.note { color: var(--dim); font-style: italic; }
@media (max-width: 40rem) {
  body { padding: 1.25rem 1rem 3rem; font-size: 15px; }
  h1 { font-size: 1.5rem; }
  h2 { margin-top: 2rem; }
  .cards { grid-template-columns: 1fr 1fr; }
  .cards strong { font-size: 1.35rem; }
  th, td { padding: .28rem .5rem; }
  th[scope=row] { white-space: normal; max-width: 6.5rem; }
  thead .group { text-align: left; }
  .long { min-width: 10rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .wide { overflow: visible; }
}
"""
