"use strict";
(() => {
  const movie = JSON.parse(document.getElementById("movie").textContent);
  const last = movie.steps.length - 1;
  const byId = (id) => document.getElementById(id);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const SVG = "http://www.w3.org/2000/svg";
  const MISSING = -32768, EDGE = 32000;
  const mix = (a, b, f) => a + (b - a) * f;
  const known = (v) => v !== null && v !== undefined;

  const shape = (parent, name, attributes = {}, text) => {
    const made = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };
  const unpacked = (text) => new Int16Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

  // --- time: where the movie is (between two steps while it moves), and who moves it ------------------------------
  let wide = 0; // for which everything is laid out; a page that is not shown yet has no width
  let time = last, goal = last, playing = false, before = 0, speed = 1, shown = -1, waiting = 0;
  const rate = () => (speed * (last + 1)) / Math.min(26, Math.max(6, 0.42 * (last + 1))); // steps per second
  const panels = []; // each draws (i, j, f): from step i on the way to j, a share f of it

  const draw = () => {
    const at = calm.matches ? Math.round(time) : time;
    const i = Math.min(last, Math.floor(at)), j = Math.min(last, i + 1);
    const near = Math.round(at), fresh = near !== shown;
    shown = near;
    if (fresh) tell(near);
    panels.forEach((panel) => panel(i, j, at - i, fresh, near));
  };
  const later = () => { if (!waiting) waiting = requestAnimationFrame(tick); };
  const tick = (now) => {
    waiting = 0;
    if (wide < 120) return;
    const passed = before ? Math.min(0.1, (now - before) / 1000) : 0;
    before = now;
    if (playing) {
      time = Math.min(last, time + passed * rate());
      goal = time;
      if (!calm.matches) spin += 0.16 * passed;
      if (time >= last) play(false);
    } else if (time !== goal) {
      const reach = passed * Math.max(4, 5 * Math.abs(goal - time));
      time = calm.matches || Math.abs(goal - time) <= reach ? goal : time + Math.sign(goal - time) * reach;
    }
    draw();
    if (playing || time !== goal) later();
    else before = 0;
  };
  const seek = (step) => {
    play(false);
    goal = Math.max(0, Math.min(last, step));
    later();
  };
  const play = (wanted) => {
    if (wanted && goal >= last) time = goal = 0;
    playing = wanted && last > 0;
    if (!playing) goal = Math.round(time);
    byId("play").setAttribute("aria-pressed", playing);
    byId("play").setAttribute("aria-label", playing ? "pause" : "play");
    later();
  };

  // --- the bar ------------------------------------------------------------------------------------------------------
  const slider = byId("slider"), marks = ["evenness", "trend", "chance"];
  const tell = (at) => {
    const law = movie.laws[at];
    slider.value = at;
    slider.style.setProperty("--done", `${last ? (100 * at) / last : 100}%`);
    slider.setAttribute("aria-valuetext", `${movie.unit} ${movie.steps[at]}. ${law.words}`);
    byId("now").textContent = movie.steps[at];
    byId("words").textContent = law.words;
    byId("tile-holds").querySelector(".value").textContent = law.answer;
    byId("tile-holds").classList.toggle("yes-card", law.holds === true);
    [...marks, "rho"].forEach((name, k) => {
      const value = byId(`tile-${name}`).querySelector(".value");
      value.textContent = law.numbers[k];
      if (!known(law.asked[k])) return;
      const mark = document.createElement("span");
      mark.className = law.asked[k] ? "mark yes" : "mark no";
      mark.textContent = law.asked[k] ? "✓" : "✗";
      mark.setAttribute("aria-label", law.asked[k] ? "as asked for" : "not as asked for");
      value.append(mark);
    });
    if (byId("tile-accuracy")) byId("tile-accuracy").querySelector(".value").textContent = law.accuracy[0] || "–";
    if (byId("test-accuracy")) byId("test-accuracy").textContent = law.accuracy[1] || "–";
  };
  // Which steps are named where each has so much room: every, every second, fifth, tenth …, and the last.
  const named = (room, widest) => {
    const apart = Math.ceil(widest / room);
    const stride = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((n) => n >= apart) || apart;
    return movie.steps.map((_, k) => k).filter((k) => k === last || (k % stride === 0 && last - k >= apart));
  };
  // Below the slider a dot per step, filled where the law holds, at the places where the slider stops.
  const strip = (width) => {
    const host = byId("strip"), thumb = 18;
    host.replaceChildren();
    const x = (k) => thumb / 2 + (last ? (k / last) * (width - thumb) : 0);
    const radius = Math.min(3.2, Math.max(1.2, (0.4 * (width - thumb)) / Math.max(1, last)));
    movie.laws.forEach((law, k) => {
      const filled = law.holds === true;
      shape(host, "circle", { cx: x(k), cy: 5, r: radius, fill: filled ? color("train") : "#fff", stroke: filled ? color("train") : color("pale") });
    });
    const widest = Math.max(...movie.steps.map((step) => 7 * step.length)) + 8;
    named((width - thumb) / Math.max(1, last), widest).forEach((k) => {
      const half = 3.5 * movie.steps[k].length;
      const middle = Math.min(width - half, Math.max(half, x(k)));
      shape(host, "text", { x: middle, y: 24, "text-anchor": "middle" }, movie.steps[k]);
    });
  };

  // --- charts -------------------------------------------------------------------------------------------------------
  const first = Math.min(...movie.places), end = Math.max(...movie.places);
  const chart = (id, axis, { log = false, height = 330, padding = 0.35, top = 12 } = {}) => {
    const host = byId(id), width = host.clientWidth;
    if (!width) return null;
    host.replaceChildren();
    const svg = shape(host, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": host.dataset.label });
    const slot = (width - 60) / (end - first + 2 * padding);
    const long = Math.max(...movie.sites.map((name) => 6.6 * name.length));
    const lean = long > slot - 6;
    const names = lean && slot < 34 && movie.sites.length > 12 ? movie.numbers : movie.sites;
    const flat = names === movie.numbers || !lean;
    const written = Math.max(...axis.ticks.map(([, text]) => 7.2 * text.length));
    const box = { left: Math.max(46, 12 + written), right: width - 12, top, bottom: height - (flat ? 30 : 22 + Math.min(78, 0.66 * long)) };
    if (!flat) { // a name that leans begins left of its point: the first ones need room
      const need = names.map((name, k) => {
        const share = (movie.places[k] - first + padding) / (end - first + 2 * padding || 1);
        return (0.78 * 6.6 * name.length + 4 - box.right * share) / (1 - share || 1);
      });
      box.left = Math.min(0.3 * width, Math.max(box.left, ...need));
    }
    const to = log ? Math.log : (v) => v;
    const [low, high] = [to(axis.low), to(axis.high)];
    const x = (place) => mix(box.left, box.right, (place - first + padding) / (end - first + 2 * padding || 1));
    const y = (value) => mix(box.bottom, box.top, Math.min(1.02, Math.max(-0.02, (to(value) - low) / (high - low || 1))));
    axis.ticks.forEach(([value, text]) => {
      shape(svg, "line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) });
      shape(svg, "text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, text);
    });
    let free = -Infinity;
    names.forEach((name, k) => {
      const at = x(movie.places[k]), need = flat ? 6.6 * name.length + 6 : 15;
      if (at - free < need && k) return;
      free = at;
      const turn = flat ? {} : { transform: `rotate(-40 ${at} ${box.bottom + 14})` };
      shape(svg, "text", { x: at, y: box.bottom + 18, "text-anchor": flat ? "middle" : "end", ...turn }, name);
    });
    return { svg, x, y, box, width, height };
  };
  const between = (a, b, f, log) => {
    if (!known(a) || !known(b)) return f < 0.5 ? a : b;
    return log && a > 0 && b > 0 ? Math.exp(mix(Math.log(a), Math.log(b), f)) : mix(a, b, f);
  };
  const drawable = (v, log) => known(v) && (!log || v > 0);
  const path = (c, values, log, keep = () => true) => {
    let pen = "M";
    return values.map((v, k) => {
      if (!keep(k)) return "";
      if (!drawable(v, log)) { pen = "M"; return ""; }
      const to = `${pen}${c.x(movie.places[k]).toFixed(1)} ${c.y(v).toFixed(1)}`;
      pen = "L";
      return to;
    }).join("");
  };

  // Values along depth at one step: a curve with its points; of D also those of all steps before, and the law's line.
  const curves = (id, { values, test, axis, points, words, log }) => {
    let c = null, parts = {};
    const lay = () => {
      if (!axis || !(c = chart(id, axis, { log, height: log ? 360 : 270 }))) return;
      parts = { ghosts: [], dots: [], tests: [], labels: [] };
      if (log) {
        const stride = Math.ceil((last + 1) / 60);
        for (let k = 0; k <= last; k += stride) parts.ghosts.push([k, shape(c.svg, "path", { class: "ghost", d: path(c, values[k], log) })]);
        parts.line = shape(c.svg, "line", { class: "law-line" });
      }
      if (test) parts.test = shape(c.svg, "path", { class: "curve test" });
      parts.curve = shape(c.svg, "path", { class: "curve" });
      movie.places.forEach((place, k) => {
        if (test) parts.tests.push(shape(c.svg, "circle", { class: "point test", r: 3, cx: c.x(place) }));
        const dot = shape(c.svg, "circle", { class: "point", r: 5, cx: c.x(place) });
        shape(dot, "title");
        parts.dots.push(dot);
      });
      if (log) parts.labels = [0, 1].map(() => shape(c.svg, "text", { class: "value", "text-anchor": "middle" }));
    };
    panels.push((i, j, f, fresh, near) => {
      if (!c) return;
      const now = values[i].map((v, k) => between(v, values[j][k], f, log));
      parts.curve.setAttribute("d", path(c, now, log));
      parts.dots.forEach((dot, k) => {
        dot.style.display = drawable(now[k], log) ? "" : "none";
        if (drawable(now[k], log)) dot.setAttribute("cy", c.y(now[k]));
        if (!fresh) return;
        dot.classList.toggle("aside", !!points && !points[near][k]);
        dot.firstChild.textContent = `${movie.sites[k]}: ${words ? words[near][k] : `${(100 * (values[near][k] || 0)).toFixed(1)}%`}`;
      });
      if (test) {
        const there = test[i].map((v, k) => between(v, test[j][k], f, log));
        parts.test.setAttribute("d", path(c, there, log));
        parts.tests.forEach((dot, k) => {
          dot.style.display = drawable(there[k], log) ? "" : "none";
          if (drawable(there[k], log)) dot.setAttribute("cy", c.y(there[k]));
        });
      }
      if (!log) return;
      parts.ghosts.forEach(([k, ghost]) => (ghost.style.display = k < i + f ? "" : "none"));
      const a = movie.laws[i].line || movie.laws[j].line, b = movie.laws[j].line || a;
      parts.line.style.display = a ? "" : "none";
      if (a) {
        const at = [0, 1, 2, 3].map((k) => (k % 2 ? between(a[k], b[k], f, true) : mix(a[k], b[k], f)));
        parts.line.setAttribute("x1", c.x(at[0]));
        parts.line.setAttribute("y1", c.y(at[1]));
        parts.line.setAttribute("x2", c.x(at[2]));
        parts.line.setAttribute("y2", c.y(at[3]));
      }
      const inside = now.map((v, k) => (drawable(v, log) && points[near][k] ? k : -1)).filter((k) => k >= 0);
      parts.labels.forEach((label, e) => {
        const k = inside[e ? inside.length - 1 : 0];
        label.style.display = known(k) && (e === 0 || inside.length > 1) && words[near][k] !== "–" ? "" : "none";
        if (!known(k)) return;
        label.textContent = words[near][k];
        label.setAttribute("x", Math.min(c.box.right - 16, Math.max(c.box.left + 18, c.x(movie.places[k]))));
        label.setAttribute("y", e && c.y(now[k]) > c.box.top + 26 ? c.y(now[k]) - 12 : c.y(now[k]) + 22);
      });
    });
    return lay;
  };

  const bars = (id, { values, axis, even }) => {
    let c = null, parts = [], cuts = [], none = null, level = null;
    const lay = () => {
      if (!(c = chart(id, axis, { height: 270, padding: 0.6, top: 26 }))) return;
      const width = Math.min(46, 0.66 * (c.x(first + 1) - c.x(first)));
      parts = movie.places.map((place) => {
        const bar = shape(c.svg, "rect", { x: c.x(place) - width / 2, width, rx: 2 });
        shape(bar, "title");
        return bar;
      });
      level = shape(c.svg, "line", { class: "even", x1: c.box.left, x2: c.box.right, y1: c.y(even), y2: c.y(even) });
      cuts = movie.places.map((place) => ({ // a bar that goes on beyond the axis has an arrow and its number
        arrow: shape(c.svg, "path", { class: "cut" }),
        text: shape(c.svg, "text", { class: "cut", x: c.x(place), "text-anchor": "middle" }),
        room: c.x(first + 1) - c.x(first), at: c.x(place),
      }));
      none = shape(c.svg, "text", { class: "none", x: (c.box.left + c.box.right) / 2, y: (c.box.top + c.box.bottom) / 2, "text-anchor": "middle" }, "no drop to share at this step");
    };
    panels.push((i, j, f, fresh, near) => {
      if (!c) return;
      none.style.display = values[near].some(known) ? "none" : "";
      level.style.display = values[near].some(known) ? "" : "none";
      parts.forEach((bar, k) => {
        const v = between(values[i][k], values[j][k], f);
        const over = known(v) && v > axis.high, under = known(v) && v < axis.low;
        const { arrow, text, room, at } = cuts[k];
        bar.style.display = known(v) ? "" : "none";
        arrow.style.display = over || under ? "" : "none";
        text.style.display = (over || under) && room >= 34 ? "" : "none";
        if (!known(v)) return;
        if (over || under) {
          const tip = over ? c.box.top - 8 : c.box.bottom + 6, away = over ? 6 : -6;
          arrow.setAttribute("d", `M${at - 5} ${tip + away}h10l-5 ${-away}z`);
          text.setAttribute("y", over ? tip - 4 : c.y(0) - 5);
          text.textContent = `${(100 * v).toFixed(0).replace("-", "−")}%`;
        }
        bar.setAttribute("y", Math.min(c.y(0), c.y(v)));
        bar.setAttribute("height", Math.abs(c.y(v) - c.y(0)));
        bar.setAttribute("class", v < 0 ? "rise" : v < 0.25 * even ? "idle" : "work");
        if (fresh) bar.firstChild.textContent = `${movie.sites[k]}: ${(100 * v).toFixed(1)}%`;
      });
    });
    return lay;
  };

  // --- canvases -----------------------------------------------------------------------------------------------------
  const hidden = new Set(); // canvases out of sight are not drawn while things move
  const unseen = (canvas) => (playing || time !== goal) && hidden.has(canvas);
  const sight = new IntersectionObserver((entries) => {
    entries.forEach(({ target, isIntersecting }) => (isIntersecting ? hidden.delete(target) : hidden.add(target)));
    shown = -1;
    later();
  }, { rootMargin: "80px" });
  const sized = (canvas, height) => {
    sight.observe(canvas);
    const width = canvas.clientWidth, dense = Math.min(2, devicePixelRatio || 1);
    const tall = height || canvas.clientHeight;
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(tall * dense);
    if (height) canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    return { pen, width, height: tall, canvas, dense };
  };

  const symbol = () => { // D_reg has its index below it
    const [name, index] = movie.symbol.split("_");
    const below = document.createElement("sub");
    below.textContent = index || "";
    return index ? [name, below] : [name];
  };

  const planes = () => {
    const { counts, data, labels, same, words } = movie.planes;
    const values = unpacked(data), boxes = [...document.querySelectorAll(".planes canvas")];
    const captions = [...document.querySelectorAll(".planes .num")];
    const starts = counts.map((n, s) => counts.slice(0, s).reduce((sum, m) => sum + m, 0) * 2 * (last + 1));
    let sizes = [];
    panels.push((i, j, f, fresh, near) => {
      if (!same) { i = j = near; f = 0; }
      const of = labels[labels.length > 1 ? near : 0];
      sizes.forEach(({ pen, width, canvas }, s) => {
        if (unseen(canvas)) return;
        const n = counts[s], a = starts[s] + 2 * n * i, b = starts[s] + 2 * n * j;
        const groups = new Map();
        for (let k = 0; k < n; k += 1) {
          const u = values[a + 2 * k], v = values[b + 2 * k];
          if (u === MISSING && v === MISSING) continue;
          const from = u === MISSING ? b : a, to = v === MISSING ? a : b;
          const x = mix(values[from + 2 * k], values[to + 2 * k], f) / EDGE, y = mix(values[from + 2 * k + 1], values[to + 2 * k + 1], f) / EDGE;
          const hue = movie.colors[(of[k] || 0) % movie.colors.length];
          if (!groups.has(hue)) groups.set(hue, []);
          groups.get(hue).push((width / 2) * (1 + 0.96 * x), (width / 2) * (1 - 0.96 * y));
        }
        pen.clearRect(0, 0, width, width);
        pen.globalAlpha = 0.74;
        const radius = Math.max(1.5, width / 62);
        groups.forEach((places, hue) => {
          pen.fillStyle = hue;
          pen.beginPath();
          for (let k = 0; k < places.length; k += 2) {
            pen.moveTo(places[k] + radius, places[k + 1]);
            pen.arc(places[k], places[k + 1], radius, 0, 2 * Math.PI);
          }
          pen.fill();
        });
        if (fresh && captions[s]) captions[s].replaceChildren(...(words[near][s] ? [...symbol(), ` = ${words[near][s]}`] : []));
      });
    });
    return () => (sizes = boxes.map((canvas) => sized(canvas)));
  };

  // Three classes in three dimensions: samples, class means, classifier rows, and the corners that they tend to.
  let spin = -0.3, tilt = 0.7;
  const collapse = () => {
    const { labels, classes, names, data, far } = movie.view;
    const values = unpacked(data), n = labels.length, block = 3 * (n + 6), canvas = byId("collapse");
    const hue = classes.map((k) => movie.colors[k % movie.colors.length]);
    const corners = [[0, 1, 0], [-Math.sqrt(0.75), -0.5, 0], [Math.sqrt(0.75), -0.5, 0]];
    let size = null;
    const lay = () => (size = sized(canvas, canvas.clientWidth < 420 ? 310 : 330));
    panels.push((i, j, f) => {
      if (!size || unseen(canvas)) return;
      const { pen, width, height } = size, unit = 0.42 * Math.min(0.86 * width, height);
      const [c, s, ct, st] = [Math.cos(spin), Math.sin(spin), Math.cos(tilt), Math.sin(tilt)];
      const seen = ([x, y, z]) => {
        const [u, v] = [c * x - s * y, s * x + c * y];
        const [up, depth] = [ct * v + st * z, st * v - ct * z]; // depth: away from the eye
        const scale = 1 / (1 + 0.13 * depth);
        return { x: width / 2 + unit * scale * u, y: height / 2 + 0.11 * unit - unit * scale * up, depth, scale };
      };
      const place = (k) => {
        const a = block * i + 3 * k, b = block * j + 3 * k;
        const from = values[a] === MISSING ? b : a, to = values[b] === MISSING ? a : b;
        if (values[from] === MISSING) return null;
        return [0, 1, 2].map((e) => (far * mix(values[from + e], values[to + e], f)) / EDGE);
      };
      pen.clearRect(0, 0, width, height);
      const origin = seen([0, 0, 0]), ends = corners.map(seen), things = [];
      pen.beginPath();
      ends.forEach((p, k) => (k ? pen.lineTo(p.x, p.y) : pen.moveTo(p.x, p.y)));
      pen.closePath();
      pen.fillStyle = "rgba(31, 78, 140, .05)";
      pen.fill();
      pen.strokeStyle = color("pale");
      pen.lineWidth = 1.2;
      pen.stroke();
      pen.setLineDash([3, 4]);
      ends.forEach((p) => { pen.beginPath(); pen.moveTo(origin.x, origin.y); pen.lineTo(p.x, p.y); pen.stroke(); });
      pen.setLineDash([]);
      const ball = (p, radius, fill, alpha, edge) => {
        pen.globalAlpha = alpha;
        pen.beginPath();
        pen.arc(p.x, p.y, radius * p.scale, 0, 2 * Math.PI);
        pen.fillStyle = fill;
        pen.fill();
        if (edge) { pen.lineWidth = 1.6; pen.strokeStyle = edge; pen.stroke(); }
        pen.globalAlpha = 1;
      };
      const stick = (p, wide, ink) => {
        pen.beginPath();
        pen.moveTo(origin.x, origin.y);
        pen.lineTo(p.x, p.y);
        pen.lineWidth = wide;
        pen.strokeStyle = ink;
        pen.stroke();
      };
      ends.forEach((p) => things.push([p.depth + 0.01, () => ball(p, 11, "#fff", 1, "#5a6876")]));
      for (let k = 0; k < n; k += 1) {
        const at = place(k);
        if (!at) continue;
        const p = seen(at);
        things.push([p.depth, () => ball(p, 2.9, hue[labels[k]], 0.5)]);
      }
      for (let k = 0; k < 3; k += 1) {
        const mean = place(n + k), row = place(n + 3 + k);
        if (mean) {
          const p = seen(mean);
          things.push([p.depth - 0.02, () => { stick(p, 2.4, hue[k]); ball(p, 7.5, hue[k], 1, "#fff"); }]);
        }
        if (row) {
          const p = seen(row), r = 6.5 * p.scale;
          things.push([p.depth - 0.01, () => {
            stick(p, 1.4, "#1c2733");
            pen.beginPath();
            pen.moveTo(p.x, p.y - r); pen.lineTo(p.x + r, p.y); pen.lineTo(p.x, p.y + r); pen.lineTo(p.x - r, p.y);
            pen.closePath();
            pen.fillStyle = "#fff";
            pen.fill();
            pen.lineWidth = 2.4;
            pen.strokeStyle = hue[k];
            pen.stroke();
          }]);
        }
      }
      things.sort((a, b) => b[0] - a[0]).forEach(([, paint]) => paint());
      pen.font = `600 13px ${color("font")}`;
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.lineJoin = "round";
      names.forEach((name, k) => { // a little outside of its corner, and inside the picture
        const out = seen(corners[k].map((e) => 1.4 * e)), half = pen.measureText(name).width / 2 + 4;
        const x = Math.min(width - half, Math.max(half, out.x)), y = Math.min(height - 9, Math.max(9, out.y));
        pen.lineWidth = 4;
        pen.strokeStyle = "rgba(255, 255, 255, .85)";
        pen.strokeText(name, x, y);
        pen.fillStyle = hue[k];
        pen.fillText(name, x, y);
      });
    });
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = [event.clientX, event.clientY]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!held) return;
      spin += 0.011 * (event.clientX - held[0]);
      tilt = Math.min(1.5, Math.max(0, tilt - 0.011 * (event.clientY - held[1])));
      held = [event.clientX, event.clientY];
      later();
    });
    ["pointerup", "pointercancel"].forEach((name) => canvas.addEventListener(name, () => (held = null)));
    return lay;
  };

  // Every site (upwards) at every step (to the right); the frame shows where the movie is.
  const heat = () => {
    const canvas = byId("heat"), { values, points } = movie.curve;
    const rows = movie.sites.map((_, k) => k).filter((k) => points.some((row) => row[k]));
    const logs = rows.map((k) => values.map((row) => (drawable(row[k], true) ? Math.log(row[k]) : null)));
    const all = logs.flat().filter(known), low = Math.min(...all), high = Math.max(...all);
    const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
    const ink = (v) => {
      const share = high > low ? (v - low) / (high - low) : 0;
      const k = Math.max(1, movie.heat.findIndex(([stop]) => stop >= share - 1e-9)), [a, b] = [movie.heat[k - 1], movie.heat[k]];
      const [p, q] = [rgb(a[1]), rgb(b[1])], f = (share - a[0]) / (b[0] - a[0]);
      return `rgb(${p.map((part, e) => Math.round(mix(part, q[e], f))).join(" ")})`;
    };
    let size = null, box = null, cell = 0, tall = 0, still = null;
    const lay = () => {
      const narrow = canvas.clientWidth < 520;
      tall = Math.min(30, Math.max(7, 420 / rows.length));
      size = sized(canvas, Math.round(rows.length * tall + 48));
      const names = rows.map((k) => (narrow ? movie.numbers[k] : movie.sites[k]));
      size.pen.font = `12px ${color("font")}`;
      const wide = Math.max(...names.map((name) => size.pen.measureText(name).width));
      box = { left: Math.ceil(wide) + 12, top: 6, bottom: 6 + rows.length * tall, names };
      cell = (size.width - box.left - 4) / (last + 1);
      still = document.createElement("canvas"); // all but the frame, drawn once
      [still.width, still.height] = [canvas.width, canvas.height];
      const pen = still.getContext("2d");
      pen.setTransform(size.dense, 0, 0, size.dense, 0, 0);
      fixed(pen, size.width, cell > 8 ? 1 : 0);
    };
    const fixed = (pen, width, gap) => {
      logs.forEach((row, r) => row.forEach((v, k) => {
        pen.fillStyle = known(v) ? ink(v) : "#f6f8fa";
        pen.fillRect(box.left + k * cell, box.bottom - (r + 1) * tall, Math.max(0.5, cell - gap), tall - (tall > 8 ? 1 : 0));
      }));
      pen.font = `12px ${color("font")}`;
      pen.fillStyle = color("muted");
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      const every = Math.ceil(14 / tall);
      box.names.forEach((name, r) => r % every || pen.fillText(name, box.left - 8, box.bottom - (r + 0.5) * tall));
      pen.textAlign = "center";
      const widest = Math.max(...movie.steps.map((step) => pen.measureText(step).width));
      named(cell, widest + 10).forEach((k) => {
        const half = pen.measureText(movie.steps[k]).width / 2;
        pen.fillText(movie.steps[k], Math.min(width - half, box.left + (k + 0.5) * cell), box.bottom + 14);
      });
      pen.fillText(movie.unit, (box.left + width) / 2, box.bottom + 33);
    };
    panels.push((i, j, f) => {
      if (!size || unseen(canvas)) return;
      size.pen.clearRect(0, 0, size.width, size.height);
      size.pen.drawImage(still, 0, 0, size.width, size.height);
      size.pen.strokeStyle = color("test");
      size.pen.lineWidth = 2;
      size.pen.strokeRect(box.left + (i + f) * cell - 1, box.top - 2, Math.max(3, cell), rows.length * tall + 3);
    });
    const to = (event) => seek(Math.floor((event.clientX - canvas.getBoundingClientRect().left - box.left) / cell));
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); to(event); });
    canvas.addEventListener("pointermove", (event) => event.buttons && to(event));
    return lay;
  };

  const layers = [() => strip(byId("strip").clientWidth)];
  layers.push(curves("curve", { ...movie.curve, log: true }));
  if (movie.view) layers.push(collapse());
  if (movie.planes) layers.push(planes());
  if (movie.shares) layers.push(bars("shares", movie.shares));
  if (movie.mismatch) layers.push(curves("mismatch", movie.mismatch));
  if (movie.curve.axis) layers.push(heat());
  const stage = document.querySelector(".movie");
  const lay = () => {
    wide = stage.clientWidth;
    if (wide < 120) return;
    layers.forEach((part) => part());
    shown = -1;
    draw();
  };

  // --- hands --------------------------------------------------------------------------------------------------------
  slider.max = last;
  slider.addEventListener("input", () => seek(Number(slider.value)));
  byId("play").disabled = last === 0;
  byId("play").addEventListener("click", () => play(!playing));
  const speeds = [1, 2, 0.5];
  byId("speed").addEventListener("click", () => {
    speed = speeds[(speeds.indexOf(speed) + 1) % speeds.length];
    byId("speed").textContent = `${speed === 0.5 ? "½" : speed}×`;
    byId("speed").setAttribute("aria-label", `speed ${byId("speed").textContent}`);
  });
  const keys = {
    ArrowRight: () => Math.round(goal) + 1, ArrowUp: () => Math.round(goal) + 1,
    ArrowLeft: () => Math.round(goal) - 1, ArrowDown: () => Math.round(goal) - 1,
    Home: () => 0, End: () => last,
    PageDown: () => Math.round(goal) + Math.ceil(last / 10), PageUp: () => Math.round(goal) - Math.ceil(last / 10),
  };
  const own = ["ArrowUp", "ArrowDown", "PageUp", "PageDown"]; // scroll the page, unless the slider has the focus
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const inside = event.target.closest ? event.target.closest("button, summary, .scroll") : null;
    if (event.key === " " && !inside) {
      event.preventDefault();
      play(!playing);
    } else if (keys[event.key] && (event.target === slider || !own.includes(event.key)) && !(inside && inside.matches(".scroll"))) {
      event.preventDefault();
      seek(keys[event.key]());
    }
  });
  calm.addEventListener("change", later);
  new ResizeObserver(() => stage.clientWidth !== wide && requestAnimationFrame(lay)).observe(stage);
  window.addEventListener("beforeprint", lay);
  lay();
})();
