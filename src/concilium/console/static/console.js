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

function follow(form) {
  const answered = () => document.querySelector("#result .answer");
  let asked = 0, timer = 0;
  async function ask() {
    const number = ++asked, result = document.getElementById("result");
    result.classList.add("busy");
    try {
      const reply = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)), credentials: "same-origin" });
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const fresh = page.getElementById("result");
      if (number !== asked) return;
      if (!fresh) { form.submit(); return; }
      result.replaceChildren(...fresh.childNodes);
      enhance(result);
    } catch (error) {
      if (number === asked) form.submit();
    } finally {
      if (number === asked) result.classList.remove("busy");
    }
  }
  if (form.hasAttribute("data-check")) {
    form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 400); });
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

for (const input of document.querySelectorAll("input[data-low]")) slide(input);
for (const form of document.querySelectorAll("form[data-live], form[data-check]")) follow(form);
enhance(document);
