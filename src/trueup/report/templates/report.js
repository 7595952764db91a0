"use strict";
(() => {
  // Values longer than SHORT are shortened around the change; a page of the table has PAGE differences.
  const SHORT = 120, AROUND = 40, PAGE = 100, PRINTED = 1000, MOST_SIGNS = 2000;
  const KINDS = { missing: "−", extra: "+", changed: "≠", hot: "~" };
  const at = (id) => document.getElementById(id);
  const number = (value) => value.toLocaleString("en-US");

  function make(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // Light or dark: as the system, until the user chooses.
  const THEMES = ["system", "dark", "light"];
  function useTheme(name) {
    if (name === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    at("theme").textContent = `theme: ${name}`;
    at("theme").dataset.now = name;
  }
  function startTheme() {
    let kept = "system";
    // Some browsers store nothing for local files.
    try { kept = localStorage.getItem("trueup-theme") || kept; } catch { }
    useTheme(THEMES.includes(kept) ? kept : "system");
    at("theme").hidden = false;
    at("theme").addEventListener("click", () => {
      const next = THEMES[(THEMES.indexOf(at("theme").dataset.now) + 1) % THEMES.length];
      useTheme(next);
      try { localStorage.setItem("trueup-theme", next); } catch { }
    });
  }

  // Invisible and direction characters are shown as escapes.
  const UNSEEN = /(?! )[\p{C}\p{Z}\u034f\ufe00-\ufe0f]/gu;
  const SIGNS = { "\n": "↵", "\t": "⇥", "\r": "␍", " ": "·" };
  function sign(character) {
    const code = `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    return make("span", { className: "sign", title: code, textContent: SIGNS[character] || code });
  }
  function written(text, budget) {
    const pieces = [];
    let from = 0;
    for (const found of text.matchAll(UNSEEN)) {
      if (budget.left-- <= 0) break;
      pieces.push(text.slice(from, found.index), sign(found[0]));
      if (found[0] === "\n") pieces.push("\n");
      from = found.index + found[0].length;
    }
    pieces.push(text.slice(from));
    return pieces.filter((piece) => piece !== "");
  }
  // Blanks at the ends are made visible.
  function withEnds(text, isStart, isEnd, budget) {
    const lead = isStart ? text.match(/^ */)[0].length : 0;
    const trail = isEnd ? text.slice(lead).match(/ *$/)[0].length : 0;
    const dots = (count) => Array.from({ length: Math.min(count, 20) }, () => sign(" "));
    return [...dots(lead), ...written(text.slice(lead, text.length - trail), budget), ...dots(trail)];
  }

  const isHigh = (code) => code >= 0xd800 && code < 0xdc00;
  const isLow = (code) => code >= 0xdc00 && code < 0xe000;
  // Length of the common start and end of two texts; characters are not split.
  function common(one, other) {
    const most = Math.min(one.length, other.length);
    let start = 0, end = 0;
    while (start < most && one.charCodeAt(start) === other.charCodeAt(start)) start++;
    if (start && isHigh(one.charCodeAt(start - 1))) start--;
    while (end < most - start && one.charCodeAt(one.length - 1 - end) === other.charCodeAt(other.length - 1 - end)) end++;
    if (end && isLow(one.charCodeAt(one.length - end))) end--;
    return [start, end];
  }

  function painted(text, from, to, change) {
    const budget = { left: MOST_SIGNS };
    const piece = (start, end) => {
      [start, end] = [Math.max(start, from), Math.min(end, to)];
      return start < end ? withEnds(text.slice(start, end), start === 0, end === text.length, budget) : [];
    };
    if (!change) return piece(from, to);
    const [start, end] = [change[0], text.length - change[1]];
    const middle = make("mark", {}, ...piece(start, end));
    if (start === end) Object.assign(middle, { className: "gap", title: "the other node has more here" });
    return [...piece(from, start), middle, ...piece(end, to)];
  }

  // A text in its cell: short, complete after a click.
  function putText(cell, text, other) {
    const change = other === undefined ? null : typeof other === "string" ? common(text, other) : [0, 0];
    if (text === "") {
      cell.append(make("span", { className: "null", textContent: "empty text" }));
      return;
    }
    if (text.length <= SHORT) {
      cell.append(...painted(text, 0, text.length, change));
      return;
    }
    let from = change ? Math.max(0, Math.min(change[0] - AROUND, text.length - SHORT)) : 0;
    let to = from + SHORT;
    if (isLow(text.charCodeAt(from))) from--;
    if (to < text.length && isLow(text.charCodeAt(to))) to++;
    const place = make("span");
    const button = make("button", { type: "button", className: "more" });
    const show = (whole) => {
      button.setAttribute("aria-expanded", String(whole));
      button.textContent = whole ? "less" : `all ${number(text.length)} characters`;
      place.className = whole ? "whole" : "short";
      if (whole) place.replaceChildren(...painted(text, 0, text.length, change));
      else place.replaceChildren(from ? "…" : "", ...painted(text, from, to, change), to < text.length ? "…" : "");
    };
    button.addEventListener("click", () => show(button.getAttribute("aria-expanded") !== "true"));
    show(false);
    cell.append(place, button);
  }

  const isLong = (value) => value !== null && typeof value === "object";
  function put(cell, value, other) {
    const none = (text) => {
      const shown = make("span", { className: "null", textContent: text });
      cell.append(other === undefined ? shown : make("mark", {}, shown));
    };
    if (value === null || value === undefined) none("NULL");
    else if (isLong(value)) putText(cell, `${number(value.length)} bytes, sha256 ${value.sha256}`, undefined);
    else if (value === "" && other !== undefined) none("empty text");
    else putText(cell, String(value), isLong(other) ? null : other);
  }
  const same = (one, other) => one === other || (isLong(one) && isLong(other) && one.sha256 === other.sha256 && one.length === other.length);

  startTheme();
  const source = at("differences");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const keyColumns = data.key.map((name) => data.columns.indexOf(name));
  const otherColumns = data.columns.map((_, index) => index).filter((index) => !keyColumns.includes(index));
  const keyless = data.key.length === 0;
  const state = { pair: 0, text: "", kinds: new Set(Object.keys(KINDS)), changedOnly: false, page: 0 };

  // The text that the filter searches; a match does not span cells.
  function textOf(difference) {
    const values = difference.rows.flatMap((row) => row || []);
    const shown = values.map((value) => value === null ? "null" : isLong(value) ? value.sha256 : value);
    return [difference.kind, ...difference.key, ...shown].join("\0").toLowerCase();
  }
  function found(pair) {
    const wanted = state.text.toLowerCase();
    if (wanted) pair.texts ??= pair.differences.map(textOf);
    return pair.differences.filter((difference, index) =>
      state.kinds.has(difference.kind) && (!wanted || pair.texts[index].includes(wanted)));
  }
  function columnsOf(differences) {
    if (!state.changedOnly) return otherColumns;
    const changed = new Set(differences.flatMap((difference) => difference.columns));
    return otherColumns.filter((column) => changed.has(column));
  }

  function copyButton(difference) {
    const button = make("button", { type: "button", className: "copy", textContent: "copy", title: "Copy the key" });
    button.addEventListener("click", async () => {
      const names = keyless ? ["row_hash"] : data.key;
      const named = Object.fromEntries(names.map((name, index) => [name, difference.key[index]]));
      const text = names.length === 1 ? String(difference.key[0]) : JSON.stringify(named);
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch {
        // Copying is not allowed here: select the text, so that the user can copy it.
        getSelection().selectAllChildren(button.previousElementSibling);
        button.textContent = "press Ctrl+C";
      }
    });
    return button;
  }
  // A plan for `trueup repair`: the ticked keys with their actions ("" until one is chosen).
  const plan = new Map();
  const planKey = (difference) => JSON.stringify(difference.key);
  const ACTIONS = [...data.nodes.map((node) => [`keep ${node}`, `{keep: ${yaml(node)}}`]),
    ["insert where missing", "insert"], ["delete everywhere", "delete"], ["skip", "skip"]];
  // Texts are quoted, and characters other than ASCII are escaped, for YAML.
  function yaml(text) {
    const escaped = [...text].map((sign) => sign === '"' || sign === "\\" ? `\\${sign}`
      : sign >= " " && sign <= "~" ? sign : `\\U${sign.codePointAt(0).toString(16).padStart(8, "0")}`);
    return `"${escaped.join("")}"`;
  }
  const quoted = (name) => `"${name.replaceAll('"', '""')}"`;
  function planText() {
    const report = at("report") ? at("report").textContent : "REPORT";
    const rows = [...plan.values()].filter((each) => each.action).map((each) => {
      const key = data.key.map((name, index) => `${yaml(name)}: ${yaml(each.key[index])}`).join(", ");
      return `      - {key: {${key}}, action: ${each.action}}`;
    });
    return ["# Rows that were ticked in the page of a report. What it would do: trueup repair REPORT --plan THIS_FILE",
      `# REPORT: ${yaml(report)}`, "version: 1", "tables:", `  ${yaml(`${quoted(data.schema)}.${quoted(data.table)}`)}:`,
      "    rows:", ...rows, ""].join("\n");
  }
  function showPlan() {
    const decided = [...plan.values()].filter((each) => each.action).length;
    at("planned").textContent = `${number(plan.size)} ticked, ${number(decided)} with an action`;
    for (const id of ["copy-plan", "download-plan"]) at(id).disabled = !decided;
    at("untick-all").disabled = at("action").disabled = !plan.size;
    at("plan-text").hidden = true;
  }
  function tick(difference, isTicked) {
    if (!isTicked) plan.delete(planKey(difference));
    else if (!plan.has(planKey(difference))) plan.set(planKey(difference), { key: difference.key, action: "" });
  }
  function tickBox(difference) {
    const box = make("input", { type: "checkbox", className: "tick", checked: plan.has(planKey(difference)), title: "Add this row to a plan" });
    box.setAttribute("aria-label", `take ${difference.key.join(", ")} into the plan`);
    box.addEventListener("change", () => {
      tick(difference, box.checked);
      if (!box.checked) box.parentElement.querySelector(".action")?.remove();
      showPlan();
    });
    return box;
  }
  function startPlan() {
    const options = ACTIONS.map(([name], index) => make("option", { value: index, textContent: name }));
    at("action").replaceChildren(make("option", { value: "", textContent: "choose an action…" }), ...options);
    at("action").addEventListener("change", () => {
      if (at("action").value === "") return;
      // For rows without an action; to change an action, untick the row first.
      for (const each of plan.values()) {
        if (!each.action) [each.name, each.action] = ACTIONS[Number(at("action").value)];
      }
      at("action").value = "";
      render();
    });
    at("tick-all").addEventListener("click", () => {
      found(data.pairs[state.pair]).forEach((difference) => tick(difference, true));
      render();
    });
    at("untick-all").addEventListener("click", () => {
      plan.clear();
      render();
    });
    at("copy-plan").addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(planText());
        at("planned").textContent = "copied";
      } catch {
        // Copying is not allowed here: show the text selected, so that the user can copy it.
        Object.assign(at("plan-text"), { hidden: false, value: planText() });
        at("plan-text").select();
        at("planned").textContent = "press Ctrl+C";
      }
    });
    at("download-plan").addEventListener("click", () => {
      const address = URL.createObjectURL(new Blob([planText()], { type: "application/yaml" }));
      make("a", { href: address, download: "plan.yaml" }).click();
      setTimeout(() => URL.revokeObjectURL(address), 10000);
    });
    at("plan").hidden = false;
  }
  function keyCell(difference, lines) {
    const cell = make("th", { className: "key", scope: "rowgroup", rowSpan: lines });
    if (!keyless) cell.append(tickBox(difference));
    const values = make("span");
    difference.key.forEach((value, index) => {
      if (index) values.append("\n");
      if (difference.key.length > 1) values.append(make("small", { textContent: `${data.key[index]} ` }));
      put(values, value, undefined);
    });
    cell.append(values, copyButton(difference));
    const action = plan.get(planKey(difference))?.name;
    if (action) cell.append(make("span", { className: "action", textContent: action }));
    return cell;
  }
  function kindCell(difference, pair, lines) {
    const names = difference.columns.map((column) => data.columns[column]);
    const changed = names.slice(0, 3).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");
    const where = changed || (difference.kind === "hot" ? "" : `on ${pair.nodes[1]}`);
    const more = difference.copies ? "copies " + difference.copies.map(number).join(" → ") : where;
    const cell = make("td", { className: "kind", rowSpan: lines });
    cell.append(make("b", { textContent: KINDS[difference.kind] || "?" }), difference.kind);
    if (more) cell.append(make("small", { textContent: more }));
    if (data.nodes.length > 2) {
      const groups = difference.agree.map((group) => group.join(" = ")).join(" ≠ ");
      cell.append(make("small", { textContent: groups, title: "which nodes agree" }));
    }
    return cell;
  }

  // One difference: one line per node with a row; equal cells are merged.
  function body(difference, pair, columns) {
    let sides = [0, 1].filter((side) => difference.rows[side]);
    if (difference.copies) sides = sides.slice(0, 1);
    const two = sides.length === 2;
    const rows = (sides.length ? sides : [0]).map((side, line) => {
      const row = make("tr");
      if (line === 0) row.append(keyCell(difference, two ? 2 : 1), kindCell(difference, pair, two ? 2 : 1));
      const place = side ? "second" : "first";
      const nodes = difference.copies ? pair.nodes.filter((_, index) => difference.copies[index]).join(", ") : pair.nodes[side];
      row.append(make("td", { className: `node ${difference.copies ? "" : place}`, textContent: sides.length ? nodes : "values were not read" }));
      for (const column of columns) {
        const value = difference.rows[side]?.[column];
        const other = two ? difference.rows[1 - side][column] : undefined;
        const changed = two && difference.columns.includes(column);
        const joined = two && !changed && same(value, other);
        if (joined && line) continue;
        const cell = make("td", { className: changed ? `changed ${place}` : two ? "same" : "" });
        if (joined) cell.rowSpan = 2;
        if (sides.length) put(cell, value, changed ? other : undefined);
        row.append(cell);
      }
      return row;
    });
    const made = make("tbody", { className: `is-${difference.kind}` }, ...rows);
    made.dataset.at = pair.differences.indexOf(difference);
    return made;
  }
  function head(columns) {
    const key = keyless ? "row hash" : data.key.join(", ");
    const names = ["difference", "node", ...columns.map((column) => data.columns[column])];
    const cells = names.map((name) => make("th", { scope: "col", textContent: name, title: name }));
    return make("thead", {}, make("tr", {}, make("th", { scope: "col", className: "key", textContent: key, title: key }), ...cells));
  }

  // The page may have only some of the differences that the report lists.
  const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
  const isCut = (pair) => pair.differences.length < sum(pair.listed);
  function shownOf(pair, kind) {
    return pair.differences.reduce((shown, difference) => shown + (difference.kind === kind), 0);
  }
  function cutText(pair) {
    const kinds = Object.keys(KINDS).filter((kind) => pair.listed[kind])
      .map((kind) => `${number(shownOf(pair, kind))} of ${number(pair.listed[kind])} ${kind}`);
    const json = at("report") ? `the JSON report (${at("report").textContent})` : "the JSON report";
    return `This page has ${number(pair.differences.length)} of the ${number(sum(pair.listed))} differences of ` +
      `${pair.pair}: ${kinds.join(", ")}. All of them are in ${json}.`;
  }

  function render(most = PAGE) {
    const pair = data.pairs[state.pair];
    const matching = found(pair);
    const pages = Math.max(1, Math.ceil(matching.length / most));
    state.page = Math.max(0, Math.min(state.page, pages - 1));
    const first = state.page * most;
    const some = matching.slice(first, first + most);
    const columns = columnsOf(matching);
    const of = matching.length === pair.differences.length ? "" : ` (of ${number(pair.differences.length)})`;
    const hidden = columns.length === otherColumns.length ? "" : `, ${columns.length} of ${otherColumns.length} columns`;
    at("status").textContent = (some.length ? `${number(first + 1)}–${number(first + some.length)} of ${number(matching.length)}` : "none") + of + hidden;
    at("tick-all").textContent = `tick all ${number(matching.length)}`;
    showPlan();
    at("previous").disabled = state.page === 0;
    at("next").disabled = state.page === pages - 1;
    at("cut").hidden = !isCut(pair);
    at("cut").lastElementChild.textContent = cutText(pair);
    for (const button of document.querySelectorAll("[data-pair]")) {
      button.setAttribute("aria-current", String(Number(button.dataset.pair) === state.pair));
    }
    const table = make("table", {}, head(columns));
    table.setAttribute("aria-label", `Differences of ${pair.pair}`);
    table.append(...some.map((difference) => body(difference, pair, columns)));
    const none = pair.differences.length ? "Nothing matches the filter." : `No differences between ${pair.nodes.join(" and ")}.`;
    at("rows").replaceChildren(some.length ? table : make("p", { textContent: none }));
    at("rows").scrollTop = 0;
  }

  function go(change) {
    Object.assign(state, { page: 0 }, change);
    render();
  }
  function showPair(index) {
    at("pair").value = String(index);
    kindButtons(data.pairs[index]);
    go({ pair: index });
  }
  function kindButtons(pair) {
    const kinds = Object.entries(KINDS).filter(([kind]) => kind !== "hot" || pair.hot);
    const buttons = kinds.map(([kind, mark]) => {
      // As the report counts: all differences, and for a table without a key all copies.
      const count = pair[kind] || 0;
      const button = make("button", { type: "button", textContent: `${mark} ${kind} ${number(count)}` });
      button.dataset.kind = kind;
      button.setAttribute("aria-pressed", String(state.kinds.has(kind)));
      button.addEventListener("click", () => {
        if (!state.kinds.delete(kind)) state.kinds.add(kind);
        button.setAttribute("aria-pressed", String(state.kinds.has(kind)));
        go({});
      });
      return button;
    });
    document.querySelector(".kinds").replaceChildren(...buttons);
  }
  function pairPicker() {
    at("pair").replaceChildren(...data.pairs.map((pair, index) => make("option", { value: index, textContent: pair.pair })));
    at("pair").addEventListener("change", () => showPair(Number(at("pair").value)));
    if (data.pairs.length < 2) return;
    at("pair").closest("label").hidden = false;
    document.querySelectorAll("#pairs tbody th").forEach((cell, index) => {
      const button = make("button", { type: "button", textContent: cell.textContent, title: "Show the differences of this pair" });
      button.dataset.pair = index;
      button.addEventListener("click", () => {
        showPair(index);
        at("explorer").scrollIntoView();
      });
      cell.replaceChildren(button);
    });
  }
  function turn(pages) {
    if (at(pages < 0 ? "previous" : "next").disabled) return;
    state.page += pages;
    render();
  }
  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = [HTMLInputElement, HTMLSelectElement, HTMLTextAreaElement].some((kind) => event.target instanceof kind);
    if (event.key === "Escape" && event.target === at("filter")) {
      at("filter").value = "";
      go({ text: "" });
    } else if (typing) {
      return;
    } else if (event.key === "/") {
      event.preventDefault();
      at("filter").focus();
    } else if (event.key === "n" || event.key === "p") turn(event.key === "n" ? 1 : -1);
  }

  if (!data.pairs.some((pair) => pair.differences.length || isCut(pair))) return;
  let timer = 0;
  at("filter").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => go({ text: at("filter").value }), 50);
  });
  at("changed-only").addEventListener("change", () => go({ changedOnly: at("changed-only").checked }));
  at("previous").addEventListener("click", () => turn(-1));
  at("next").addEventListener("click", () => turn(1));
  document.addEventListener("keydown", keys);
  // Print all matching differences, up to a limit that is shown above the table.
  const folded = [...document.querySelectorAll("details")];
  addEventListener("beforeprint", () => {
    folded.forEach((each) => { each.dataset.was = each.open; each.open = true; });
    state.turned = state.page;
    state.page = 0;
    render(PRINTED);
  });
  addEventListener("afterprint", () => {
    folded.forEach((each) => { each.open = each.dataset.was === "true"; });
    state.page = state.turned;
    render();
  });
  pairPicker();
  if (!keyless) startPlan();
  at("explorer").hidden = false;
  const first = data.pairs.findIndex((pair) => pair.differences.length || isCut(pair));
  showPair(Math.max(first, 0));
})();
