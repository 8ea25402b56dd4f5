// Replaces the parts of the page that changed, and says when the page is not live. Without it the page is whole, and
// as old as its last loading. Sends nothing but the wish for the stream.
"use strict";
(() => {
  const path = document.body.dataset.live;
  if (!path) return;
  const RETRY_MS = 5000;
  // The stream says something each two seconds.
  const SILENT_MS = 8000;
  const state = document.getElementById("live");
  const title = document.title;
  let heard = Date.now();
  let stream = null;
  let wasWrong = null;

  const clock = (ms) => new Date(ms).toISOString().slice(11, 19);
  const say = (text, isLost) => {
    // Not written again with the same words: a screen reader would say them again.
    if (state.textContent !== text) state.textContent = text;
    state.classList.toggle("lost", isLost);
    document.body.classList.toggle("stale", isLost);
  };

  // What a person had in hand stays there: focus, open details, how far a table was scrolled, what was typed.
  const replace = (part, html) => {
    const at = document.activeElement;
    if (at && part.contains(at) && at.closest("form")) return;
    const focused = at && part.contains(at) ? at : null;
    const key = focused && (focused.getAttribute("href") || focused.getAttribute("aria-label") || focused.parentElement.id);
    const closed = [...part.querySelectorAll("details[id]:not([open])")].map((details) => details.id);
    const fields = () => [...part.querySelectorAll("[name]:not([type=hidden])")];
    const typed = new Map(fields().map((field) => [field.name, field.value]));
    const scrolled = [...part.querySelectorAll(".scroll")].map((table) => table.scrollLeft);
    part.innerHTML = html;
    for (const id of closed) {
      const details = document.getElementById(id);
      if (details) details.open = false;
    }
    for (const field of fields()) {
      const value = typed.get(field.name);
      const canHave = !field.options || [...field.options].some((option) => option.value === value);
      if (value !== undefined && canHave) field.value = value;
    }
    part.querySelectorAll(".scroll").forEach((table, n) => { table.scrollLeft = scrolled[n] || 0; });
    if (key) {
      const same = [...part.querySelectorAll("a, .scroll, summary")].find((element) =>
        [element.getAttribute("href"), element.getAttribute("aria-label"), element.parentElement.id].includes(key));
      if (same) same.focus({ preventScroll: true });
    }
  };

  const headline = () => {
    const h1 = document.querySelector("h1[data-word]");
    if (!h1) {
      document.title = title;
      return;
    }
    const isWrong = h1.hasAttribute("data-wrong");
    document.title = (isWrong ? "✖ " : "") + title;
    if (wasWrong !== null && isWrong !== wasWrong) say("Live. " + h1.dataset.word + ".", false);
    wasWrong = isWrong;
  };

  const listen = () => {
    if (stream) stream.close();
    stream = new EventSource(path);
    stream.addEventListener("part", (event) => {
      const part = JSON.parse(event.data);
      const section = document.getElementById(part.id);
      if (section && section.innerHTML !== part.html) replace(section, part.html);
      if (part.id === "headline") headline();
    });
    stream.addEventListener("heard", () => {
      heard = Date.now();
      if (document.body.classList.contains("stale")) headline();
      if (document.body.classList.contains("stale") || !state.textContent.startsWith("Live")) say("Live", false);
    });
  };

  listen();
  headline();
  setInterval(() => {
    if (Date.now() - heard < SILENT_MS) return;
    document.title = "✖ not live · " + title;
    say("Not live: nothing heard from this replica since " + clock(heard) +
      " UTC. What is shown is of then. Try another replica, or reload.", true);
    if (!stream || stream.readyState === EventSource.CLOSED || Date.now() - heard > 3 * SILENT_MS) listen();
  }, RETRY_MS);
  addEventListener("pagehide", () => stream && stream.close());
  addEventListener("pageshow", (event) => { if (event.persisted) listen(); });
})();
