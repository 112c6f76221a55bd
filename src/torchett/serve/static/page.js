// What every page can do: a colour scheme that stays, keys that lead to pages, and details that
// stay open while a live page is refreshed.
"use strict";
const root = document.documentElement;
const schemes = ["", "light", "dark"];
const saved = localStorage.getItem("scheme");
if (schemes.includes(saved) && saved) root.dataset.theme = saved;

document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme").addEventListener("click", () => {
    const next = schemes[(schemes.indexOf(root.dataset.theme || "") + 1) % schemes.length];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    localStorage.setItem("scheme", next);
    document.dispatchEvent(new Event("scheme"));
  });
});

// g j: jobs · g f: fleet · g c: compare · g a: alerts · /: the filter
const pages = { j: "/jobs", f: "/fleet", c: "/compare", a: "/alerts" };
let awaiting = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const wanted = awaiting && pages[event.key];
  awaiting = event.key === "g";
  if (wanted && document.querySelector(`nav a[href="${wanted}"]`)) location.href = wanted;
  const filter = document.querySelector("[type=search]");
  if (event.key === "/" && filter) { event.preventDefault(); filter.focus(); }
});

let open = [];
document.addEventListener("htmx:beforeSwap", () => {
  open = [...document.querySelectorAll("details[open][id]")].map((one) => one.id);
});
document.addEventListener("htmx:afterSwap", () => {
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
});
