// Rank × time on a canvas: tiles of cells from the server, drawn at the level that fits the zoom.
"use strict";
(() => {
  const place = document.getElementById("lanes");
  if (!place) return;
  const canvas = document.getElementById("lanes-canvas"), context = canvas.getContext("2d");
  const hover = document.getElementById("lanes-hover");
  const base = `/timeline/${place.dataset.key.split("/").map(encodeURIComponent).join("/")}`;
  const GUTTER = 56, AXIS = 24, MOST_TILES = 300;
  const tiles = new Map();
  let meta = null, view = null, colours = null, wanted = 0, width = 0, height = 0, queued = false;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clamp = (x, lo, hi) => Math.min(Math.max(x, lo), hi);
  const plotWidth = () => width - GUTTER, plotHeight = () => height - AXIS;

  function palette() {
    const probe = document.createElement("i");
    place.append(probe);
    colours = new Uint32Array(256);
    meta.colours.forEach((one, i) => {
      probe.className = one.css;
      const [r, g, b] = getComputedStyle(probe).backgroundColor.match(/[\d.]+/g).map(Number);
      colours[i + 1] = 0xff000000 | (b << 16) | (g << 8) | r;
    });
    probe.remove();
  }

  function resize() {
    const ratio = devicePixelRatio || 1;
    width = place.clientWidth;
    height = AXIS + clamp(meta.ranks * 18, 60, Math.max(320, innerHeight * 0.62));
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    redraw();
  }

  function level() {
    const shown = (view.t1 - view.t0) / meta.seconds;
    return clamp(Math.ceil(Math.log2(plotWidth() / (meta.cells * shown))), 0, meta.most_level);
  }

  function tile(z, x, y, fetching) {
    const name = `${z}/${x}/${y}`;
    let one = tiles.get(name);
    if (one) { tiles.delete(name); tiles.set(name, one); return one; }
    if (!fetching) return null;
    one = { picture: null, name };
    tiles.set(name, one);
    while (tiles.size > MOST_TILES) tiles.delete(tiles.keys().next().value);
    load(one, z, x, y, meta.version);
    return one;
  }

  async function load(one, z, x, y, version) {
    wanted += 1;
    try {
      const answer = await fetch(`${base}/tile?z=${z}&x=${x}&y=${y}&v=${encodeURIComponent(version)}`);
      if (!answer.ok) return;
      const cells = new Uint8Array(await answer.arrayBuffer());
      const lanes = cells.length / meta.cells;
      if (!lanes) return;
      const picture = document.createElement("canvas");
      picture.width = meta.cells;
      picture.height = lanes;
      const image = new ImageData(meta.cells, lanes), pixels = new Uint32Array(image.data.buffer);
      for (let i = 0; i < cells.length; i++) pixels[i] = colours[cells[i]];
      picture.getContext("2d").putImageData(image, 0, 0);
      one.picture = picture;
      one.cells = cells;
    } finally {
      wanted -= 1;
      redraw();
    }
  }

  const xOf = (t) => GUTTER + (t - view.t0) / (view.t1 - view.t0) * plotWidth();
  const yOf = (r) => (r - view.r0) / (view.r1 - view.r0) * plotHeight();
  const tOf = (x) => view.t0 + (x - GUTTER) / plotWidth() * (view.t1 - view.t0);
  const rOf = (y) => view.r0 + y / plotHeight() * (view.r1 - view.r0);

  function redraw() {
    if (queued || !view) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; draw(); });
  }

  function draw() {
    const began = performance.now(), z = level();
    context.clearRect(0, 0, width, height);
    context.fillStyle = css("--track");
    context.fillRect(GUTTER, 0, plotWidth(), plotHeight());
    context.save();
    context.beginPath();
    context.rect(GUTTER, 0, plotWidth(), plotHeight());
    context.clip();
    context.imageSmoothingEnabled = plotHeight() / (view.r1 - view.r0) < 1;
    const whole = drawLevel(z);
    context.restore();
    attempts();
    axis();
    ranks();
    place.dataset.frame = (performance.now() - began).toFixed(2);
    if (whole && !wanted && !place.dataset.painted) place.dataset.painted = performance.now().toFixed(0);
    place.dataset.whole = String(whole && !wanted);
  }

  // Every tile of this level that is in sight; where one is still to come, what a coarser one has.
  function drawLevel(z) {
    const size = meta.seconds / 2 ** z;
    let whole = true;
    for (let y = Math.floor(view.r0 / meta.lanes); y * meta.lanes < view.r1; y++) {
      for (let x = Math.max(0, Math.floor(view.t0 / size)); x * size < view.t1 && x < 2 ** z; x++) {
        const one = tile(z, x, y, true);
        const box = [x * size, (x + 1) * size, y * meta.lanes];
        if (one.picture) put(one.picture, 0, meta.cells, ...box);
        else { whole = false; coarser(z, x, y, box); }
      }
    }
    return whole;
  }

  function coarser(z, x, y, box) {
    for (let up = 1; up <= z; up++) {
      const one = tile(z - up, x >> up, y, false);
      if (!one?.picture) continue;
      const part = meta.cells / 2 ** up;
      put(one.picture, (x - ((x >> up) << up)) * part, part, ...box);
      return;
    }
  }

  function put(picture, from, count, t0, t1, r0) {
    const x = xOf(t0), y = yOf(r0);
    context.drawImage(picture, from, 0, Math.max(count, 1e-3), picture.height,
      x, y, xOf(t1) - x, yOf(r0 + picture.height) - y);
  }

  function attempts() {
    context.fillStyle = css("--ink");
    for (const one of meta.attempts.slice(1)) {
      const x = xOf(one.begin_s);
      if (x > GUTTER && x < width) context.fillRect(Math.round(x), 0, 1, plotHeight() + 5);
    }
  }

  function axis() {
    const shown = view.t1 - view.t0, steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
      3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800];
    let step = steps.find((s) => shown / s <= plotWidth() / 90);
    if (step === undefined) step = 604800;
    if (shown / step > 0 && shown < 9) step = 10 ** Math.ceil(Math.log10(shown / (plotWidth() / 90)));
    context.fillStyle = css("--dim");
    context.font = "12px sans-serif";
    context.textBaseline = "alphabetic";
    context.textAlign = "center";
    for (let t = Math.ceil(view.t0 / step) * step; t <= view.t1; t += step) {
      const x = xOf(t);
      context.fillRect(x, plotHeight(), 1, 5);
      if (x < width - 20) context.fillText(clock(t, step), Math.max(x, GUTTER + 8), height - 5);
    }
  }

  function clock(t, step) {
    if (step >= 86400) return `${+(t / 86400).toFixed(1)} d`;
    if (step >= 3600) return `${+(t / 3600).toFixed(1)} h`;
    if (step >= 60) return `${+(t / 60).toFixed(1)} min`;
    return step >= 1 ? `${+t.toFixed(0)} s` : `${t.toFixed(Math.min(9, Math.ceil(-Math.log10(step))))} s`;
  }

  function ranks() {
    context.font = "12px sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    const high = plotHeight() / (view.r1 - view.r0);
    const every = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find((n) => n * high >= 15) || 1024;
    context.fillStyle = css("--dim");
    for (let r = Math.ceil(view.r0 / every) * every; r < view.r1; r += every) {
      if (meta.marks.some((one) => Math.abs(yOf(one.rank) - yOf(r)) < 12 && one.rank !== r)) continue;
      const y = yOf(r + 0.5);
      if (y > 4 && y < plotHeight()) context.fillText(String(r), GUTTER - 14, Math.max(y, 7));
    }
    for (const one of meta.marks) {
      const y = yOf(one.rank + 0.5), half = Math.max(high / 2, 1.5);
      if (y < 0 || y > plotHeight()) continue;
      context.fillStyle = css(one.what === "delays" ? "--bad" : "--ink");
      context.fillText(String(one.rank), GUTTER - 14, clamp(y, 7, plotHeight() - 6));
      context.beginPath();
      context.moveTo(GUTTER - 11, y - 5);
      context.lineTo(GUTTER - 2, y);
      context.lineTo(GUTTER - 11, y + 5);
      context.fill();
      context.strokeStyle = context.fillStyle;
      context.lineWidth = one.what === "delays" ? 1.5 : 1;
      context.strokeRect(GUTTER + 0.5, y - half, plotWidth() - 1, 2 * half);
    }
  }

  // Moving ------------------------------------------------------------------------------------

  function show(t0, t1, r0, r1) {
    const least = Math.min(1e-4, meta.seconds), wide = clamp(t1 - t0, least, meta.seconds);
    const high = clamp(r1 - r0, Math.min(2, meta.ranks), meta.ranks);
    const t = clamp(t0, 0, meta.seconds - wide), r = clamp(r0, 0, meta.ranks - high);
    view = { t0: t, t1: t + wide, r0: r, r1: r + high };
    remember();
    redraw();
  }

  let remembering = 0;
  function remember() {
    clearTimeout(remembering);
    remembering = setTimeout(() => {
      const all = view.t0 === 0 && view.t1 >= meta.seconds && view.r0 === 0 && view.r1 >= meta.ranks;
      const said = all ? "" : `?t0=${view.t0.toFixed(4)}&t1=${view.t1.toFixed(4)}&r0=${view.r0.toFixed(2)}&r1=${view.r1.toFixed(2)}`;
      history.replaceState(null, "", `${base}${said}`);
    }, 300);
  }

  function zoom(factor, x = GUTTER + plotWidth() / 2) {
    const t = tOf(x);
    show(t - (t - view.t0) * factor, t + (view.t1 - t) * factor, view.r0, view.r1);
  }

  function zoomRanks(factor, y = plotHeight() / 2) {
    const r = rOf(y);
    show(view.t0, view.t1, r - (r - view.r0) * factor, r + (view.r1 - r) * factor);
  }

  const shift = (t, r) => show(view.t0 + t, view.t1 + t, view.r0 + r, view.r1 + r);
  const all = () => show(0, meta.seconds, 0, meta.ranks);

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const by = event.deltaY || event.deltaX, factor = Math.exp(clamp(by, -240, 240) / 400);
    if (event.shiftKey) zoomRanks(factor, event.offsetY); else zoom(factor, event.offsetX);
  }, { passive: false });

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, view: { ...view } };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) { ask(event); return; }
    const t = (drag.x - event.offsetX) / plotWidth() * (drag.view.t1 - drag.view.t0);
    const r = (drag.y - event.offsetY) / plotHeight() * (drag.view.r1 - drag.view.r0);
    show(drag.view.t0 + t, drag.view.t1 + t, drag.view.r0 + r, drag.view.r1 + r);
  });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { drag = null; hover.hidden = true; });
  canvas.addEventListener("keydown", (event) => {
    const t = (view.t1 - view.t0) / 5, r = (view.r1 - view.r0) / 5;
    const acts = { ArrowLeft: () => shift(-t, 0), ArrowRight: () => shift(t, 0),
      ArrowUp: () => shift(0, -r), ArrowDown: () => shift(0, r), "+": () => zoom(0.6),
      "=": () => zoom(0.6), "-": () => zoom(1.7), "0": all };
    if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    acts[event.key]();
  });
  for (const button of document.querySelectorAll(".lanes-tools button")) {
    button.addEventListener("click", () => {
      const { do: what, rank } = button.dataset;
      if (rank !== undefined) show(view.t0, view.t1, Number(rank) - 8, Number(rank) + 8);
      else ({ in: () => zoom(0.5), out: () => zoom(2), all })[what]();
    });
  }

  // What lies under the pointer ---------------------------------------------------------------

  let asked = 0, waiting = 0;
  function ask(event) {
    const { offsetX: x, offsetY: y } = event;
    if (x < GUTTER || y > plotHeight()) { hover.hidden = true; return; }
    clearTimeout(waiting);
    waiting = setTimeout(() => tell(x, y), 40);
  }

  async function tell(x, y) {
    const mine = ++asked, rank = Math.floor(rOf(y));
    const answer = await fetch(`${base}/at.json?rank=${rank}&t=${tOf(x).toFixed(9)}`);
    const found = answer.ok ? await answer.json() : null;
    if (mine !== asked) return;
    hover.hidden = !found;
    if (!found) return;
    const steps = found.step === null ? "" : found.steps > 1
      ? `, steps ${found.step}–${found.step + found.steps - 1}` : `, step ${found.step}`;
    const where = found.group === "recover" ? " (recovery)" : "";
    hover.textContent = `rank ${rank}, attempt ${found.attempt}: ${found.account}${where}${steps}, ${lasting(found.seconds)}`;
    hover.style.left = `${Math.min(x + 14, width - hover.offsetWidth - 4)}px`;
    hover.style.top = `${Math.max(y - 34, 2)}px`;
  }

  function lasting(s) {
    if (s < 1) return `${+(s * 1000).toPrecision(3)} ms`;
    if (s < 120) return `${+s.toPrecision(3)} s`;
    return s < 7200 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(1)} h`;
  }

  // Beginning, and following a live job -------------------------------------------------------

  async function refresh() {
    const answer = await fetch(`${base}.json`);
    if (!answer.ok) return;
    const found = await answer.json();
    const old = meta;
    meta = found;
    if (old && old.version === meta.version) return;
    tiles.clear();
    palette();
    if (!old) {
      const said = new URLSearchParams(location.search), number = (name, usual) =>
        said.has(name) && isFinite(said.get(name)) ? Number(said.get(name)) : usual;
      view = { t0: 0, t1: meta.seconds, r0: 0, r1: meta.ranks };
      resize();
      show(number("t0", 0), number("t1", meta.seconds), number("r0", 0), number("r1", meta.ranks));
      new ResizeObserver(() => place.clientWidth !== width && resize()).observe(place);
    } else if (view.t1 >= old.seconds) {
      show(view.t0 === 0 ? 0 : view.t0 + meta.seconds - old.seconds, meta.seconds, view.r0, view.r1);
    } else redraw();
  }

  document.addEventListener("scheme", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  refresh().then(() => setInterval(() => meta?.live && refresh(), 3000));
})();
