// Behaviour of the pages beyond htmx: countdowns of sessions between two refreshes, local times, copying, keys.
"use strict";

const each = (selector, act) => document.querySelectorAll(selector).forEach(act);

function duration(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const s = ms / 1000;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  for (const [size, unit, smaller, small] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / smaller);
    return rest ? `${Math.floor(whole / size)} ${unit} ${rest} ${small}` : `${Math.floor(whole / size)} ${unit}`;
  }
  return `${whole} s`;
}

// The difference between the server's clock and this machine's, computed from the first session on the page.
let aheadMs = 0;
function readClock() {
  const meter = document.querySelector("meter[data-deadline]");
  if (meter) aheadMs = Number(meter.dataset.deadline) - Number(meter.getAttribute("value")) - Date.now();
}

// While the server is silent, sessions keep their last value. It may be silent without an error: if it hangs, if this
// machine slept, or if the page was hidden and sent no request.
const silentMs = 10_000;
let answeredAtMs = Date.now();
function runDown() {
  if (!document.getElementById("lost").hidden || Date.now() - answeredAtMs > silentMs) return;
  const nowMs = Date.now() + aheadMs;
  each("meter[data-deadline]", (meter) => { meter.value = Math.max(0, Number(meter.dataset.deadline) - nowMs); });
  each("[data-left]", (left) => { left.textContent = duration(Math.max(0, Number(left.dataset.left) - nowMs)); });
}

function localTimes() {
  const today = new Date().toDateString();
  each("time[data-at]", (time) => {
    const at = new Date(Number(time.dataset.at));
    const clock = at.toLocaleTimeString([], { hour12: false });
    time.textContent = at.toDateString() === today ? clock : `${at.toLocaleDateString()} ${clock}`;
    time.title = at.toISOString();
  });
}

function refreshed() { answeredAtMs = Date.now(); readClock(); localTimes(); }

async function copy(button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

// --- keys ---------------------------------------------------------------------------------------------

let last = "";
// The path of the console behind a proxy.
const root = document.documentElement.dataset.root;
const goes = { o: "/", g: "/groups", m: "/members", l: "/leaders", p: "/topics", f: "/search", s: "/shards" };

function step(by) {
  const links = [...document.querySelectorAll(".row-link")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const key = event.key;
  if (last === "g" && goes[key]) location.href = root + goes[key];
  else if (key === "?") document.getElementById("keys").showModal();
  else if (key === "j") step(1);
  else if (key === "k") step(-1);
  else if (key === "/") {
    const search = document.getElementById("search");
    if (!search) { location.href = `${root}/groups`; return; }
    event.preventDefault();
    search.select();
    search.focus();
  }
  last = key;
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  if (event.target.closest("#show-keys")) document.getElementById("keys").showModal();
});

// --- the connection to the server ---------------------------------------------------------------------

const lost = (is) => { document.getElementById("lost").hidden = !is; };
// A hidden page sends no requests. The stream of changes pauses by itself.
document.addEventListener("htmx:before:request", (event) => { if (document.hidden) event.preventDefault(); });
document.addEventListener("htmx:error", () => lost(true));
// Every page of the console has a policy. An error without one is from a proxy that cannot reach the server.
document.addEventListener("htmx:before:response", (event) => {
  const { status, headers } = event.detail.ctx.response;
  if (status < 500 || headers.has("content-security-policy")) return;
  event.preventDefault();
  lost(true);
});
document.addEventListener("htmx:after:swap", () => { lost(false); refreshed(); });
refreshed();
setInterval(runDown, 250);
