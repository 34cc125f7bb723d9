// MCP Servers: the test dialog, the switch, the fields of the chosen transport.
// Each works without this file as a plain form or link.
"use strict";

(() => {
  const dialog = document.querySelector("#dialog");

  // A test opens its dialog at once; the answer of the request fills it.
  document.addEventListener("htmx:beforeSend", (event) => {
    const form = event.detail.elt.closest?.("[data-test]");
    if (!form || dialog.contains(form)) return;
    const waiting = document.querySelector("#dialog-waiting").content.cloneNode(true);
    dialog.firstElementChild.replaceChildren(waiting);
    if (!dialog.open) dialog.showModal();
    window.umpteenth.speakIn(dialog);
  });

  // The address names the test that the dialog shows, so that a reload shows it again.
  function noteCheck(root) {
    const check = root.querySelector?.("#check") || root.closest?.("#check");
    if (!check) return;
    const address = new URL(location.href);
    if (!dialog.contains(check)) {
      history.replaceState(history.state, "", check.dataset.checkUrl);
    } else if (address.searchParams.get("check") !== check.dataset.check) {
      address.searchParams.set("check", check.dataset.check);
      history.replaceState(history.state, "", address);
    }
  }

  dialog.addEventListener("close", () => {
    stopGoing();
    const address = new URL(location.href);
    if (!address.searchParams.has("check")) return;
    address.searchParams.delete("check");
    address.searchParams.delete("new");
    history.replaceState(history.state, "", address);
  });

  // P37: the dialog of a test that an added server has begun goes to the login by itself, once,
  // and slowly enough that people see where to, and may stay.
  const SOON = 3000;
  let going = null;

  function stopGoing() {
    clearTimeout(going);
    going = null;
    for (const words of document.querySelectorAll("[data-login-soon]")) words.hidden = true;
  }

  function goToLogin(root) {
    const place = root.querySelector?.("[data-login-go]");
    const soon = place?.querySelector("[data-login-soon]");
    const address = new URL(location.href);
    if (!soon || !dialog.contains(place) || !address.searchParams.has("new")) return;
    address.searchParams.delete("new");
    history.replaceState(history.state, "", address);
    soon.hidden = false;
    const form = place.closest("#check").querySelector("form[data-login]");
    going = setTimeout(() => {
      stopGoing();
      // Its closing may not have been told yet.
      if (dialog.open) form.requestSubmit();
    }, SOON);
    window.umpteenth.announce(place.textContent.replace(/\s+/g, " ").trim());
  }

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-login-stop]")) {
      stopGoing();
      document.querySelector("#check form[data-login] button")?.focus();
    }
  });
  document.addEventListener("submit", (event) => {
    if (going && event.target.closest("#check")) stopGoing();
  }, true);

  // A switch whose request failed goes back to what is stored.
  function undoSwitch(event) {
    const box = event.detail.elt.closest?.("[data-switch]")?.querySelector("input[type=checkbox]");
    if (box) box.checked = !box.checked;
  }
  document.addEventListener("htmx:responseError", undoSwitch);
  document.addEventListener("htmx:sendError", undoSwitch);

  // A row with an open menu is not replaced under the pointer, but when the menu closes.
  function waitsForMenu(row) {
    const menu = row.matches?.(".server-row") && row.querySelector("details[data-menu][open]");
    if (!menu) return false;
    const again = row.id.replace("server-", "row-");
    menu.addEventListener("toggle", () => htmx.trigger(document.body, again), { once: true });
    return true;
  }
  document.addEventListener("htmx:beforeRequest", (event) => {
    if (waitsForMenu(event.detail.elt)) event.preventDefault();
  });

  // Nor one whose login is being begun, which may take seconds: its button says so.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const row = event.detail.target;
    // The menu may have been opened while the answer was on its way.
    if (waitsForMenu(row)) event.detail.shouldSwap = false;
    if (row.matches?.(".server-row") && row.querySelector("form[data-login].htmx-request")) {
      event.detail.shouldSwap = false;
    }
  });

  // Only the fields of the chosen transport, and of whoever logs in; the others keep what was
  // typed into them.
  function showChosen(form) {
    const chosen = (name) => form.querySelector(`[name=${name}]:checked`)?.value;
    for (const group of form.querySelectorAll("[data-for]")) {
      group.hidden = !group.dataset.for.split(" ").includes(chosen("transport"));
    }
    for (const part of form.querySelectorAll("[data-of-kind]")) {
      part.hidden = part.dataset.ofKind !== chosen("oauth-kind");
    }
  }

  document.addEventListener("change", (event) => {
    if (["transport", "oauth-kind"].includes(event.target.name)) showChosen(event.target.form);
  });

  // "npx -y some-package" written into Command fills the arguments as well.
  function splitCommand(input) {
    if (!/\s/.test(input.value.trim()) || /["'\\$]/.test(input.value)) return;
    const fields = [...input.form.querySelectorAll("[name=arg]")];
    if (fields.some((field) => field.value)) return;
    const [program, ...args] = input.value.trim().split(/\s+/);
    input.value = program;
    for (const argument of args) {
      const last = [...input.form.querySelectorAll("[name=arg]")].find((field) => !field.value);
      last.value = argument;
      last.dispatchEvent(new Event("input", { bubbles: true }));
    }
    window.umpteenth.announce(`${args.length} arguments moved to rows of their own`);
  }

  // New rows push the buttons down. A button that is being pressed must not leave the pointer,
  // or its click is lost: then the rows come with the click, before it submits the form.
  let pressed = false;
  document.addEventListener("pointerdown", () => { pressed = true; }, true);
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, () => { pressed = false; }, true);
  }
  document.addEventListener("change", ({ target }) => {
    if (target.name !== "command" || !target.form) return;
    if (!pressed) splitCommand(target);
    else document.addEventListener("click", () => splitCommand(target), { capture: true, once: true });
  });

  function prepare(root) {
    for (const form of root.querySelectorAll?.("form.server-form") ?? []) showChosen(form);
    if (root.matches?.("form.server-form")) {
      showChosen(root);
      root.querySelector("[aria-invalid=true], [data-invalid], [data-asks] [type=submit]")?.focus();
    }
    noteCheck(root);
    goToLogin(root);
  }

  // A link to a folded part of the form opens it.
  const folded = document.getElementById(location.hash.slice(1));
  if (folded instanceof HTMLDetailsElement) folded.open = true;

  document.addEventListener("htmx:load", (event) => prepare(event.detail.elt));
  prepare(document);
  document.querySelector("[data-open-check]")?.click();
})();
