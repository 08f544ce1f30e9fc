"use strict";
// The page's behaviour. Details are decoded when a reader opens them. All text was escaped when the page was written.
(() => {
  const byId = (id) => document.getElementById(id);
  const list = byId("list"), one = byId("one"), detail = byId("detail");
  const table = byId("task-table");
  const rows = table ? Array.from(table.tBodies[0].rows) : [];
  const numeric = new Set(["ours", "eager", "compile", "matched", "share", "reward", "turns"]);
  let focused = null, scrolled = 0;

  // ---------------------------------------------------------------- packed parts

  const decoded = new Map();
  async function unpack(name) {
    if (decoded.has(name)) return decoded.get(name);
    const packed = byId(`b-${name}`);
    if (!packed) return "This part is missing.";
    if (typeof DecompressionStream === "undefined") return "This browser is too old to unpack the details.";
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const text = await new Response(stream).text();
    decoded.set(name, text);
    return text;
  }

  async function fill(listing, name) {
    const html = await unpack(name);
    const pre = listing.querySelector("pre:not(.gutter)");
    pre.innerHTML = html;
    listing.querySelector(".gutter")?.remove();
    if (listing.classList.contains("wrap")) return;
    const lines = pre.textContent.replace(/\n$/, "").split("\n").length;
    const gutter = document.createElement("pre");
    gutter.className = "gutter";
    gutter.setAttribute("aria-hidden", "true");
    gutter.textContent = Array.from({ length: lines }, (_, index) => index + 1).join("\n");
    listing.prepend(gutter);
  }

  function wire(part) {
    for (const listing of part.querySelectorAll(".listing[data-blob]")) {
      listing.tabIndex = 0;
      fill(listing, listing.dataset.blob);
    }
    for (const folded of part.querySelectorAll("details[data-blob]")) {
      folded.addEventListener("toggle", () => {
        if (folded.open) fill(folded.querySelector(".listing"), folded.dataset.blob);
      });
    }
    for (const files of part.querySelectorAll(".files select")) {
      files.addEventListener("change", () => fill(files.closest(".files").querySelector(".listing"), files.value));
    }
    part.querySelectorAll("[data-word]").forEach(wireWord);
  }

  // ---------------------------------------------------------------- one task

  const shown = () => rows.filter((row) => !row.hidden);
  const open = (row) => { location.hash = `task=${encodeURIComponent(row.dataset.id)}`; };

  async function route() {
    const wanted = location.hash.startsWith("#task=") ? decode(location.hash.slice(6)) : null;
    const row = wanted === null ? null : rows.find((item) => item.dataset.id === wanted);
    if (!row) {
      const was = !one.hidden;
      one.hidden = true;
      list.hidden = false;
      if (was) {
        list.querySelectorAll("[data-word]").forEach(showWord);
        window.scrollTo(0, scrolled);
        focused?.querySelector(".open").focus({ preventScroll: true });
      }
      if (was && location.hash.length > 1) byId(location.hash.slice(1))?.scrollIntoView();
      return;
    }
    if (one.hidden) scrolled = window.scrollY;
    focused = row;
    const html = await unpack(row.dataset.blob);
    if (focused !== row) return;
    detail.innerHTML = html;
    list.hidden = true;
    one.hidden = false;
    wire(detail);
    const order = shown().includes(row) ? shown() : rows;
    const at = order.indexOf(row);
    byId("place").textContent = `${at + 1} of ${order.length}`;
    byId("previous").disabled = at <= 0;
    byId("next").disabled = at >= order.length - 1;
    window.scrollTo(0, 0);
    detail.focus({ preventScroll: true });
  }

  function decode(text) {
    try { return decodeURIComponent(text); } catch { return text; }
  }

  function step(by) {
    const order = shown().includes(focused) ? shown() : rows;
    const next = order[order.indexOf(focused) + by];
    if (next) open(next);
  }

  function back() {
    location.hash = "all";
  }

  // ---------------------------------------------------------------- the table

  function value(row, key) {
    if (key === "name") return row.dataset.id;
    const text = row.dataset[key] ?? "";
    return numeric.has(key) ? (text === "" ? null : Number(text)) : text;
  }

  function sort(button) {
    const head = button.closest("th"), key = button.dataset.key;
    const before = head.getAttribute("aria-sort");
    const way = before === "none" ? (numeric.has(key) && key !== "ours" ? "descending" : "ascending")
      : before === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.querySelectorAll("th")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", way);
    const sign = way === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      const x = value(a, key), y = value(b, key);
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (typeof x === "number" ? x - y : x.localeCompare(y, "en", { numeric: true }));
    });
    table.tBodies[0].append(...rows);
  }

  const words = new Map();
  function filter() {
    const text = byId("f-text").value.trim().toLowerCase();
    const least = byId("f-least").value === "" ? null : Number(byId("f-least").value);
    const only = byId("f-check")?.checked;
    const chosen = ["state", "level", "origin", "roofline"].map((key) => [key, byId(`f-${key}`)?.value ?? ""]);
    let count = 0;
    for (const row of rows) {
      if (!words.has(row)) words.set(row, row.textContent.toLowerCase());
      const keep = (!text || words.get(row).includes(text))
        && chosen.every(([key, wanted]) => !wanted || row.dataset[key] === wanted)
        && (least === null || (row.dataset.matched !== "" && Number(row.dataset.matched) >= least))
        && (!only || row.dataset.check === "yes");
      row.hidden = !keep;
      count += keep;
    }
    const whole = `${rows.length} task${rows.length === 1 ? "" : "s"}`;
    byId("f-count").textContent = count === rows.length ? whole : `${count} of ${whole}`;
  }

  if (table) {
    table.tHead.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-key]");
      if (button) sort(button);
    });
    table.tBodies[0].addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row && !String(getSelection())) open(row);
    });
    const form = document.querySelector(".filters");
    form.addEventListener("input", filter);
    form.addEventListener("reset", () => setTimeout(filter));
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }

  // ---------------------------------------------------------------- a person's verdicts

  const kept = `cuda-agent-words ${document.body.dataset.run}`;
  const picked = new Map(read());
  function read() {
    try { return JSON.parse(localStorage.getItem(kept) ?? "[]"); } catch { return []; }
  }

  function wireWord(box) {
    const id = box.dataset.word, note = box.querySelector("input[type=text]");
    const radios = box.querySelectorAll("input[type=radio]");
    showWord(box);
    const changed = () => {
      const chosen = Array.from(radios).find((radio) => radio.checked);
      if (chosen) picked.set(id, { verdict: chosen.value, note: note.value });
      showWords();
    };
    radios.forEach((radio) => radio.addEventListener("change", changed));
    note.addEventListener("input", changed);
  }

  function showWord(box) {
    const held = picked.get(box.dataset.word);
    for (const radio of box.querySelectorAll("input[type=radio]")) radio.checked = held?.verdict === radio.value;
    box.querySelector("input[type=text]").value = held?.note ?? "";
  }

  const quoted = (text) => `'${text.replace(/[\u0000-\u001f\u007f]/g, " ").replaceAll("'", "'\\''")}'`;
  function showWords() {
    try { localStorage.setItem(kept, JSON.stringify(Array.from(picked))); } catch { /* the browser may refuse storage to a page from a file */ }
    const lines = Array.from(picked, ([id, { verdict, note }]) =>
      `${document.body.dataset.command} --task ${quoted(id)} --verdict ${verdict}${note ? ` --note ${quoted(note)}` : ""}`);
    byId("words").hidden = !lines.length;
    byId("words-count").textContent = lines.length === 1 ? "1 verdict" : `${lines.length} verdicts`;
    byId("words-text").value = lines.join("\n");
  }

  byId("words-copy").addEventListener("click", async () => {
    const text = byId("words-text");
    try { await navigator.clipboard.writeText(text.value); } catch { text.select(); document.execCommand("copy"); }
    byId("words-copy").textContent = "Copied";
    setTimeout(() => { byId("words-copy").textContent = "Copy"; }, 1500);
  });
  byId("words-clear").addEventListener("click", () => {
    picked.clear();
    showWords();
    document.querySelectorAll("[data-word] input").forEach((input) => {
      if (input.type === "radio") input.checked = false; else input.value = "";
    });
  });

  // ---------------------------------------------------------------- colours, keys

  const themes = ["auto", "light", "dark"], signs = { auto: "◐ auto", light: "○ light", dark: "● dark" };
  let theme = "auto";
  try { theme = themes.includes(localStorage.getItem("cuda-agent-theme")) ? localStorage.getItem("cuda-agent-theme") : "auto"; } catch { /* as above */ }
  function paint() {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    byId("theme").textContent = signs[theme];
    byId("theme").setAttribute("aria-label", `Colours: ${theme === "auto" ? "those of the system" : theme}`);
  }
  function turnTheme() {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("cuda-agent-theme", theme); } catch { /* as above */ }
    paint();
  }

  byId("theme").addEventListener("click", turnTheme);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("help-close").addEventListener("click", () => byId("help").close());
  byId("back").addEventListener("click", back);
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("words").querySelector("textarea").addEventListener("focus", (event) => event.target.select());

  function move(by) {
    const order = shown();
    const here = order.findIndex((row) => row.contains(document.activeElement));
    const next = order[Math.max(0, Math.min(order.length - 1, here + by))];
    next?.querySelector(".open").focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=radio]):not([type=checkbox]), select, textarea");
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (event.key === "Escape") {
      if (typing) event.target.blur();
      else if (!one.hidden) back();
      return;
    }
    if (typing) return;
    const acts = {
      "/": () => { if (!one.hidden) back(); setTimeout(() => byId("f-text")?.focus()); },
      j: () => (one.hidden ? move(1) : step(1)),
      k: () => (one.hidden ? move(-1) : step(-1)),
      t: turnTheme,
      "?": () => byId("help").showModal(),
    };
    if (acts[event.key]) {
      event.preventDefault();
      acts[event.key]();
    }
  });

  window.addEventListener("hashchange", route);
  paint();
  wire(list);
  showWords();
  // The page of a single run opens its task.
  if (document.body.dataset.kind === "optimize" && !location.hash) history.replaceState(null, "", `#task=${encodeURIComponent(rows[0].dataset.id)}`);
  route();
  document.documentElement.dataset.ready = "yes";
})();
