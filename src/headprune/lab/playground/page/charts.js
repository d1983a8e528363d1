// ---- two pictures of the measured points: score along the slider, and what a size costs
const dashes = ["", "7 4", "2 4"];
const place = (low, high, from, to) => (x) => from + (high === low ? 0 : (x - low) / (high - low)) * (to - from);
const ticksOf = (low, high) => {
  const step = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200].find((one) => (high - low) / one <= 6) || (high - low) / 5 || 1;
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + 1e-9; x += step) found.push(Number(x.toPrecision(6)));
  return found;
};

function chart(id, lines, words) { // lines: [{name, dots: [{x, y, low, high, on, title}]}]
  const box = at(id), wide = Math.max(300, box.clientWidth || 480), tall = 230, left = 52, right = 14, top = 12, bottom = 44;
  const dots = lines.flatMap((line) => line.dots);
  const xs = dots.map((dot) => dot.x), ys = dots.flatMap((dot) => [dot.y, ...(nothing(dot.low) ? [] : [dot.low, dot.high])]);
  if (!dots.length) return;
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (high - low < 1e-9) { low -= 0.5; high += 0.5; }
  const gap = 0.06 * (high - low);
  const x = place(...(words.reversed ? [Math.max(...xs), Math.min(...xs)] : [Math.min(...xs), Math.max(...xs)]), left, wide - right);
  const y = place(low - gap, high + gap, tall - bottom, top);
  const svg = drawn("svg", { viewBox: `0 0 ${wide} ${tall}`, "aria-hidden": "true" });
  const ink = style("--ink"), rule = style("--rule"), blue = style("--link"), mark = style("--mark");
  ticksOf(low - gap, high + gap).forEach((one) => svg.append(
    drawn("line", { x1: left, x2: wide - right, y1: y(one), y2: y(one), stroke: rule }),
    drawn("text", { x: left - 6, y: y(one) + 4, "text-anchor": "end", class: "soft", text: words.y(one) }),
  ));
  ticksOf(Math.min(...xs), Math.max(...xs)).forEach((one) => svg.append(
    drawn("text", { x: x(one), y: tall - bottom + 16, "text-anchor": "middle", class: "soft", text: words.x(one) }),
  ));
  svg.append(drawn("text", { x: (left + wide) / 2, y: tall - 8, "text-anchor": "middle", class: "soft", text: words.label }));
  lines.forEach((line, number) => {
    const path = line.dots.map((dot) => `${x(dot.x).toFixed(1)},${y(dot.y).toFixed(1)}`);
    if (line.dots.length > 1 && line.dots.every((dot) => !nothing(dot.low))) {
      const band = [...line.dots.map((dot) => `${x(dot.x)},${y(dot.high)}`), ...[...line.dots].reverse().map((dot) => `${x(dot.x)},${y(dot.low)}`)];
      svg.append(drawn("polygon", { points: band.join(" "), fill: blue, opacity: 0.13 }));
    }
    svg.append(drawn("polyline", { points: path.join(" "), fill: "none", stroke: number ? ink : blue, "stroke-width": 2, "stroke-dasharray": dashes[number % 3] }));
    line.dots.forEach((dot) => svg.append(drawn("circle", { cx: x(dot.x), cy: y(dot.y), r: 3.2, fill: number ? ink : blue }, drawn("title", { text: dot.title }))));
  });
  dots.filter((dot) => dot.on).forEach((dot) => svg.append(
    drawn("circle", { class: "here", cx: x(dot.x), cy: y(dot.y), r: 8, fill: "none", stroke: mark, "stroke-width": 3 }),
  ));
  box.replaceChildren(svg);
  if (lines.length > 1) box.append(made("p", { class: "hint", text: lines.map((line, number) => `${["—", "- -", "· ·"][number % 3]} ${line.name}`).join("   ") }));
  box.setAttribute("aria-label", words.told);
  box.removeAttribute("aria-labelledby");
}

const macsLeft = (way, point) => point.macs / Math.max(1, way.points[0].macs);
const along = (way, point) => (way.axis === "heads" ? way.points[0].heads - point.heads : 1 - macsLeft(way, point));

function paintCharts() {
  const way = content.ways[state.way];
  const metric = metricOf(way);
  const known = content.ways.filter((one) => metricOf(one) === metric).filter((one) => one.points.some((point) => !nothing(point.score)));
  at("p-curves").hidden = known.length === 0;
  if (!known.length) return;
  const point = way.points[state.point];
  const title = (one) => `${one.label}: ${metric} ${scored(one.score, metric)}`;
  const dots = way.points.filter((one) => !nothing(one.score)).map((one) => ({
    x: along(way, one), y: one.score, low: one.interval && one.interval[0], high: one.interval && one.interval[1], on: one === point, title: title(one),
  }));
  const byHeads = way.axis === "heads";
  chart("p-curve", [{ name: way.name, dots }], {
    x: (value) => (byHeads ? value : percent(value)), y: (value) => scored(value, metric), label: byHeads ? "heads removed" : "share of MACs removed",
    told: `${metric} along the slider; now ${title(point)}. The numbers are in the table below.`,
  });
  const sizes = known.filter((one) => one.points.every((p) => p.macs > 0));
  at("p-size-title").hidden = at("p-size").hidden = sizes.length === 0;
  chart("p-size", sizes.map((one) => ({
    name: one.name,
    dots: one.points.filter((p) => !nothing(p.score)).map((p) => ({
      x: macsLeft(one, p), y: lost(one.points[0].score, p.score), on: one === way && p === point, title: title(p),
    })),
  })), {
    x: (value) => percent(value), y: (value) => (inPercent(metric) ? short(100 * value) : short(value)), reversed: true,
    label: `MACs left; upwards: ${inPercent(metric) ? "points" : metric} lost`,
    told: `What each size costs; now ${title(point)}. The numbers are in the table below.`,
  });
}

function buildNumbers() {
  const rows = content.ways.flatMap((way) => way.points.map((point) => [
    way.name, point.label, point.heads, count(point.parameters), count(point.macs), scored(point.score, metricOf(way)),
    point.interval ? point.interval.map((x) => scored(x, metricOf(way))).join(" to ") : "–", point.speed ? `${short(point.speed.speedup)} ×` : "–",
  ]));
  const head = made("thead", {}, made("tr", {}, ...["way", "point", "heads", "parameters", "MACs", "score", "95 % interval", "speed"]
    .map((text) => made("th", { scope: "col", text }))));
  filled("p-numbers", made("caption", { text: "Every measured point" }), head, made("tbody", {}, ...rows.map((row) => made("tr", {},
    ...row.map((text, column) => made(column ? "td" : "th", column ? { text } : { scope: "row", text }))))));
}
