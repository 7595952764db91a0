// Live pages: when the server has seen something new, the page is fetched again, and only the blocks that changed are replaced.
(() => {
  "use strict";
  const root = document.documentElement;
  const THEMES = ["system", "light", "dark"];
  const theme = document.getElementById("theme");
  if (theme) {
    let chosen = "system";
    try { chosen = localStorage.getItem("trueup-theme") || "system"; } catch { }
    const show = () => {
      if (chosen === "system") delete root.dataset.theme; else root.dataset.theme = chosen;
      theme.textContent = `theme: ${chosen}`;
    };
    if (!THEMES.includes(chosen)) chosen = "system";
    show();
    theme.hidden = false;
    theme.addEventListener("click", () => {
      chosen = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
      try { localStorage.setItem("trueup-theme", chosen); } catch { }
      show();
    });
  }

  const age = (seconds) => {
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
      if (seconds >= size) return `${Math.round(seconds / size)} ${unit} ago`;
    }
    return seconds < 1 ? "now" : `${Math.round(seconds)} s ago`;
  };
  const showAges = () => {
    const now = Date.now();
    for (const time of document.querySelectorAll("time[datetime]")) {
      const seconds = (now - Date.parse(time.dateTime)) / 1000;
      // A time of the future is written by the server.
      if (seconds >= 0 && time.textContent !== age(seconds)) time.textContent = age(seconds);
    }
  };
  showAges();
  setInterval(showAges, 1000);

  const live = document.getElementById("live");
  if (!live || !window.EventSource) return;
  const say = (text, lost) => {
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("lost", Boolean(lost));
  };
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("trueup", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  // The place of an element among those that can have the focus, to give it back after a block is replaced.
  const stops = (block) => [...block.querySelectorAll("a[href], button, input, select, [tabindex]")];
  const isUsed = (block) => block.contains(document.activeElement) && /^(INPUT|SELECT)$/.test(document.activeElement.tagName);
  const replace = (old, fresh) => {
    const at = old.contains(document.activeElement) ? stops(old).indexOf(document.activeElement) : -1;
    const wide = old.querySelector(".wide");
    const left = wide ? wide.scrollLeft : 0;
    old.replaceWith(fresh);
    if (at >= 0 && stops(fresh)[at]) stops(fresh)[at].focus({ preventScroll: true });
    if (left && fresh.querySelector(".wide")) fresh.querySelector(".wide").scrollLeft = left;
  };
  // Ages change all the time; they are no reason to replace a block.
  const content = (block) => block.innerHTML.replace(/>[^<]*<\/time>/g, "></time>");
  let busy = false, again = false;
  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "error" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
      const fresh = [...page.querySelectorAll("[data-live]")];
      const old = new Map([...document.querySelectorAll("[data-live]")].map((block) => [block.id, block]));
      const main = document.getElementById("content");
      for (const block of fresh) {
        const before = old.get(block.id);
        old.delete(block.id);
        if (!before) main.append(document.adoptNode(block));
        else if (!isUsed(before) && (before.className !== block.className || content(before) !== content(block))) {
          replace(before, document.adoptNode(block));
        }
      }
      for (const gone of old.values()) gone.remove();
      const header = page.querySelector("header");
      if (header) document.querySelector("header").className = header.className;
      showAges();
      say("live");
      root.dataset.refreshed = String(Number(root.dataset.refreshed || 0) + 1);
    } catch {
      say("not live: the server does not answer", true);
    } finally {
      busy = false;
      // Not more than one page per second.
      if (again) { again = false; setTimeout(refresh, 1000); }
    }
  };
  const events = new EventSource("/events");
  let seen = "";
  events.addEventListener("seen", (event) => {
    say("live");
    if (seen !== event.data) {
      seen = event.data;
      if (!document.hidden) refresh(); else again = true;
    }
  });
  events.onerror = () => say("not live: the server does not answer", true);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && again) { again = false; refresh(); } });
  window.addEventListener("pagehide", () => events.close());
})();
