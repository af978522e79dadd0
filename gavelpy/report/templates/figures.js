"use strict";
// Draws the figures of the page with uPlot. The document is gzipped JSON in base64: {name: figure}, see figure.py.
(async () => {
  const packed = Uint8Array.from(atob(document.getElementById("figures").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const figures = JSON.parse(await new Response(stream).text());
  const chosen = document.querySelector("nav button[aria-pressed=true]");
  let run = chosen ? chosen.dataset.run : "";
  const plots = {};

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (v) => Math.abs(v) >= 100 ? Math.round(v).toLocaleString("en") : String(+v.toPrecision(3));
  const text = (axis, v) => v === null || v === undefined ? "–" : axis.scale === "percent" ? Math.round(100 * v) + " %" : number(v);

  function axis(description, side) {
    return {
      label: description.title, side, stroke: css("--ink"), labelFont: "13px system-ui", font: "12px system-ui",
      grid: {stroke: css("--line"), width: 1}, ticks: {stroke: css("--line"), width: 1}, size: side === 3 ? 64 : 44, labelSize: 22,
      values: (u, splits) => splits.map((v) => v === null ? null : text(description, v)),
    };
  }

  function scale(description, first) {
    const log = description.scale === "log";
    return {time: false, distr: log ? 3 : 1, log: 10, dir: description.is_reversed ? -1 : 1,
            ...(first ? {auto: false, range: first} : log ? {range: (u, low, high) => [low / 1.05, high * 1.05]} : {})};
  }

  function options(name, figure, element) {
    return {
      width: Math.max(320, element.clientWidth), height: figure.height,
      axes: [axis(figure.x, 2), axis(figure.y, 3)],
      cursor: {drag: {x: true, y: false}, points: {size: 6}},
    };
  }

  function drawCurves(name, figure, element) {
    const series = [{label: figure.x.title, value: (u, v) => text(figure.x, v)}].concat(figure.curves.map((c) => ({
      label: c.label, stroke: c.faint ? c.colour + "a6" : c.colour, width: 2, dash: c.faint ? [6, 4] : undefined,
      points: {show: false}, value: (u, v) => text(figure.y, v),
    })));
    const all = Object.assign(options(name, figure, element), {series, scales: {x: scale(figure.x), y: scale(figure.y, figure.y.range)}});
    const plot = new uPlot(all, [figure.grid, ...figure.curves.map((c) => c.y)], element);
    if (figure.x.range) { plot.setScale("x", {min: figure.x.range[0], max: figure.x.range[1]}); }
    return plot;
  }

  function drawMarks(name, figure, element) {
    const groups = figure.marks[run] || [];
    const flat = (field) => groups.flatMap((g) => g[field] || []);
    const xs = flat("x").concat(flat("end")), ys = flat("y");
    const span = (values, log) => {
      const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
      if (!(low < high)) { return log ? [0.1, 10] : [0, Math.max(high, 1)]; }
      return log ? [low / 1.2, high * 1.2] : [low, high];
    };
    const xSpan = figure.x_ranges[run] || span(xs, figure.x.scale === "log");
    const ySpan = figure.y_ranges[run] || figure.y.range || span(ys, figure.y.scale === "log");
    const hint = document.createElement("div");
    hint.className = "hint";

    function paint(u) {
      const {ctx} = u, {left, top, width, height} = u.bbox, ratio = window.devicePixelRatio || 1;
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, top, width, height);
      ctx.clip();
      if (figure.diagonal) {
        ctx.strokeStyle = css("--soft");
        ctx.setLineDash([3 * ratio, 3 * ratio]);
        ctx.beginPath();
        const ends = [Math.max(xSpan[0], ySpan[0]), Math.min(xSpan[1], ySpan[1])];
        ends.forEach((v, i) => ctx[i ? "lineTo" : "moveTo"](u.valToPos(v, "x", true), u.valToPos(v, "y", true)));
        ctx.stroke();
        ctx.setLineDash([]);
      }
      for (const g of groups) {
        ctx.strokeStyle = ctx.fillStyle = g.colour;
        ctx.lineWidth = (g.end ? g.width : 1.5) * ratio;
        ctx.globalAlpha = g.end ? 1 : 0.65;
        for (let i = 0; i < g.x.length; i++) {
          const x = u.valToPos(g.x[i], "x", true), y = u.valToPos(g.y[i], "y", true);
          ctx.beginPath();
          if (g.end) {
            ctx.moveTo(x, y);
            ctx.lineTo(Math.max(u.valToPos(g.end[i], "x", true), x + ratio), y);
            ctx.stroke();
          } else {
            ctx.arc(x, y, g.width * ratio / 2, 0, 7);
            ctx[g.hollow ? "stroke" : "fill"]();
          }
        }
      }
      names(u);
      ctx.restore();
    }

    // The texts of the points of named groups: right or left of the point, moved up or down until no two overlap.
    function names(u) {
      const {ctx} = u, {left, top, width, height} = u.bbox, ratio = window.devicePixelRatio || 1, line = 14 * ratio, taken = [];
      ctx.font = `${12 * ratio}px system-ui, "Liberation Sans", sans-serif`;
      ctx.fillStyle = css("--ink");
      ctx.globalAlpha = 1;
      ctx.textBaseline = "middle";
      ctx.textAlign = "left";
      const points = groups.filter((g) => g.named).flatMap((g) => g.x.map((v, i) => [g.text[i],
        u.valToPos(v, "x", true), u.valToPos(g.y[i], "y", true), g.width * ratio]));
      for (const [name, x, y, size] of points.sort((a, b) => a[2] - b[2])) {
        const wide = ctx.measureText(name).width, gap = size / 2 + 4 * ratio;
        const from = x + gap + wide > left + width ? x - gap - wide : x + gap;
        const lowest = top + height - line / 2, near = Math.min(Math.max(y, top + line / 2), lowest);
        const hits = (at) => taken.some((t) => from < t[1] && from + wide > t[0] && Math.abs(at - t[2]) < line);
        const places = [...Array(12).keys()].flatMap((k) => [near + (k + 1) * line, near - (k + 1) * line])
          .filter((at) => at >= top + line / 2 && at <= lowest);
        const at = [near, ...places].find((one) => !hits(one)) ?? near;
        taken.push([from, from + wide, at]);
        ctx.fillText(name, from, at);
      }
    }

    function nearest(u) {
      const {left, top} = u.cursor;
      let best = null, least = 14 * 14;
      for (const g of groups) {
        for (let i = 0; i < g.x.length; i++) {
          const a = u.valToPos(g.x[i], "x"), b = g.end ? Math.max(u.valToPos(g.end[i], "x"), a + 1) : a;
          const dx = left < a ? a - left : left > b ? left - b : 0, dy = u.valToPos(g.y[i], "y") - top;
          const distance = dx * dx + dy * dy + (g.group === "waiting" ? 1 : 0);
          if (distance < least) { least = distance; best = [g, i]; }
        }
      }
      return best;
    }

    function point(u) {
      const found = u.cursor.left >= 0 ? nearest(u) : null;
      hint.hidden = !found;
      if (!found) { return; }
      const [g, i] = found;
      hint.textContent = g.end
        ? `${g.text[i]}: ${g.group}, ${text(figure.x, g.x[i])} to ${text(figure.x, g.end[i])}, ${figure.x.title}`
        : `${g.text[i]}, ${g.group}: ${figure.x.title} ${text(figure.x, g.x[i])}, ${figure.y.title} ${text(figure.y, g.y[i])}`;
      const right = u.cursor.left > u.over.clientWidth / 2;
      hint.style.left = right ? "" : `${u.cursor.left + 14}px`;
      hint.style.right = right ? `${u.over.clientWidth - u.cursor.left + 14}px` : "";
      hint.style.top = `${Math.max(0, u.cursor.top - 30)}px`;
    }

    const key = document.createElement("p");
    key.className = "key";
    for (const g of groups.filter((one) => one.x.length)) {
      const entry = document.createElement("span"), swatch = document.createElement("i");
      swatch.style.background = g.colour;
      entry.append(swatch, g.group);
      key.append(entry);
    }
    element.append(key);
    const all = Object.assign(options(name, figure, element), {
      legend: {show: false},
      series: [{}, {show: true, stroke: "transparent", points: {show: false}}],
      scales: {x: scale(figure.x), y: scale(figure.y, ySpan)},
      hooks: {draw: [paint], setCursor: [point]},
    });
    const plot = new uPlot(all, [xSpan, [null, null]], element);
    plot.over.append(hint);
    return plot;
  }

  function draw(names) {
    for (const name of names) {
      const element = document.getElementById(name), figure = figures[name];
      if (plots[name]) { plots[name].destroy(); }
      element.replaceChildren();
      plots[name] = (figure.curves ? drawCurves : drawMarks)(name, figure, element);
    }
  }

  const perRun = Object.keys(figures).filter((name) => !figures[name].curves);
  document.querySelectorAll("nav button").forEach((button) => button.addEventListener("click", () => {
    run = button.dataset.run;
    document.querySelectorAll("nav button").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    document.querySelectorAll("[data-of]").forEach((part) => { part.hidden = part.dataset.of !== run; });
    draw(perRun);
  }));
  let timer = 0;
  const again = () => { clearTimeout(timer); timer = setTimeout(() => draw(Object.keys(figures)), 150); };
  window.addEventListener("resize", again);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  draw(Object.keys(figures));
  document.documentElement.dataset.drawn = "yes";
})();
