"use strict";
(() => {
  const narrow = 520;
  const template = JSON.parse(document.getElementById("template").textContent);
  const config = { displayModeBar: false };
  const charts = () => [...document.querySelectorAll(".chart")];

  // Site names lie flat where there is room, lean where there is less, stand where there is little; where they would
  // overprint each other even so, only some stand there, and always the last.
  const standing = 18; // pixels, beside a color bar some fewer
  const ticks = ({ tickvals, ticktext, range }, width) => {
    const pixels = (0.8 * width) / (range[1] - range[0]);
    const slot = Math.min(...tickvals.slice(1).map((x, i) => pixels * (x - tickvals[i])), 0.8 * width);
    const lines = ticktext.flatMap((name) => name.split("<br>"));
    const longest = Math.max(...lines.map((line) => 7 * line.length));
    const kept = [];
    for (let i = tickvals.length - 1; i >= 0; i -= 1) {
      if (!kept.length || pixels * (tickvals[kept[0]] - tickvals[i]) >= standing) kept.unshift(i);
    }
    return {
      tickvals: kept.map((i) => tickvals[i]),
      ticktext: kept.map((i) => ticktext[i]),
      tickangle: longest < slot ? 0 : slot > 26 ? -45 : -90,
    };
  };

  // The names of sites stand once in each figure, and are written over its traces here.
  const named = (figure) => {
    const { sites, places, rows } = figure.layout.meta || {};
    figure.data.forEach((trace) => {
      if (trace.meta === "sites") trace.text = trace.x.map((x) => sites[places.indexOf(x)]);
      if (trace.meta === "grid") trace.customdata = rows.map((row) => sites.map((site) => `${site}<br>${row}`));
    });
    return figure;
  };

  const draw = (box, width) => {
    const figure = named(JSON.parse(document.querySelector(`script[data-figure="${box.id}"]`).textContent));
    figure.layout.template = template;
    if (width < narrow) figure.data.forEach((trace) => trace.type === "heatmap" && delete trace.texttemplate);
    figure.layout.width = width;
    box.axis = figure.layout.xaxis; // with all its ticks, for another width
    if (box.axis.ticktext) figure.layout.xaxis = { ...box.axis, ...ticks(box.axis, width) };
    Plotly.newPlot(box, figure.data, figure.layout, config);
  };

  // Draw a box, or fit what is drawn, to its width; a folded box waits until it is opened.
  const show = (box, width = box.clientWidth) => {
    if (!width || box.closest("details:not([open])")) return;
    if (!box.layout) draw(box, width);
    else if (box.layout.width !== width) {
      const shown = box.axis.ticktext ? Object.entries(ticks(box.axis, width)) : [];
      Plotly.relayout(box, { width, ...Object.fromEntries(shown.map(([key, value]) => [`xaxis.${key}`, value])) });
    }
  };
  const showAll = () => charts().forEach((box) => show(box));

  showAll();
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(showAll);
  });
  document.querySelectorAll("details").forEach((details) => details.addEventListener("toggle", showAll));

  // On paper everything is unfolded, and charts are as wide as the sheet.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((details) => (details.open = true));
    charts().forEach((box) => show(box, box.closest(".pair") ? 330 : 680));
  });
  window.addEventListener("afterprint", () => {
    folded.forEach((details) => (details.open = false));
    showAll();
  });
})();
