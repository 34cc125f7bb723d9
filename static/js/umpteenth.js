// What every page does. Data attributes are the interface; each works without this file as a
// plain link, form or button:
//   a[data-dialog], a[data-sheet]   open their page's fragment in the dialog or sheet
//   [data-close]                    closes the dialog or sheet around it
//   form[data-unsaved]              bar with Save and Discard while something differs
//   [data-rows] > [data-row]…, template[data-row-template]   rows that add themselves
//   [data-copy="text"], [data-copy-from="#selector"]         copy
//   time[data-ago], time[data-exact]                         kept current, in local time
//   [data-once]                     is shown only now: a stray click does not close its dialog
//   [data-filter="#list"]           shows only children of the list that hold the words
// Events: server header HX-Trigger {"announce": "words"}, {"toast": "words"}, {"close-dialog": 1}.
"use strict";

(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Saying something
  function announce(words) {
    const live = $("#live");
    if (!live) return;
    live.textContent = "";
    setTimeout(() => { live.textContent = words; }, 30);
  }

  function toast(words, level = "info") {
    const place = $("#toasts");
    const card = $("#toast-template").content.firstElementChild.cloneNode(true);
    card.classList.add(`toast-${level}`);
    $("p", card).textContent = words;
    place.append(card);
    agePlainToasts();
  }

  // Behind an open dialog nothing is read out or can be clicked: what speaks moves into it.
  function speakIn(dialog) {
    (dialog ?? document.body).append($("#toasts"), $("#live"));
  }

  // Errors and toasts with an action stay until dismissed; others leave by themselves.
  function agePlainToasts() {
    for (const card of $$("[data-toast]:not([data-aged])")) {
      card.dataset.aged = "";
      if (card.classList.contains("toast-error")) continue;
      const wait = $("form", card) ? 12000 : 5000;
      let timer = setTimeout(() => card.remove(), wait);
      card.addEventListener("pointerenter", () => clearTimeout(timer));
      card.addEventListener("pointerleave", () => { timer = setTimeout(() => card.remove(), 2000); });
      card.addEventListener("focusin", () => clearTimeout(timer));
    }
  }

  // Dialog and sheet
  const openers = new WeakMap();

  function openIn(dialog, url, opener) {
    const content = dialog.firstElementChild;
    content.replaceChildren($("#dialog-waiting").content.cloneNode(true));
    openers.set(dialog, opener);
    dialog.classList.remove("is-wide");
    if (!dialog.open) dialog.showModal();
    speakIn(dialog);
    htmx.ajax("GET", url, { source: content, target: content, swap: "innerHTML" });
  }

  function closeDialog(dialog) {
    if (dialog.open) dialog.close();
  }

  document.addEventListener("close", (event) => {
    const dialog = event.target;
    if (!(dialog instanceof HTMLDialogElement)) return;
    const content = dialog.firstElementChild;
    if (dialog.id === "dialog" || dialog.id === "sheet") {
      htmx.trigger(content, "htmx:abort");
      content.replaceChildren();
    }
    speakIn($("dialog:modal"));
    const opener = openers.get(dialog);
    if (opener && opener.isConnected) opener.focus();
  }, true);

  // The forms and links of a fragment stay in its dialog, unless they say otherwise.
  function adoptFragment(content) {
    if (!content.closest("dialog")) return;
    for (const form of $$("form[method=post]:not([hx-post]):not([data-page])", content)) {
      form.setAttribute("hx-post", form.getAttribute("action") || content.dataset.url || location.pathname);
      form.setAttribute("hx-target", `#${content.id}`);
      form.setAttribute("hx-swap", "innerHTML");
      if (form.enctype === "multipart/form-data") form.setAttribute("hx-encoding", form.enctype);
      htmx.process(form);
    }
    const head = $(".dialog-head", content);
    if (head && !$("[data-close]", head)) {
      const button = document.createElement("button");
      button.className = "btn-icon";
      button.type = "button";
      button.dataset.close = "";
      button.setAttribute("aria-label", "Close");
      button.append($("#toast-template").content.querySelector("[data-dismiss] svg").cloneNode(true));
      head.append(button);
    }
    const title = $("h2", content);
    if (title && !title.id) title.id = `${content.parentElement.id}-title`;
    focusFirst(content);
  }

  function focusFirst(root) {
    const target = $("[aria-invalid=true]", root) || $("[autofocus]", root)
      || $("input:not([type=hidden]):not([disabled]), select, textarea", root)
      || $(".dialog-foot .btn:not(.btn-danger)", root);
    if (target) target.focus();
  }

  // Clicks
  function plainClick(event) {
    return event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  }

  document.addEventListener("click", (event) => {
    const target = event.target instanceof Element ? event.target : event.target.parentElement;
    if (!target) return;
    for (const menu of $$("details[data-menu][open]")) {
      if (!menu.contains(target) || target.closest(".menu-item")) menu.open = false;
    }
    if (target instanceof HTMLDialogElement && outside(target, event)) {
      // A stray click must not throw away what was typed; Escape and Cancel do.
      if (!isTyped(target) && !$("[data-once]", target)) closeDialog(target);
      return;
    }
    const link = target.closest("a[data-dialog], a[data-sheet]");
    if (link && plainClick(event)) {
      event.preventDefault();
      const menu = link.closest("details[data-menu]");
      const opener = menu ? $("summary", menu) : link;
      openIn($(link.hasAttribute("data-sheet") ? "#sheet" : "#dialog"), link.href, opener);
      return;
    }
    const closer = target.closest("[data-close]");
    if (closer && closer.closest("dialog")) {
      event.preventDefault();
      closeDialog(closer.closest("dialog"));
      return;
    }
    if (target.closest("[data-palette]") && plainClick(event)) {
      event.preventDefault();
      openPalette(target.closest("[data-palette]"));
      return;
    }
    const dismiss = target.closest("[data-dismiss]");
    if (dismiss) dismiss.closest("[data-toast]").remove();
    const copy = target.closest("[data-copy], [data-copy-from]");
    if (copy) copyFrom(copy);
    const remove = target.closest("[data-row-remove]");
    if (remove) removeRow(remove);
    const row = target.closest("[data-href]");
    if (row && plainClick(event) && !target.closest("a, button, input, label, select, summary, form")) {
      const first = $(`a[href="${CSS.escape(row.dataset.href)}"]`, row) || $("a", row);
      if (first && !String(getSelection())) first.click();
    }
  });

  function isTyped(dialog) {
    return $$("input:not([type=hidden], [type=search]), textarea", dialog)
      .some((field) => field.value !== field.defaultValue || Boolean(field.checked) !== Boolean(field.defaultChecked));
  }

  function outside(dialog, event) {
    const box = dialog.getBoundingClientRect();
    return event.clientX < box.left || event.clientX > box.right
      || event.clientY < box.top || event.clientY > box.bottom;
  }

  async function copyFrom(button) {
    const source = button.dataset.copyFrom ? $(button.dataset.copyFrom) : null;
    const text = source ? (source.value ?? source.textContent) : button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.", "success");
    } catch {
      toast("The browser does not allow copying here. Select the text and copy it.", "error");
    }
  }

  // A menu in a scrolling table would be cut off: it is laid over the page at its button.
  document.addEventListener("toggle", (event) => {
    const menu = event.target;
    if (!(menu instanceof HTMLDetailsElement) || !menu.hasAttribute("data-menu")) return;
    if (!menu.open) return void placed.delete(menu);
    for (const other of $$("details[data-menu][open]")) if (other !== menu) other.open = false;
    placeMenu(menu);
  }, true);

  const placed = new WeakMap(); // where the button of a menu was when the menu was laid there

  function placeMenu(menu) {
    const list = $(".menu-list", menu);
    const button = $("summary", menu).getBoundingClientRect();
    placed.set(menu, button);
    const bar = parseFloat(getComputedStyle($(".sidebar") || document.body).height) || 0;
    const bottom = innerHeight - (innerWidth <= 768 ? bar : 0);
    list.style.position = "fixed";
    list.style.right = "auto";
    list.style.bottom = "auto";
    const { width, height } = list.getBoundingClientRect();
    const below = button.bottom + 4;
    list.style.left = `${Math.max(8, Math.min(button.right - width, innerWidth - width - 8))}px`;
    list.style.top = `${below + height > bottom - 8 ? Math.max(8, button.top - height - 4) : below}px`;
  }

  // Scrolling is told a frame late: one that ended before the menu was opened has not moved it.
  function closeMoved() {
    for (const menu of $$("details[data-menu][open]")) {
      const then = placed.get(menu), now = $("summary", menu).getBoundingClientRect();
      if (then && (then.x !== now.x || then.y !== now.y)) menu.open = false;
    }
  }
  addEventListener("resize", closeMoved);
  addEventListener("scroll", closeMoved, { capture: true, passive: true });

  // Keys
  document.addEventListener("keydown", (event) => {
    if ((event.metaKey || event.ctrlKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openPalette(document.activeElement);
    }
    if (event.key === "Escape") {
      for (const menu of $$("details[data-menu][open]")) {
        menu.open = false;
        $("summary", menu).focus();
      }
    }
    const menu = event.target instanceof Element && event.target.closest("details[data-menu][open]");
    if (menu && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      const items = $$(".menu-item", menu);
      const step = event.key === "ArrowDown" ? 1 : -1;
      const at = items.indexOf(document.activeElement);
      items[(at + step + items.length) % items.length]?.focus();
    }
  });

  // Search palette
  function openPalette(opener) {
    const palette = $("#palette");
    if (!palette || palette.open) return;
    openers.set(palette, opener);
    palette.showModal();
    speakIn(palette);
    const input = $("#palette-input");
    input.value = "";
    input.focus();
    htmx.trigger(input, "palette-open");
  }

  function hits() { return $$("#palette-results .hit"); }

  function activate(index) {
    const all = hits();
    if (!all.length) return;
    const at = (index + all.length) % all.length;
    all.forEach((hit, i) => {
      hit.classList.toggle("is-active", i === at);
      hit.setAttribute("aria-selected", String(i === at));
    });
    $("#palette-input").setAttribute("aria-activedescendant", all[at].id);
    all[at].scrollIntoView({ block: "nearest" });
  }

  $("#palette-input")?.addEventListener("keydown", (event) => {
    const at = hits().findIndex((hit) => hit.classList.contains("is-active"));
    if (event.key === "ArrowDown") { event.preventDefault(); activate(at + 1); }
    if (event.key === "ArrowUp") { event.preventDefault(); activate(at - 1); }
    if (event.key === "Enter" && hits()[at]) {
      event.preventDefault();
      const hit = hits()[at];
      $("#palette").close();
      hit.click();
    }
  });

  // Theme: the cookie is read by the server, so that no page flashes
  function isDark() {
    const set = document.documentElement.dataset.bsTheme;
    return set ? set === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("[data-theme-form]")) return;
    event.preventDefault();
    const theme = isDark() ? "light" : "dark";
    document.documentElement.dataset.bsTheme = theme;
    const secure = location.protocol === "https:" ? "; Secure" : "";
    document.cookie = `theme=${theme}; Path=/; Max-Age=31536000; SameSite=Lax${secure}`;
    announce(theme === "dark" ? "Dark theme" : "Light theme");
  });

  // A double click must not start two runs: a form is sent once until its answer is here
  const sending = new WeakSet();

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.getAttribute("method")?.toLowerCase() !== "post") return;
    if (sending.has(form)) {
      event.preventDefault();
      event.stopImmediatePropagation();
      return;
    }
    sending.add(form);
    setTimeout(() => {
      // Handled by a script of its page, which has its own way of saying that it is busy.
      if (event.defaultPrevented && !form.hasAttribute("hx-post")) sending.delete(form);
    });
    setTimeout(() => sending.delete(form), 30_000);
  }, true);

  document.addEventListener("htmx:afterRequest", (event) => {
    // After a redirect the page is about to leave.
    if (!event.detail.xhr?.getResponseHeader("HX-Redirect")) sending.delete(event.detail.elt);
  });
  addEventListener("pageshow", (event) => {
    if (event.persisted) for (const form of document.forms) sending.delete(form);
  });

  // Unsaved changes
  const saved = new WeakMap();
  let leaving = false;

  function snapshot(form) {
    const entries = [...new FormData(form)].filter(([name]) => name !== "csrfmiddlewaretoken");
    return JSON.stringify(entries.map(([name, value]) => [name, value instanceof File ? value.name : value]));
  }

  function watchForm(form) {
    if (saved.has(form)) return;
    saved.set(form, snapshot(form));
    // A refused form comes back with what was typed: it is not saved.
    if ($("[aria-invalid=true], .alert-danger", form)) form.classList.add("is-dirty");
    const update = () => form.classList.toggle("is-dirty", snapshot(form) !== saved.get(form));
    form.addEventListener("input", update);
    form.addEventListener("change", update);
    form.addEventListener("rows-changed", update);
    // The same, only written in other fields.
    form.addEventListener("rows-loaded", () => {
      if (!form.classList.contains("is-dirty")) saved.set(form, snapshot(form));
    });
    form.addEventListener("submit", () => { leaving = true; });
    form.addEventListener("reset", (event) => {
      event.preventDefault();
      leaving = true;
      location.reload();
    });
  }

  addEventListener("beforeunload", (event) => {
    if (!leaving && $("form[data-unsaved].is-dirty")) event.preventDefault();
  });
  document.addEventListener("htmx:responseError", () => { leaving = false; });
  document.addEventListener("htmx:sendError", () => { leaving = false; });

  // Rows that add themselves when the last one is filled
  function addRow(rows) {
    const template = $("template[data-row-template]", rows);
    if (!template) return null;
    const row = template.content.firstElementChild.cloneNode(true);
    const total = $("input[name$=-TOTAL_FORMS]", rows);
    const index = total ? Number(total.value) : $$("[data-row]", rows).length;
    for (const element of [row, ...$$("*", row)]) {
      for (const attribute of [...element.attributes]) {
        if (attribute.value.includes("__prefix__")) {
          attribute.value = attribute.value.replaceAll("__prefix__", index);
        }
      }
    }
    if (total) total.value = String(index + 1);
    const last = $$("[data-row]", rows).at(-1);
    if (last) last.after(row); else template.before(row);
    htmx.process(row);
    return row;
  }

  // A list counts where nothing can be chosen in it.
  const ENTRIES = 'input:not([type=hidden]):not([type=checkbox]), textarea, select:has(> option[value=""])';
  const rowIsEmpty = (row) => $$(ENTRIES, row)
    .every((input) => input.value === "");

  function topUp(rows) {
    const last = $$("[data-row]", rows).at(-1);
    if (!last || !rowIsEmpty(last)) addRow(rows);
  }

  function removeRow(button) {
    const row = button.closest("[data-row]");
    const rows = row.closest("[data-rows]");
    const neighbour = row.nextElementSibling?.matches("[data-row]") ? row.nextElementSibling : row.previousElementSibling;
    const mark = $("input[name$=-DELETE]", row);
    if (mark) { mark.checked = true; mark.value = "on"; row.hidden = true; } else { row.remove(); }
    topUp(rows);
    const next = neighbour?.isConnected ? $("input, select", neighbour) : $("[data-row] :is(input, select)", rows);
    next?.focus();
    rows.dispatchEvent(new CustomEvent("rows-changed", { bubbles: true }));
  }

  document.addEventListener("input", (event) => {
    const rows = event.target.closest?.("[data-rows]");
    if (rows) topUp(rows);
    const filter = event.target.closest?.("[data-filter]");
    if (filter) filterList(filter);
  });

  function filterList(input) {
    const words = input.value.trim().toLowerCase().split(/\s+/);
    let shown = 0;
    for (const item of $(input.dataset.filter).children) {
      const text = (item.dataset.words || item.textContent).toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      if (!item.hidden) shown += 1;
    }
    announce(`${shown} shown`);
  }

  // Times
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
  const withZone = new Intl.DateTimeFormat(undefined, {
    year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });

  function relative(then) {
    const seconds = (Date.now() - then) / 1000;
    const distance = Math.abs(seconds);
    let amount;
    if (distance < 45) return seconds >= 0 ? "just now" : "in a moment";
    if (distance < 3570) amount = `${Math.max(1, Math.round(distance / 60))} min`;
    else if (distance < 84600) amount = `${Math.max(1, Math.round(distance / 3600))} h`;
    else if (distance < 2592000) {
      const days = Math.max(1, Math.round(distance / 86400));
      amount = `${days} day${days === 1 ? "" : "s"}`;
    } else return null;
    return seconds >= 0 ? `${amount} ago` : `in ${amount}`;
  }

  function refreshTimes(root = document) {
    for (const element of $$("time[data-ago], time[data-exact]", root)) {
      const then = Date.parse(element.dateTime);
      if (Number.isNaN(then)) continue;
      if (!element.dataset.local) {
        element.title = withZone.format(then);
        element.dataset.local = "";
        if (element.hasAttribute("data-exact")) element.textContent = exact.format(then);
      }
      if (element.hasAttribute("data-ago")) {
        const words = relative(then);
        if (words && element.textContent !== words) element.textContent = words;
      }
    }
  }

  // Fragments that arrive, and faults on the way
  function prepare(root) {
    refreshTimes(root);
    agePlainToasts();
    const forms = root.matches?.("form[data-unsaved]") ? [root] : $$("form[data-unsaved]", root);
    forms.forEach(watchForm);
    for (const rows of $$("[data-rows]", root)) topUp(rows);
  }

  document.addEventListener("htmx:afterSwap", (event) => {
    const target = event.detail.target || event.target;
    if (target.id === "dialog-content" || target.id === "sheet-content") {
      target.dataset.url = event.detail.pathInfo?.finalRequestPath || "";
      adoptFragment(target);
    }
  });
  // After settling: until then htmx gives hits of the same id their old attributes back.
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target?.id === "palette-results") activate(0);
  });
  document.addEventListener("htmx:load", (event) => prepare(event.detail.elt));
  document.addEventListener("htmx:oobAfterSwap", () => agePlainToasts());
  document.addEventListener("announce", (event) => announce(event.detail.value ?? event.detail));
  document.addEventListener("toast", (event) => toast(event.detail.value ?? event.detail));
  document.addEventListener("close-dialog", () => $$("dialog[open]").forEach(closeDialog));

  document.addEventListener("htmx:responseError", (event) => {
    const xhr = event.detail.xhr;
    const page = new DOMParser().parseFromString(xhr.responseText || "", "text/html");
    const words = $("[data-error]", page)?.textContent.replace(/\s+/g, " ").trim();
    failed(event, words || `The server answered with error ${xhr.status}. Try again, or reload the page.`);
  });
  document.addEventListener("htmx:sendError", (event) => {
    failed(event, "The server cannot be reached. Check your connection and try again.");
  });

  function failed(event, words) {
    const dialog = event.detail.target?.closest?.("dialog");
    if (dialog && $(".skeleton", dialog)) closeDialog(dialog);
    toast(words, "error");
  }

  if (/Mac|iPhone|iPad/.test(navigator.platform)) {
    for (const key of $$("[data-shortcut]")) key.textContent = "⌘K";
  }
  setInterval(() => refreshTimes(), 30000);
  prepare(document);
  window.umpteenth = { announce, toast, openIn, closeDialog, refreshTimes, addRow, speakIn };
})();
