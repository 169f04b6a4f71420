"""The style sheet of the page, and its script, which replaces the contents when they have changed."""

from launcherkit.show.page import TREE_STYLE

STYLE = (
    TREE_STYLE
    + """
*{box-sizing:border-box}
body{margin:0 auto;max-width:82rem;padding:0 1.25rem 3rem;background:var(--back);color:var(--text);
font:15px/1.55 system-ui,sans-serif}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:.2rem 1.2rem;padding:1.2rem 0 .8rem;margin-bottom:1rem;
border-bottom:1px solid var(--line);position:sticky;top:0;background:var(--back)}
h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.6rem 0 .6rem}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
#live{margin:0;color:var(--dim)}#live.good{color:var(--good)}#live.odd{color:var(--odd)}#live.bad{color:var(--bad)}
#live::before{content:"";display:inline-block;width:.6em;height:.6em;border-radius:50%;background:currentColor;
margin-right:.5em}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr));gap:.7rem;padding:0;margin:0;
list-style:none}
.cards li,article{border:1px solid var(--line);border-left:4px solid var(--good);border-radius:6px;
padding:.6rem .9rem;break-inside:avoid}
.cards p,article p{margin:.2rem 0 0}
.cards .trouble,article.trouble{border-left-color:var(--bad)}article{margin:.5rem 0}
.label,code,time{font-family:ui-monospace,monospace;font-size:.93em}.facts{color:var(--dim)}.none{color:var(--dim);margin:0}
.todo::before{content:"To do: ";font-weight:600}
#host>details{margin-left:0}#host .node>summary{font-size:1rem}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .8rem .35rem 0;vertical-align:top;
border-bottom:1px solid var(--line);overflow-wrap:anywhere}thead th{color:var(--dim);font-weight:600}
tbody th{font-weight:400;white-space:nowrap}
#changes ol{padding:0;margin:0;list-style:none}#changes li{padding:.3rem 0;overflow-wrap:anywhere}
#changes time{color:var(--dim);margin-right:.6em}#changes .badge{margin-right:.6em}
@media (max-width:40rem){body{padding:0 .8rem 2rem}thead{display:none}tr{display:block;padding:.4rem 0;
border-bottom:1px solid var(--line)}td,tbody th{display:block;border:0;padding:.05rem 0}
td:empty{display:none}td::before{color:var(--dim)}td:nth-child(2)::before{content:"VM: "}
td:nth-child(3)::before{content:"Pod or claim: "}td:nth-child(4)::before{content:"Container: "}
td:nth-child(5)::before{content:"Resource: "}}
@media print{header{position:static}#live::before{display:none}}
"""
)

SCRIPT = """
"use strict";
(() => {
const live = document.getElementById("live");
const main = () => document.querySelector("main");
function key(e) {
  const names = [];
  for (let at = e; at; at = at.parentElement.closest("details, section"))
    names.push(at.id || (at.querySelector(".label") || at).textContent);
  return names.join("/");
}
const all = (e, what) => [...e.querySelectorAll(what)];
let wanted = "", busy = false;
function say(tone, text) {
  live.className = tone;
  if (live.textContent !== text) live.textContent = text;
}
function put(page) {
  const old = main(), fresh = document.adoptNode(page.querySelector("main"));
  const open = new Map(all(old, "details").map(e => [key(e), e.open]));
  for (const e of all(fresh, "details")) if (open.has(key(e))) e.open = open.get(key(e));
  const at = old.contains(document.activeElement) ? document.activeElement : null;
  const reachable = "summary,[tabindex]";
  const name = at && key(at), tag = at && at.tagName, place = at && at.closest("section").id;
  old.replaceWith(fresh);
  document.title = page.title;
  if (at) {
    const there = document.getElementById(place);
    const same = there && all(there, reachable).find(e => e.tagName === tag && key(e) === name);
    (same || there || fresh).focus({preventScroll: true});
  }
}
async function renew() {
  if (busy) return;
  busy = true;
  try {
    while (main().dataset.version !== wanted) {
      const answer = await fetch(location.pathname, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status + " " + answer.statusText);
      put(new DOMParser().parseFromString(await answer.text(), "text/html"));
      // The server keeps a drawing for a second.
      if (main().dataset.version !== wanted) await new Promise(later => setTimeout(later, 250));
    }
    say("good", "live: " + main().dataset.summary);
  } catch (problem) {
    say("bad", "not live: " + problem.message);
    setTimeout(renew, 2000);
  } finally {
    busy = false;
  }
}
function listen() {
  const source = new EventSource("events");
  source.onmessage = event => { wanted = event.data; renew(); };
  source.onerror = () => {
    say("odd", "the connection is lost; trying again");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}
listen();
})();
"""
