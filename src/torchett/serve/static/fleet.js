// The stacked band of the Fleet page: rank-time by group for each day, as shares or rank-hours.
"use strict";
(() => {
  const place = document.getElementById("band");
  if (!place) return;
  let chart = null, data = null, unit = "share";
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function colour(group) {
    const probe = document.createElement("i");
    probe.className = `g-${group}`;
    place.append(probe);
    const found = getComputedStyle(probe).getPropertyValue("--c").trim();
    probe.remove();
    return found;
  }

  // Sums from the bottom up; the highest is drawn first and the lower ones over it.
  function stacked() {
    const all = Object.keys(data.bands), days = data.days.map((day) => Date.parse(day) / 1000);
    const names = all.filter((name) => unit !== "losses" || name !== "effective");
    const whole = days.map((_, i) => all.reduce((sum, name) => sum + data.bands[name][i], 0));
    const shown = names.map((name) => data.bands[name].map((value, i) =>
      unit === "hours" ? value : whole[i] ? 100 * value / whole[i] : null));
    const upto = days.map(() => 0);
    const sums = shown.map((values) => values.map((value, i) =>
      value === null ? null : (upto[i] += value)));
    return { names: names.reverse(), days, sums: sums.reverse(), shown: shown.reverse() };
  }

  function dayOf(seconds) {
    const day = new Date(seconds * 1000);
    return `${day.getUTCDate()} ${day.toLocaleString("en-US", { month: "short", timeZone: "UTC" })}`;
  }

  function draw() {
    const { names, days, sums, shown } = stacked();
    const round = (value) => value === null || value === undefined ? "–"
      : unit !== "hours" ? `${value.toFixed(value < 10 ? 2 : 1)}%` : `${Math.round(value).toLocaleString("en")} h`;
    // Without a pointer on it, the legend says what the whole time was.
    const total = Object.keys(data.bands).reduce((sum, name) => sum + data.bands[name].reduce((a, b) => a + b, 0), 0);
    const mean = names.map((name) => {
      const hours = data.bands[name].reduce((a, b) => a + b, 0);
      return unit === "hours" ? hours : total ? 100 * hours / total : null;
    });
    const axis = { stroke: style("--dim"), font: "12px sans-serif",
      grid: { stroke: style("--line"), width: 1 }, ticks: { show: false } };
    chart?.destroy();
    chart = new uPlot({
      width: place.clientWidth, height: 260,
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { y: { range: (_, lo, hi) => unit === "share" ? [0, 100] : [0, hi * 1.04 || 1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map(dayOf) }, { ...axis, size: 56,
        values: (_, ticks) => ticks.map((tick) => unit !== "hours" ? `${tick}%` : tick.toLocaleString("en")) }],
      series: [{ label: "day", value: (_, day) => day === null ? `all ${days.length}` : `${dayOf(day)} ${new Date(day * 1000).getUTCFullYear()}` }, ...names.map((name, i) => ({
        label: name === "in_loop" ? "in the loop" : name.replaceAll("_", " "), width: 0, fill: colour(name), stroke: colour(name),
        points: { show: false }, value: (_u, _v, _s, at) => round(at === null ? mean[i] : shown[i][at]),
      }))],
    }, [days, ...sums], place);
  }

  async function load() {
    const answer = await fetch(place.dataset.twin);
    if (!answer.ok) return;
    data = await answer.json();
    draw();
  }

  for (const button of document.querySelectorAll("[data-unit]")) {
    button.addEventListener("click", () => {
      unit = button.dataset.unit;
      for (const one of document.querySelectorAll("[data-unit]")) {
        one.setAttribute("aria-pressed", String(one === button));
      }
      if (data) draw();
    });
  }
  document.getElementById("show").hidden = true; // a choice is followed at once
  for (const select of document.querySelectorAll(".labels-filter select")) {
    select.addEventListener("change", () => {
      for (const one of select.form.elements) if (one.name && !one.value) one.disabled = true;
      select.form.submit();
    });
  }
  document.addEventListener("scheme", () => data && draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && draw());
  new ResizeObserver(() => chart && chart.width !== place.clientWidth &&
    chart.setSize({ width: place.clientWidth, height: 260 })).observe(place);
  setInterval(load, 60000);
  load();
})();
