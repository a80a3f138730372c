// What pages gain where scripts run: sliders, answers and checks that follow what is entered, printing. All works without.
"use strict";

function slide(input) {
  const range = document.createElement("input");
  range.type = "range";
  range.min = input.dataset.low; range.max = input.dataset.high; range.step = input.dataset.step;
  range.value = input.value || (Number(range.min) + Number(range.max)) / 2;
  range.setAttribute("aria-label", input.labels[0] ? input.labels[0].textContent : "");
  range.tabIndex = -1;
  range.addEventListener("input", () => {
    input.value = range.value;
    input.dispatchEvent(new Event("change", { bubbles: true }));
  });
  const mark = () => range.classList.toggle("unset", input.value === "");
  input.addEventListener("change", () => { if (input.value !== "") range.value = input.value; mark(); });
  mark();
  input.after(range);
}

async function fetchPage(place, options) {
  const reply = await fetch(place, { credentials: "same-origin", ...options });
  return new DOMParser().parseFromString(await reply.text(), "text/html");
}

function swap(place, fresh) {
  const held = document.activeElement, kept = held && place.contains(held) ? held : null;
  place.replaceChildren(...fresh.childNodes);
  enhance(place);
  if (!kept) return;
  const same = kept.id ? document.getElementById(kept.id) : [...place.querySelectorAll("button")].find((one) => one.value === kept.value);
  if (same) same.focus();
}

// A study as a form and as text: what was edited last leads, and the other side follows.
function takeSides(form, page, edited, wasMethod) {
  const fields = document.getElementById("studyform"), text = document.getElementById("text");
  const freshFields = page.getElementById("studyform"), freshText = page.getElementById("text");
  if (!freshFields || !freshText) return;
  if (edited === "form" && text.value !== freshText.value) text.value = freshText.value;
  if (edited === "text" || wasMethod) swap(fields, freshFields);
}

function follow(form) {
  const answered = () => document.querySelector("#result .answer");
  let asked = 0, timer = 0, edited = "", wasMethod = false;
  async function ask() {
    const number = ++asked, result = document.getElementById("result"), side = edited, method = wasMethod;
    result.classList.add("busy");
    try {
      const sent = new URLSearchParams(new FormData(form));
      if (side) sent.set("edited", side);
      const page = await fetchPage(form.action, { method: "POST", body: sent });
      const fresh = page.getElementById("result");
      if (number !== asked) return;
      if (!fresh) { if (!side) form.submit(); return; }
      swap(result, fresh);
      if (side) takeSides(form, page, side, method);
      wasMethod = false;
    } catch (error) {
      if (number === asked && !side) form.submit();
    } finally {
      if (number === asked) result.classList.remove("busy");
    }
  }
  if (form.hasAttribute("data-check")) {
    form.addEventListener("input", (event) => {
      const side = event.target.closest("[data-side]");
      if (!side) return;
      edited = side.dataset.side;
      wasMethod = wasMethod || event.target.name === "f.study.method";
      ++asked; clearTimeout(timer); timer = setTimeout(ask, 350);
    });
    form.addEventListener("submit", (event) => {
      const flag = document.createElement("input");
      flag.type = "hidden"; flag.name = "edited"; flag.value = edited;
      form.append(flag);
    });
    return;
  }
  form.addEventListener("change", (event) => {
    const tick = event.target;
    if (tick.type === "checkbox" && tick.checked && tick.name.startsWith("m.")) {
      const value = form.elements["v." + tick.name.slice(2)];
      if (value) { value.value = ""; value.dispatchEvent(new Event("change")); }
    } else if (tick.name && tick.name.startsWith("v.") && tick.value !== "") {
      const absent = form.elements["m." + tick.name.slice(2)];
      if (absent) absent.checked = false;
    }
    if (!answered()) return;
    clearTimeout(timer);
    timer = setTimeout(ask, 120);
  });
}

function enhance(root) {
  for (const button of root.querySelectorAll("[data-print]")) {
    button.hidden = false;
    button.addEventListener("click", () => window.print());
  }
}

// A run, round by round: the server says that there is something new, and the page is fetched again.
function watch(result) {
  if (!result || !result.dataset.events) return;
  const source = new EventSource(result.dataset.events);
  let busy = false, again = false;
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const fresh = (await fetchPage(location.href)).getElementById("result");
      if (fresh) {
        swap(result, fresh);
        if (!fresh.dataset.events) { source.close(); delete result.dataset.events; }
      }
    } finally {
      busy = false;
      if (again) { again = false; setTimeout(refresh, 200); }
    }
  }
  source.addEventListener("message", refresh);
}

// A table narrows while words are entered.
function narrow(form) {
  let timer = 0, asked = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const number = ++asked, place = `${location.pathname}?${new URLSearchParams(new FormData(form))}`;
      const fresh = (await fetchPage(place)).getElementById("result");
      if (number !== asked || !fresh) return;
      swap(document.getElementById("result"), fresh);
      history.replaceState(null, "", place);
    }, 200);
  });
}

// What takes long says so at once.
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || event.target.method !== "post") return;
  const button = event.submitter;
  setTimeout(() => { if (button) { button.classList.add("works"); button.setAttribute("aria-busy", "true"); } }, 150);
});
addEventListener("pageshow", () => {
  for (const one of document.querySelectorAll(".works")) { one.classList.remove("works"); one.removeAttribute("aria-busy"); }
});

document.documentElement.classList.add("scripted");
for (const input of document.querySelectorAll("input[data-low]")) slide(input);
for (const form of document.querySelectorAll("form[data-filter]")) narrow(form);
watch(document.getElementById("result"));
for (const form of document.querySelectorAll("form[data-live], form[data-check]")) follow(form);
enhance(document);
