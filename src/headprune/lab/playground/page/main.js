// ---- cards, slider, and what happens when it moves
function card(name, told, note, worse) {
  return made("li", worse ? { class: "worse" } : {}, made("small", { text: name }), made("b", { text: told }), made("small", { text: note || "" }));
}

function cardsOf(way, point) {
  const whole = way.points[0], cards = [];
  const pair = (from, to) => (from === to ? `${to}` : `${from} → ${to}`);
  const fewer = (from, to) => (from && to < from ? `${percent(1 - to / from)} fewer` : "");
  cards.push(card("heads", pair(whole.heads, point.heads), fewer(whole.heads, point.heads)));
  if (whole.neurons) cards.push(card("neurons", pair(whole.neurons.toLocaleString("en"), point.neurons.toLocaleString("en")), fewer(whole.neurons, point.neurons)));
  if (!nothing(point.score)) {
    const [low, high] = point.interval || [null, null];
    const metric = metricOf(way), told = (x) => scored(x, metric), much = 1.001 * (inPercent(metric) ? 0.01 : 0.01 * Math.abs(whole.score));
    cards.push(card(metric === "agreement" ? "answers as before" : metric, pair(told(whole.score), told(point.score)),
      nothing(low) ? "" : `95 % interval now: ${told(low)} to ${told(high)}`, lost(whole.score, point.score) > much));
  }
  if (whole.parameters) cards.push(card("parameters", pair(count(whole.parameters), count(point.parameters)), fewer(whole.parameters, point.parameters)));
  if (whole.macs) cards.push(card("multiply-adds (MACs)", pair(count(whole.macs), count(point.macs)), fewer(whole.macs, point.macs)));
  const speed = point.speed;
  if (whole.macs) cards.push(speed ? card("measured speed", `${short(speed.speedup)} × as fast`, nothing(speed.control) ? "one pass of each model, no control" : `${short(speed.low)} to ${short(speed.high)}; the whole model against itself ${short(speed.control)}`)
    : card("measured speed", point === whole ? "1 ×" : "not measured", point === whole ? "the whole model" : "only models that shrink made were timed"));
  return cards;
}

function paint() {
  const way = content.ways[state.way];
  if (way) {
    const point = way.points[state.point];
    state.kept = point.kept;
    at("p-at").textContent = point.label;
    at("p-slider").setAttribute("aria-valuetext", point.label);
    filled("p-cards", ...cardsOf(way, point));
    at("p-command-box").hidden = !point.command;
    at("p-command").textContent = point.command;
    at("p-price").textContent = point.price;
  } else {
    state.kept = Object.fromEntries(attention.map((site) => [site.id, [...Array(site.heads).keys()].map((head) => (site.kept.includes(head) ? "1" : "0")).join("")]));
  }
  paintMap(); paintNeurons(); paintCharts(); paintHead(); paintExamples();
}

function openWay(number, point) {
  state.way = number;
  const last = content.ways[number].points.length - 1;
  state.point = Math.min(point === undefined ? last : point, last);
  at("p-slider").max = last;
  at("p-slider").value = state.point;
  at("p-slider").disabled = last === 0;
  paint();
}

function buildFacts() {
  at("p-facts-box").hidden = content.facts.length === 0;
  filled("p-facts", ...content.facts.flatMap(([name, told]) => [made("dt", { text: name }), made("dd", { text: told })]));
}

buildMap(); buildSentences(); buildFacts();
at("p-told").hidden = !content.live;
at("p-way").disabled = content.ways.length < 2;
filled("p-way", ...content.ways.map((way, number) => made("option", { value: number, text: way.name })));
if (typeof startLive === "function" && content.live) startLive();
else if (content.ways.length) {
  buildNumbers();
  at("p-way").addEventListener("change", () => openWay(Number(at("p-way").value)));
  at("p-slider").addEventListener("input", () => { state.point = Number(at("p-slider").value); paint(); });
  at("p-way").value = content.ways.length - 1;
  openWay(content.ways.length - 1);
} else {
  at("p-slide").hidden = at("p-curves").hidden = at("p-cards").hidden = true;
  paint();
}
dark.addEventListener("change", paint);
window.addEventListener("resize", () => { if (content.ways.length) paintCharts(); });
