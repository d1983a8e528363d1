"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const at = (id) => document.getElementById(id);
  const short = (x) => (x === null || x === undefined ? "–" : Number(x.toPrecision(4)).toString());
  const chance = (p) => (p === null || p === undefined ? "–" : p < 0.0001 ? "below 0.0001" : short(p));
  const signed = (x) => (x > 0 ? "+" : "") + short(x);

  // ---- colours: those of the page, and black or white on them, whichever can be read
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function palette() {
    const hex = style("--paper").slice(1);
    const paper = (hex.length === 3 ? [...hex].map((x) => x + x) : hex.match(/../g)).map((x) => parseInt(x, 16));
    return { low: style("--low").split(" ").map(Number), high: style("--high").split(" ").map(Number), paper };
  }
  function contrast(a, b) { // WCAG 2
    const light = ([r, g, b]) => [r, g, b].map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
      .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  }

  // ---- pictures: drawn in the colours of the page, again when the scheme changes
  const figures = read("figures-data");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  function draw() {
    const ink = style("--ink"), rule = style("--rule");
    const axis = { gridcolor: rule, linecolor: rule, zerolinecolor: rule, automargin: true };
    figures.forEach((figure, place) => {
      const layout = {
        ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink },
        margin: { l: 50, r: 10, t: 10, b: 50 }, legend: { orientation: "h", y: -0.25 },
        xaxis: { ...figure.layout.xaxis, ...axis }, yaxis: { ...figure.layout.yaxis, ...axis },
      };
      Plotly.react(at(`chart-${place}`), figure.data, layout, { responsive: true, displayModeBar: false });
    });
  }
  if (figures.length) { draw(); dark.addEventListener("change", draw); }

  // ---- the map of heads
  const subjects = read("subjects-data");
  if (!subjects.length) return;
  let subject, facts, chosen = [0, 0];

  function options(select, names) {
    select.replaceChildren(...names.map((name, place) => new Option(name, place)));
    select.disabled = names.length === 0;
  }
  function factsOf(one) { // what a cell's colour can show: a name and a number a head
    const found = one.rankings.map((r) => ({ name: r.name, values: r.values }));
    one.effects.forEach((e) => found.push({ name: `change of ${e.name}`, values: e.change }));
    if (one.functions) {
      found.push({ name: "number of functions", values: one.functions.map((row) => row.map((f) => (f ? f.length : null))) });
    }
    one.states.forEach((s) => found.push({ name: `left: ${s.name}`, values: s.kept }));
    return found;
  }
  function ranking() { return subject.rankings[Number(at("ranking").value)]; }
  function gone() {
    const order = ranking() ? ranking().order : [];
    return order.slice(0, Math.floor(Number(at("share").value) / 100 * order.length + 1e-9));
  }
  function button(site, head) { return at("map").querySelector(`button[data-site="${site}"][data-head="${head}"]`); }

  function build() { // a new subject: its own table
    const width = Math.max(...subject.sites.map((site) => site.heads));
    at("map").caption.textContent = subject.name;
    const top = document.createElement("tr");
    top.append(document.createElement("td"));
    for (let head = 0; head < width; head += 1) {
      const cell = document.createElement("th");
      cell.scope = "col"; cell.textContent = head; top.append(cell);
    }
    at("map").tHead.replaceChildren(top);
    let before = subject.sites[0].component;
    at("map").tBodies[0].replaceChildren(...subject.sites.map((site, row) => {
      const line = document.createElement("tr"), name = document.createElement("th");
      if (site.component !== before) line.className = "next-component";
      before = site.component;
      name.scope = "row"; name.textContent = site.id; line.append(name);
      for (let head = 0; head < site.heads; head += 1) {
        const cell = document.createElement("td"), key = document.createElement("button");
        key.setAttribute("aria-describedby", "head"); // its numbers, read when it is reached
        key.type = "button"; key.dataset.site = row; key.dataset.head = head; key.tabIndex = -1;
        cell.append(key); line.append(cell);
      }
      return line;
    }));
    chosen = [0, 0];
    button(0, 0).tabIndex = 0;
  }
  function paint() { // colours, marks and the sentence beside the slider
    const fact = facts[Number(at("fact").value)] || { name: "", values: [] };
    const all = fact.values.flat().filter((x) => x !== null && x !== undefined);
    const low = all.length ? Math.min(...all) : 0, high = all.length ? Math.max(...all) : 1;
    const ends = palette();
    const out = new Set(gone().map(([site, head]) => `${site}:${head}`));
    at("map").querySelectorAll("button").forEach((key) => {
      const site = Number(key.dataset.site), head = Number(key.dataset.head);
      const value = fact.values[site] ? fact.values[site][head] : null;
      const missing = value === null || value === undefined;
      const part = missing || high === low ? 0 : (value - low) / (high - low);
      const pruned = out.has(`${site}:${head}`);
      key.classList.toggle("pruned", pruned);
      const colour = missing ? ends.paper : ends.low.map((x, i) => x + (ends.high[i] - x) * part);
      key.style.background = `rgb(${colour.map(Math.round).join(" ")})`;
      key.style.color = contrast(colour, [0, 0, 0]) > contrast(colour, [255, 255, 255]) ? "#000" : "#fff";
      key.textContent = pruned ? "×" : missing ? "–" : "";
      key.setAttribute("aria-label", `${subject.sites[site].id}:${head}, ${fact.name} ${short(value)}${pruned ? ", pruned" : ""}`);
    });
    at("low").textContent = `${fact.name}: ${short(low)}`;
    at("high").textContent = short(high);
    at("told").textContent = sentence();
    describe();
  }
  function sentence() {
    const by = ranking();
    if (!by) return "No order was scored for this model: the slider has nothing to follow.";
    const order = by.order, out = gone().length, share = Number(at("share").value);
    const next = order[out];
    const name = next ? `next to go: ${subject.sites[next[0]].id}:${next[1]}` : "none is left";
    const start = `${share} %: ${out} of ${order.length} heads go; ${name}.`;
    if (!by.curve) return `${start} No curve was measured in this order.`;
    const score = along(by.curve, out / order.length), whole = along(by.curve, 0);
    return `${start} The curve says ${by.metric} ${short(score)} (${signed(score - whole)} against all heads).`;
  }
  function along(curve, share) { // straight lines between what was measured
    for (let i = 1; i < curve.length; i += 1) {
      const [x0, y0] = curve[i - 1], [x1, y1] = curve[i];
      if (share <= x1 + 1e-9) return y0 + (y1 - y0) * (x1 === x0 ? 0 : (share - x0) / (x1 - x0));
    }
    return curve[curve.length - 1][1];
  }
  function describe() {
    const [site, head] = chosen, rows = [["head", `${subject.sites[site].id}:${head}`]];
    subject.rankings.forEach((r) => {
      const error = r.errors ? r.errors[site][head] : null;
      rows.push([r.name, short(r.values[site][head]) + (error === null || error === undefined ? "" : ` ± ${short(error)}`)]);
    });
    subject.effects.forEach((e) => {
      const change = e.change[site][head];
      if (change !== null && change !== undefined) rows.push([`change of ${e.name}`, `${signed(change)} (p after Holm ${chance(e.p[site][head])})`]);
    });
    if (subject.functions && subject.functions[site][head]) rows.push(["functions", subject.functions[site][head].join(", ") || "none found"]);
    subject.states.forEach((s) => rows.push([s.name, s.kept[site][head] ? "kept" : "pruned"]));
    const pruned = gone().some(([s, h]) => s === site && h === head);
    rows.push(["at the slider", pruned ? "pruned" : "kept"]);
    at("head").replaceChildren(...rows.flatMap(([name, value]) => {
      const term = document.createElement("dt"), told = document.createElement("dd");
      term.textContent = name; told.textContent = value;
      return [term, told];
    }));
  }
  function choose(site, head, focus) {
    button(...chosen).tabIndex = -1;
    chosen = [site, head];
    button(site, head).tabIndex = 0;
    if (focus) button(site, head).focus();
    describe();
  }
  function open() {
    subject = subjects[Number(at("subject").value)];
    facts = factsOf(subject);
    options(at("fact"), facts.map((fact) => fact.name));
    options(at("ranking"), subject.rankings.map((one) => one.name));
    at("share").disabled = subject.rankings.length === 0;
    build(); paint();
  }
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  at("map").addEventListener("keydown", (event) => {
    const step = steps[event.key];
    if (!step || event.target.tagName !== "BUTTON") return;
    event.preventDefault();
    const site = Math.min(Math.max(chosen[0] + step[0], 0), subject.sites.length - 1);
    const head = Math.min(Math.max(chosen[1] + step[1], 0), subject.sites[site].heads - 1);
    choose(site, head, true);
  });
  ["mouseover", "click", "focusin"].forEach((kind) => at("map").addEventListener(kind, (event) => {
    if (event.target.tagName === "BUTTON") choose(Number(event.target.dataset.site), Number(event.target.dataset.head), false);
  }));
  at("subject").addEventListener("change", open);
  at("fact").addEventListener("change", paint);
  at("ranking").addEventListener("change", paint);
  at("share").addEventListener("input", paint);
  dark.addEventListener("change", paint);
  open();
})();
