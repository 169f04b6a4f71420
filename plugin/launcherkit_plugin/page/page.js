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
const called = e => e.id || (e.querySelector(".label,h3,text") || e).textContent;
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
  const reachable = "summary,[tabindex],button,input";
  const name = at && called(at), tag = at && at.tagName, place = at && at.closest("section").id;
  old.replaceWith(fresh);
  window.drawingChanged();
  document.title = page.title;
  if (at) {
    const there = document.getElementById(place);
    const same = there && all(there, reachable).find(e => e.tagName === tag && called(e) === name);
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
