// Runs: the list that updates itself, and a run's timeline while the run goes on.
//   #runs[data-refresh]      refreshed while visible; rows under the pointer stay where they are
//   #timeline[data-stream]   follows the run's events (lines, head, now, end)
//   details[data-body]       fetches its body when it is opened
//   [data-elapsed="ms"]      counts on
"use strict";

(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const FRAGMENT = { headers: { "HX-Request": "true" } };

  // Durations count on
  function words(ms) {
    const seconds = Math.max(0, ms / 1000);
    if (seconds < 9.95) return seconds < 0.9995 ? `${Math.round(ms)} ms` : `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    if (whole < 60) return `${whole} s`;
    for (const [unit, name, below, short] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"]]) {
      if (whole >= unit) {
        const rest = Math.floor((whole % unit) / below);
        return `${Math.floor(whole / unit)} ${name}${rest ? ` ${rest} ${short}` : ""}`;
      }
    }
    return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  }

  const started = new WeakMap();
  function tick() {
    for (const element of $$("[data-elapsed]")) {
      if (!started.has(element)) started.set(element, performance.now() - Number(element.dataset.elapsed));
      const text = words(performance.now() - started.get(element));
      if (element.textContent !== text) element.textContent = text;
    }
  }
  tick();
  setInterval(tick, 1000);

  function parse(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  // Filters: no button needed, and no empty names in the address
  const filters = $("form[data-filters]");
  if (filters) {
    filters.addEventListener("change", () => filters.requestSubmit());
    filters.addEventListener("submit", () => {
      for (const input of filters.elements) if (input.name && !input.value) input.disabled = true;
    });
    addEventListener("pageshow", () => {
      for (const input of filters.elements) input.disabled = false;
    });
  }

  // The list
  const REFRESH = 3000;
  const isBusy = (list) => list.matches(":hover") || list.contains(document.activeElement) || String(getSelection());

  async function refreshList() {
    const list = $("#runs[data-refresh]");
    if (!list || document.hidden || $("dialog[open]")) return;
    const url = new URL(location.href);
    if (list.dataset.top) url.searchParams.set("top", list.dataset.top);
    const response = await fetch(url, FRAGMENT);
    if (!response.ok || response.redirected) return;
    const fresh = $("#runs", parse(await response.text()));
    if (!fresh) return;
    if (isBusy(list)) updateInPlace(list, fresh); else list.replaceWith(fresh);
    umpteenth.refreshTimes($("#runs"));
    tick();
  }

  function updateInPlace(list, fresh) {
    let added = 0;
    for (const row of $$("tr[id]", fresh)) {
      const old = document.getElementById(row.id);
      if (!old) added += 1;
      else if (old.innerHTML !== row.innerHTML && !old.contains(document.activeElement)) old.innerHTML = row.innerHTML;
    }
    const pill = $(".new-runs", fresh) || (added && $("tbody", list) ? newRuns(added) : null);
    $(".new-runs", list)?.remove();
    if (pill) list.prepend(pill);
  }

  function newRuns(count) {
    const pill = document.createElement("p");
    pill.className = "new-runs";
    const link = document.createElement("a");
    link.className = "btn btn-sm btn-primary";
    link.href = location.pathname + location.search;
    link.textContent = `${count} new run${count === 1 ? "" : "s"}`;
    pill.append(link);
    return pill;
  }

  if ($("#runs[data-refresh]")) {
    setInterval(() => refreshList().catch(() => {}), REFRESH);
  }

  // Bodies of lines
  async function loadBody(line) {
    const body = $(".line-body", line);
    if (!body || $(".panes", body)) return;
    try {
      const response = await fetch(line.dataset.body, FRAGMENT);
      if (!response.ok || response.redirected) throw new Error(String(response.status));
      body.replaceChildren(parse(await response.text()));
      umpteenth.refreshTimes(body);
    } catch {
      body.textContent = "The details cannot be loaded now. Close this line and open it again.";
    }
  }

  const timeline = $("#timeline");
  if (!timeline) return;

  document.addEventListener("toggle", (event) => {
    const line = event.target;
    if (line.matches?.("details.line[data-body]") && line.open) loadBody(line);
  }, true);
  // The opened line stands in the address, so that it can be handed on.
  timeline.addEventListener("click", (event) => {
    const summary = event.target.closest("details.line > summary");
    if (!summary) return;
    const line = summary.parentElement;
    const url = new URL(timeline.dataset.page, location.href);
    if (!line.open) { url.searchParams.set("event", line.id.slice(1)); url.hash = line.id; }
    history.replaceState(null, "", url);
    follow(false);
  });
  for (const line of $$("details.line[data-body][open]", timeline)) loadBody(line);

  // Following the end; what is over is read from its beginning.
  const followButton = $("#follow");
  let isLive = Boolean(timeline.dataset.stream);
  if (isLive) for (const output of $$(".console", timeline)) output.scrollTop = output.scrollHeight;
  let following = isLive && !new URL(location.href).searchParams.has("event");
  const height = () => document.documentElement.scrollHeight;
  let lastTop = scrollY;
  let lastHeight = height();

  const atEnd = () => innerHeight + scrollY >= height() - 48;

  function follow(yes) {
    following = yes && isLive;
    followButton.hidden = following || !isLive || atEnd();
    if (following) toEnd();
  }

  function toEnd() {
    scrollTo({ top: height(), behavior: "instant" });
    noteScroll();
  }

  function noteScroll() {
    lastTop = scrollY;
    lastHeight = height();
  }

  addEventListener("scroll", () => {
    // A page that shrank moves up by itself, otherwise the reader did. The first few pixels
    // count: the next line would take the reader back to the end.
    if (isLive && scrollY < lastTop - 2 && height() >= lastHeight) follow(false);
    else if (isLive && scrollY > lastTop && atEnd()) { following = true; followButton.hidden = true; }
    noteScroll();
  }, { passive: true });
  followButton.addEventListener("click", () => follow(true));

  // Lines that arrive
  const MOST_LINES = 1200;
  const MOST_OUTPUT = 200000;

  function place(line) {
    const old = document.getElementById(line.id);
    if (old && line.classList.contains("line-console")) { grow(old, line); return; }
    if (old) { replace(old, line); return; }
    if ("update" in line.dataset) return; // its call stands on an earlier page
    const into = Number(line.dataset.into || 0);
    const home = into ? $(`#e${into} > .lines`) || timeline : timeline;
    line.classList.add("is-new");
    home.append(line);
    const output = $(".console", line);
    if (output) output.scrollTop = output.scrollHeight;
    if (line.open) loadBody(line);
  }

  function replace(old, line) {
    if (old.matches(".is-running") && line.matches(".is-running")) {
      // Only how far the call is: whoever reads in its body goes on reading.
      $(".line-head", old).replaceChildren(...$(".line-head", line).childNodes);
      return;
    }
    if (old.open) line.open = true;
    const focused = old.contains(document.activeElement);
    old.replaceWith(line);
    if (line.open) loadBody(line);
    if (focused) $("summary, a", line)?.focus();
  }

  function grow(old, line) {
    const into = $(".console", old);
    const stick = into.scrollTop + into.clientHeight >= into.scrollHeight - 24;
    into.append(...$(".console", line).childNodes);
    let size = into.textContent.length;
    while (size > MOST_OUTPUT && into.childNodes.length > 1) {
      size -= into.firstChild.textContent.length;
      into.firstChild.remove();
    }
    if (stick) into.scrollTop = into.scrollHeight;
  }

  // A long run must not grow the page without end; what leaves is behind "Show earlier".
  function trim() {
    const lines = $$(".line", timeline);
    if (lines.length <= MOST_LINES || !following) return;
    const surplus = lines.slice(0, lines.length - MOST_LINES + 200);
    for (const line of surplus) line.remove();
    for (const step of $$(".step", timeline)) if (!$(".line", step) && step.nextElementSibling) step.remove();
    const first = Number($(".line", timeline)?.id.slice(1) || 1);
    let more = $("#timeline-earlier");
    if (!more) {
      more = document.createElement("p");
      more.id = "timeline-earlier";
      more.className = "timeline-more";
      timeline.before(more);
    }
    const link = document.createElement("a");
    link.className = "btn btn-sm";
    link.href = `?before=${first}`;
    link.textContent = "Show earlier";
    more.replaceChildren(link);
  }

  let unsaid = 0;
  let saidAt = 0;
  function say(count) {
    unsaid += count;
    if (performance.now() - saidAt < 10000) return;
    umpteenth.announce(`${unsaid} new line${unsaid === 1 ? "" : "s"}`);
    unsaid = 0;
    saidAt = performance.now();
  }

  function addLines(html) {
    const lines = [...parse(html).children];
    for (const line of lines) place(line);
    trim();
    umpteenth.refreshTimes(timeline);
    const added = lines.filter((line) => !("update" in line.dataset)).length;
    if (added) say(added);
  }

  function showHead(html) {
    const head = $("#run-head");
    const before = $(".run-head", head)?.dataset.status;
    head.replaceChildren(parse(html));
    const now = $(".run-head", head);
    const finished = "finished" in now.dataset;
    $("#output-count").textContent = now.dataset.outputs === "0" ? "" : now.dataset.outputs;
    for (const form of $$("[data-while]")) form.hidden = (form.dataset.while === "finished") !== finished;
    const cancel = $("[data-cancel]");
    if (cancel && "cancelling" in now.dataset) { cancel.disabled = true; cancel.lastChild.textContent = "Cancelling"; }
    if (before !== now.dataset.status) umpteenth.announce(`Run ${$(".state", now)?.textContent.trim().toLowerCase()}`);
    umpteenth.refreshTimes(head);
  }

  function settle(change) {
    change();
    tick();
    if (following) toEnd(); else followButton.hidden = !isLive || atEnd();
  }

  // The stream
  const HIDDEN_FOR = 15000;
  let source = null;
  let after = Number(timeline.dataset.after || 0);
  let wait = 3000;
  let failures = 0;
  let hiddenTimer = 0;

  function connect() {
    if (source || !isLive || document.hidden) return;
    source = new EventSource(`${timeline.dataset.stream}?after=${after}&first=${timeline.dataset.first || 0}`);
    source.addEventListener("open", () => { wait = 3000; failures = 0; });
    source.addEventListener("lines", (event) => {
      after = Number(event.lastEventId) || after;
      settle(() => addLines(event.data));
    });
    source.addEventListener("head", (event) => settle(() => showHead(event.data)));
    source.addEventListener("now", (event) => settle(() => $("#timeline-now").replaceChildren(parse(event.data))));
    source.addEventListener("end", finish);
    source.addEventListener("denied", () => stop("You are signed out or may not read this run any more. Reload the page."));
    source.addEventListener("error", () => {
      if (source?.readyState !== EventSource.CLOSED) return; // the browser connects again
      disconnect();
      failures += 1;
      if (failures >= 3) { poll(); return; }
      setTimeout(connect, wait);
      wait = Math.min(wait * 2, 60000);
    });
  }

  function disconnect() {
    source?.close();
    source = null;
  }

  function finish() {
    stop();
    for (const line of $$(".line.is-running", timeline)) {
      line.classList.replace("is-running", "is-lost");
      $(".line-outcome", line).textContent = "No result";
    }
    followButton.hidden = true;
  }

  function stop(message = "") {
    isLive = false;
    following = false;
    disconnect();
    const now = $("#timeline-now");
    now.textContent = "";
    if (message) {
      const line = document.createElement("p");
      line.className = "timeline-more";
      line.setAttribute("role", "alert");
      line.textContent = message;
      now.append(line);
    }
  }

  // Where no stream comes through (a proxy that holds answers back, too many streams).
  async function poll() {
    if (!isLive) return;
    try {
      const response = await fetch(timeline.dataset.page);
      if (response.redirected) { stop("You are signed out. Reload the page to sign in."); return; }
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = $("#timeline", page);
      if (response.ok && fresh) {
        settle(() => {
          timeline.replaceChildren(...fresh.childNodes);
          $("#timeline-now").replaceChildren(...$("#timeline-now", page).childNodes);
          showHead($("#run-head", page).innerHTML);
        });
        if (!fresh.dataset.stream) { finish(); return; }
      }
    } catch { /* the next look may succeed */ }
    setTimeout(poll, 5000);
  }

  // Six connections are all that a browser has over HTTP/1.1: a hidden page gives its own back.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (document.hidden) hiddenTimer = setTimeout(disconnect, HIDDEN_FOR);
    else connect();
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

  if (isLive) {
    connect();
    if (following && !atEnd()) toEnd();
  } else {
    if (!location.hash) $(".line.is-selected", timeline)?.scrollIntoView({ block: "center" });
  }
})();
