"use strict";
(() => {
  const narrow = 520;
  const template = JSON.parse(document.getElementById("template").textContent);
  const config = { displayModeBar: false };
  const charts = () => [...document.querySelectorAll(".chart")];

  // Site names lie flat where there is room, lean where there is less, stand where there is little.
  const angle = (width, names) => {
    const slot = (0.8 * width) / names.length;
    const longest = Math.max(...names.map((name) => 7 * name.length));
    return longest < slot ? 0 : slot > 26 ? -45 : -90;
  };

  // What depends on the width of the box.
  const fitted = (layout, width) => {
    const names = layout.xaxis.ticktext;
    return names && names.length ? { width, "xaxis.tickangle": angle(width, names) } : { width };
  };

  // The names of sites stand once in each figure, and are written over its traces here.
  const named = (figure) => {
    const { sites, rows } = figure.layout.meta || {};
    figure.data.forEach((trace) => {
      if (trace.meta === "sites") trace.text = (trace.x || sites.map((_, i) => i)).map((i) => sites[i]);
      if (trace.meta === "grid") trace.customdata = rows.map((row) => sites.map((site) => `${site}<br>${row}`));
    });
    return figure;
  };

  const draw = (box, width) => {
    const figure = named(JSON.parse(document.querySelector(`script[data-figure="${box.id}"]`).textContent));
    figure.layout.template = template;
    if (width < narrow) figure.data.forEach((trace) => trace.type === "heatmap" && delete trace.texttemplate);
    const { width: fit, "xaxis.tickangle": turned } = fitted(figure.layout, width);
    figure.layout.width = fit;
    if (turned !== undefined) figure.layout.xaxis.tickangle = turned;
    Plotly.newPlot(box, figure.data, figure.layout, config);
  };

  // Draw a box, or fit what is drawn, to its width; a folded box waits until it is opened.
  const show = (box, width = box.clientWidth) => {
    if (!width || box.closest("details:not([open])")) return;
    if (!box.layout) draw(box, width);
    else if (box.layout.width !== width) Plotly.relayout(box, fitted(box.layout, width));
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
