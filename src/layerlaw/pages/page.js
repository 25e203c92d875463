"use strict";
(() => {
  const narrow = 520;
  const config = { responsive: true, displayModeBar: false };

  // Site names stand upright where there is little room.
  const angle = (box, layout) =>
    layout.xaxis && layout.xaxis.ticktext ? (box.clientWidth < narrow ? -90 : -45) : undefined;

  const draw = (source) => {
    const box = document.getElementById(source.dataset.figure);
    if (!box || box.dataset.drawn || box.closest("details:not([open])")) return;
    box.dataset.drawn = "yes";
    const figure = JSON.parse(source.textContent);
    const turned = angle(box, figure.layout);
    if (turned !== undefined) figure.layout.xaxis.tickangle = turned;
    Plotly.newPlot(box, figure.data, figure.layout, config);
  };
  const drawAll = () => document.querySelectorAll("script[data-figure]").forEach(draw);
  const drawn = () => document.querySelectorAll(".chart[data-drawn]");

  const turn = (box) => {
    const turned = angle(box, box.layout || {});
    if (turned !== undefined && turned !== box.layout.xaxis.tickangle) Plotly.relayout(box, { "xaxis.tickangle": turned });
  };

  drawAll();
  window.addEventListener("resize", () => drawn().forEach((box) => box.clientWidth && turn(box)));

  // A folded box has no width: draw it, or fit it, when it opens.
  document.querySelectorAll("details").forEach((details) =>
    details.addEventListener("toggle", () => {
      if (!details.open) return;
      drawAll();
      details.querySelectorAll(".chart[data-drawn]").forEach((box) => Plotly.Plots.resize(box));
    }),
  );

  // On paper everything is unfolded, and charts are as wide as the sheet.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((details) => (details.open = true));
    drawAll();
    drawn().forEach((box) => Plotly.relayout(box, { width: box.closest(".pair") ? 330 : 680 }));
  });
  window.addEventListener("afterprint", () => {
    drawn().forEach((box) => Plotly.relayout(box, { width: null, autosize: true }));
    folded.forEach((details) => (details.open = false));
  });
})();
