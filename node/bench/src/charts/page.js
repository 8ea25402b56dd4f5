// Values at the cursor, in all plots at once. Reads the points that each figure carries; draws nothing else.
"use strict";
(() => {
  const until = Number(document.body.querySelector("main").dataset.until);
  const at = document.getElementById("at");
  const timed = (figure) => figure.querySelector("svg[data-left]");
  const plots = [...document.querySelectorAll("figure")].filter(timed).map((figure) => {
    const svg = timed(figure);
    const points = figure.querySelector("script");
    return {
      svg,
      width: svg.viewBox.baseVal.width,
      left: Number(svg.dataset.left),
      right: Number(svg.dataset.right),
      cursor: svg.querySelector(".cursor"),
      values: [...figure.querySelectorAll(".value")],
      series: points ? JSON.parse(points.textContent) : [],
    };
  });

  // The last point not after `ms`, or the first.
  const value = (points, ms) => {
    let low = 0, high = points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= ms) low = middle + 1; else high = middle;
    }
    return points.length ? points[Math.max(low - 1, 0)][1] : null;
  };
  const written = (value) =>
    value === null ? "–" : value.toLocaleString("en", { maximumSignificantDigits: 4 });
  const clock = (ms) => {
    const whole = Math.floor(ms / 1000);
    const part = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(whole / 3600);
    const minutes = Math.floor(whole / 60) % 60;
    return (hours ? hours + ":" + part(minutes) : minutes) + ":" + part(whole % 60) + "." + Math.floor(ms / 100) % 10;
  };

  const show = (ms) => {
    at.textContent = clock(ms);
    for (const plot of plots) {
      const x = plot.left + (ms / until) * (plot.right - plot.left);
      plot.cursor.setAttribute("x1", x);
      plot.cursor.setAttribute("x2", x);
      plot.cursor.classList.add("on");
      plot.values.forEach((place, index) => { place.textContent = written(value(plot.series[index] || [], ms)); });
    }
  };
  const hide = () => {
    at.textContent = "";
    for (const plot of plots) {
      plot.cursor.classList.remove("on");
      plot.values.forEach((place) => { place.textContent = ""; });
    }
  };
  for (const plot of plots) {
    plot.svg.addEventListener("pointermove", (event) => {
      const box = plot.svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * plot.width / box.width;
      const share = (x - plot.left) / (plot.right - plot.left);
      if (share >= 0 && share <= 1) show(share * until); else hide();
    });
    plot.svg.addEventListener("pointerleave", hide);
  }
})();
