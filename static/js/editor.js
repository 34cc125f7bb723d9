// The job form: script editor, attached servers and their tools, secrets.
//   textarea[data-editor]   line numbers, colours, Tab indents (Esc first: Tab leaves)
//   [data-call]             inserts a call of a tool at the cursor
//   [data-attachment]       a row of the MCP servers card; [data-detach] removes it
//   [data-tools]            the checklist behind a row's tools button
"use strict";

(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Editor
  const COLOURED = 100000;
  const KEYWORDS = {
    bash: "if then else elif fi for while until do done case esac in function return exit local export set echo cd read source trap ump",
    python: "def class return if elif else for while in not and or is None True False import from as with try except finally raise pass break continue lambda yield async await global nonlocal del assert print",
    node: "const let var function return if else for while of in new class extends import from export default async await try catch finally throw break continue typeof null undefined true false this switch case",
  };

  function language(text) {
    const first = text.split("\n", 1)[0];
    if (!first.startsWith("#!")) return "bash";
    if (/python/.test(first)) return "python";
    return /node/.test(first) ? "node" : "bash";
  }

  const patterns = {};
  function pattern(name) {
    const comment = name === "node" ? "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?\\*\\/|^#![^\\n]*" : "(?<=^|\\s)#[^\\n]*";
    const string = name === "python"
      ? '"""[\\s\\S]*?"""|\'\'\'[\\s\\S]*?\'\'\'|"(?:\\\\.|[^"\\\\\\n])*"|\'(?:\\\\.|[^\'\\\\\\n])*\''
      : name === "node" ? '`(?:\\\\.|[^`\\\\])*`|"(?:\\\\.|[^"\\\\\\n])*"|\'(?:\\\\.|[^\'\\\\\\n])*\''
        : '"(?:\\\\.|[^"\\\\])*"|\'[^\']*\'';
    const word = `\\b(?:${KEYWORDS[name].split(" ").join("|")})\\b`;
    patterns[name] ||= new RegExp(`(${comment})|(${string})|(${word})|(\\$\\{?\\w+\\}?|\\b\\d+(?:\\.\\d+)?\\b)`, "gm");
    return patterns[name];
  }

  function colour(text) {
    const out = document.createDocumentFragment();
    const kinds = ["comment", "string", "word", "value"];
    let at = 0;
    for (const match of text.matchAll(pattern(language(text)))) {
      if (match.index > at) out.append(text.slice(at, match.index));
      const span = document.createElement("span");
      span.className = `code-${kinds[match.slice(1).findIndex((part) => part !== undefined)]}`;
      span.textContent = match[0];
      out.append(span);
      at = match.index + match[0].length;
    }
    out.append(text.slice(at), "\n");
    return out;
  }

  function makeEditor(area) {
    const box = document.createElement("div");
    box.className = "editor";
    const gutter = document.createElement("pre");
    gutter.className = "editor-gutter";
    gutter.setAttribute("aria-hidden", "true");
    const colours = document.createElement("pre");
    colours.className = "editor-colours";
    colours.setAttribute("aria-hidden", "true");
    area.before(box);
    box.append(gutter, colours, area);
    if (area.classList.contains("is-invalid")) box.classList.add("is-invalid");
    area.setAttribute("aria-describedby", `${area.getAttribute("aria-describedby") || ""} script-keys`.trim());

    let lines = 0;
    function draw() {
      const count = area.value.split("\n").length;
      if (count !== lines) {
        lines = count;
        gutter.textContent = Array.from({ length: count }, (_, index) => index + 1).join("\n") + "\n";
      }
      const plain = area.value.length > COLOURED;
      box.classList.toggle("is-plain", plain);
      colours.replaceChildren(plain ? "" : colour(area.value));
      scroll();
    }
    function scroll() {
      gutter.scrollTop = area.scrollTop;
      colours.scrollTop = area.scrollTop;
      colours.scrollLeft = area.scrollLeft;
    }
    area.addEventListener("input", draw);
    area.addEventListener("scroll", scroll, { passive: true });
    area.addEventListener("keydown", (event) => onKey(area, event));
    area.addEventListener("focus", () => { delete area.dataset.leave; });
    draw();
  }

  // Tab must not trap whoever works by keyboard: after Esc it leaves the editor.
  function onKey(area, event) {
    if (event.key === "Escape") { area.dataset.leave = ""; return; }
    if (event.key !== "Tab" || event.ctrlKey || event.altKey || event.metaKey || "leave" in area.dataset) {
      if (event.key !== "Tab" && event.key !== "Shift") delete area.dataset.leave;
      return;
    }
    event.preventDefault();
    const start = area.value.lastIndexOf("\n", area.selectionStart - 1) + 1;
    const block = area.value.slice(start, area.selectionEnd);
    const width = language(area.value) === "python" ? 4 : 2;
    const pad = " ".repeat(width);
    if (!event.shiftKey && area.selectionStart === area.selectionEnd) { insert(area, pad); return; }
    const lead = new RegExp(`^ {1,${width}}`, "gm");
    const changed = event.shiftKey ? block.replace(lead, "") : block.replace(/^/gm, pad);
    area.setSelectionRange(start, area.selectionEnd);
    insert(area, changed);
    area.setSelectionRange(start, start + changed.length);
  }

  // execCommand keeps the browser's own undo.
  function insert(area, text) {
    area.focus();
    if (!document.execCommand("insertText", false, text)) {
      area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
      area.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  function quote(text) {
    return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
  }

  function callText(script, { server, tool, arguments: given }) {
    const argv = ["ump", "mcp", "call", server, tool].map((word) => JSON.stringify(word)).join(", ");
    switch (language(script)) {
      case "python": return `subprocess.run([${argv}, ${JSON.stringify(given)}], check=True)\n`;
      case "node": return `execFileSync("ump", [${argv.replace('"ump", ', "")}, ${JSON.stringify(given)}]);\n`;
      default: return `ump mcp call ${quote(server)} ${quote(tool)} ${quote(given)}\n`;
    }
  }

  for (const area of $$("textarea[data-editor]")) makeEditor(area);
  $("[aria-invalid=true]")?.focus();

  // Attached servers
  const form = $("form.job-form");
  if (!form) return;
  const changed = () => form.dispatchEvent(new CustomEvent("rows-changed"));

  function showLabel(tools) {
    const all = $("[data-all]", tools);
    const boxes = $$("input[type=checkbox]:not([data-all])", tools);
    const offered = boxes.filter((box) => !("gone" in box.dataset));
    const picked = offered.filter((box) => box.checked);
    const label = $("[data-tools-label]", tools.closest("[data-attachment]"));
    // A long checklist that nobody has opened yet.
    const late = $("[data-late]", tools);
    const count = late ? JSON.parse($("input", late).value).length : picked.length;
    label.textContent = all.checked ? "All tools" : `${count} of ${late?.dataset.late ?? offered.length} tools`;
  }

  form.addEventListener("htmx:load", (event) => {
    const tools = event.target.matches("[data-tools-list]") && event.target.closest("[data-tools]");
    if (!tools) return;
    form.dispatchEvent(new CustomEvent("rows-loaded"));
    // What was typed while it came.
    $("[data-filter]", tools)?.dispatchEvent(new Event("input", { bubbles: true }));
  });

  form.addEventListener("change", (event) => {
    const tools = event.target.closest("[data-tools]");
    if (tools) {
      const all = $("[data-all]", tools);
      const offered = $$("input[type=checkbox]:not([data-all], [data-gone])", tools);
      if (event.target === all) for (const box of offered) box.checked = all.checked;
      else all.checked = offered.length > 0 && offered.every((box) => box.checked) && !$("[data-gone]:checked", tools);
      showLabel(tools);
    }
    if (event.target.name === "secret") nameVariable(event.target);
  });

  // A secret is usually wanted under its own name.
  function nameVariable(select) {
    const input = $("input[name=variable]", select.closest("[data-row]"));
    const name = select.value.toUpperCase().replace(/[^A-Z0-9_]/g, "_");
    if (input && !input.value && select.value) {
      input.value = /^\d/.test(name) ? `_${name}` : name;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  document.addEventListener("click", (event) => {
    const call = event.target.closest("[data-call]");
    if (call) {
      const area = $("textarea[data-editor]");
      insert(area, callText(area.value, call.dataset));
    }
    const detach = event.target.closest("[data-detach]");
    if (detach) remove(detach.closest("[data-attachment]"));
  });

  const select = $("#attach");

  function remove(row) {
    const { attachment, name } = row.dataset;
    const next = row.nextElementSibling || row.previousElementSibling;
    row.remove();
    $(`[data-calls="${CSS.escape(attachment)}"]`)?.remove();
    if (select && ![...select.options].some((option) => option.value === attachment)) {
      const option = new Option(name, attachment);
      const later = [...select.options].slice(1).find((other) => other.text.localeCompare(name) > 0);
      select.add(option, later || null);
    }
    umpteenth.announce(`${name} removed. Save to keep the change.`);
    ($("[data-detach]", next || form) || select)?.focus();
    changed();
  }

  select?.addEventListener("htmx:afterRequest", (event) => {
    const option = select.selectedOptions[0];
    if (event.detail.successful && option?.value) {
      umpteenth.announce(`${option.text} attached. Save to keep the change.`);
      option.remove();
    }
    select.value = "";
    changed();
  });
  // A choice made before the scripts were here; htmx, loaded first, listens by now.
  document.addEventListener("DOMContentLoaded", () => {
    if (select?.value) select.dispatchEvent(new Event("change", { bubbles: true }));
  });
})();
