// The key button beside a value: a searchable list of secrets, and `New secret…` right there.
// [data-secret-for="id"] inserts `{{secret:NAME}}` at the caret of that input, or, with
// data-secret-mark="@", makes `@NAME` its value;
// data-secrets is the address of the list. Without script one types the reference.
"use strict";

(() => {
  const TRIGGER = "[data-secret-for]";
  let picker = null; // { panel, button, request }

  function closePicker(focus) {
    if (!picker) return;
    const { panel, button, request } = picker;
    picker = null;
    request?.abort();
    button.setAttribute("aria-expanded", "false");
    panel.remove();
    if (focus && button.isConnected) button.focus();
  }

  // Outside of the form, for it holds a form of its own, and inside the dialog, for what is
  // outside of an open dialog cannot be reached.
  function openPicker(button) {
    closePicker(false);
    const panel = document.createElement("div");
    panel.className = "secret-picker";
    panel.setAttribute("role", "dialog");
    panel.setAttribute("aria-label", "Insert a secret");
    panel.setAttribute("popover", "manual");
    (button.closest("dialog") || document.body).append(panel);
    panel.showPopover();
    picker = { panel, button, request: null };
    button.setAttribute("aria-expanded", "true");
    showList("");
  }

  function place() {
    if (!picker) return;
    const { panel, button } = picker;
    if (!button.isConnected) {
      closePicker(false);
      return;
    }
    const anchor = button.getBoundingClientRect();
    const width = panel.offsetWidth;
    const height = panel.offsetHeight;
    const above = anchor.bottom + height + 12 > innerHeight && anchor.top > height + 12;
    panel.style.inset = "auto";
    panel.style.left = `${Math.max(8, Math.min(anchor.right - width, innerWidth - width - 8))}px`;
    panel.style.top = `${above ? anchor.top - height - 4 : Math.max(8, Math.min(anchor.bottom + 4, innerHeight - height - 8))}px`;
  }

  function showList(words) {
    const { panel } = picker;
    const search = document.createElement("input");
    search.type = "search";
    search.className = "form-control secret-picker-search";
    search.placeholder = "Search secrets";
    search.value = words;
    search.autocomplete = "off";
    search.spellcheck = false;
    for (const [name, value] of Object.entries({
      role: "combobox", "aria-label": "Search secrets", "aria-expanded": "true",
      "aria-autocomplete": "list",
    })) search.setAttribute(name, value);
    const place = document.createElement("div");
    place.dataset.secretList = "";
    panel.replaceChildren(search, place);
    search.addEventListener("input", () => loadList(search.value));
    loadList(words);
    search.focus();
  }

  async function load(url, options = {}) {
    const current = picker;
    current.request?.abort();
    const request = new AbortController();
    current.request = request;
    const response = await fetch(url, {
      ...options, signal: request.signal, credentials: "same-origin", redirect: "error",
    });
    if (!response.ok && response.status !== 422) throw new Error(`status ${response.status}`);
    const text = await response.text();
    if (picker !== current || current.request !== request) throw new DOMException("", "AbortError");
    return text;
  }

  function complain(root, error) {
    if (error.name === "AbortError") return;
    const words = document.createElement("p");
    words.className = "hit-none";
    words.setAttribute("role", "alert");
    words.textContent = "Secrets could not be loaded. Check the connection, or sign in again.";
    root.replaceChildren(words);
    place();
  }

  async function loadList(words) {
    const root = picker.panel.querySelector("[data-secret-list]");
    const url = new URL(picker.button.dataset.secrets, location.href);
    url.searchParams.set("q", words.slice(0, 200));
    try {
      root.innerHTML = await load(url);
    } catch (error) {
      complain(root, error);
      return;
    }
    activate(0);
    place();
  }

  function options() {
    return picker ? [...picker.panel.querySelectorAll("[data-secret]")] : [];
  }

  function activate(index) {
    const all = options();
    const search = picker.panel.querySelector(".secret-picker-search");
    if (!all.length || !search) return;
    const at = (index + all.length) % all.length;
    all.forEach((option, i) => {
      option.classList.toggle("is-active", i === at);
      option.setAttribute("aria-selected", String(i === at));
    });
    search.setAttribute("aria-activedescendant", all[at].id);
    all[at].scrollIntoView({ block: "nearest" });
  }

  function insert(name) {
    const { button } = picker;
    const input = document.getElementById(button.dataset.secretFor);
    closePicker(false);
    if (!input) return;
    const { secretMark } = button.dataset;
    if (secretMark) input.value = "";
    const reference = secretMark ? `${secretMark}${name}` : `{{secret:${name}}}`;
    // A field that nobody was in has its caret before what stands there (`Bearer `).
    const end = input.selectionEnd || input.value.length;
    const start = input.selectionEnd ? input.selectionStart : end;
    input.focus();
    input.setRangeText(reference, start, end, "end");
    input.dispatchEvent(new Event("input", { bubbles: true }));
    input.dispatchEvent(new Event("change", { bubbles: true }));
  }

  // New secret…
  async function showQuickForm(link) {
    const { panel } = picker;
    const url = new URL(link.dataset.secretNew, location.href);
    const typed = panel.querySelector(".secret-picker-search")?.value.trim() ?? "";
    if (/^[A-Za-z0-9_.-]{1,100}$/.test(typed)) url.searchParams.set("q", typed);
    try {
      panel.innerHTML = await load(url);
    } catch (error) {
      complain(panel, error);
      return;
    }
    focusFirst(panel);
    place();
  }

  async function sendQuickForm(form) {
    const { panel } = picker;
    const submit = form.querySelector("[type=submit]");
    submit.disabled = true;
    try {
      panel.innerHTML = await load(form.action, { method: "POST", body: new FormData(form) });
    } catch (error) {
      submit.disabled = false;
      complain(panel, error);
      return;
    }
    const created = panel.querySelector("[data-secret-created]");
    if (created) {
      const words = created.textContent.trim();
      insert(created.dataset.secretCreated);
      document.dispatchEvent(new CustomEvent("toast", { detail: { value: words } }));
    } else {
      focusFirst(panel);
      place();
    }
  }

  function focusFirst(panel) {
    const inputs = [...panel.querySelectorAll("input:not([type=hidden]), textarea")];
    const target = inputs.find((input) => input.getAttribute("aria-invalid") === "true")
      || inputs.find((input) => !input.value);
    target?.focus();
  }

  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : event.target.parentElement;
    if (!target) return;
    const button = target.closest(TRIGGER);
    if (button) {
      event.preventDefault();
      if (picker?.button === button) closePicker(true);
      else openPicker(button);
      return;
    }
    if (!picker) return;
    if (!picker.panel.contains(target)) {
      closePicker(false);
      return;
    }
    const option = target.closest("[data-secret]");
    const fresh = target.closest("[data-secret-new]");
    if (option) insert(option.dataset.secret);
    else if (fresh) { event.preventDefault(); showQuickForm(fresh); }
    else if (target.closest("[data-secret-back]")) showList("");
  });

  document.addEventListener("submit", (event) => {
    if (!picker?.panel.contains(event.target)) return;
    event.preventDefault();
    event.stopPropagation();
    sendQuickForm(event.target);
  }, true);

  // In the capture phase: Escape closes the list, not the dialog that it stands in.
  document.addEventListener("keydown", (event) => {
    if (!picker) return;
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      closePicker(true);
      return;
    }
    if (event.key === "Tab") keepInside(event);
    if (!event.target.matches?.(".secret-picker-search")) return;
    const all = options();
    const at = all.findIndex((option) => option.classList.contains("is-active"));
    if (event.key === "ArrowDown") { event.preventDefault(); activate(at + 1); }
    if (event.key === "ArrowUp") { event.preventDefault(); activate(at - 1); }
    if (event.key === "Enter") {
      event.preventDefault();
      if (all[at]) insert(all[at].dataset.secret);
    }
  }, true);

  function keepInside(event) {
    const stops = [...picker.panel.querySelectorAll("input:not([type=hidden]), textarea, button, a")];
    const at = stops.indexOf(document.activeElement);
    const next = at + (event.shiftKey ? -1 : 1);
    if (at >= 0 && stops[next]) return;
    event.preventDefault();
    stops.at(event.shiftKey ? -1 : 0)?.focus();
  }

  // Closing a dialog by another way takes the list along.
  document.addEventListener("close", () => closePicker(false), true);
  addEventListener("resize", place);
  addEventListener("scroll", (event) => {
    if (picker && !picker.panel.contains(event.target)) place();
  }, { capture: true, passive: true });
})();
