// ---- what every part needs
const at = (id) => document.getElementById(id);
const content = JSON.parse(at("p-content").textContent);
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const state = { way: 0, point: 0, site: 0, head: 0, sentence: 0, kept: {}, now: null, whole: null };
const attention = content.sites.filter((site) => !site.is_neurons);
const neurons = content.sites.filter((site) => site.is_neurons);

const made = (name, attributes, ...inner) => {
  const found = document.createElement(name);
  Object.entries(attributes || {}).forEach(([key, value]) => {
    if (key === "text") found.textContent = value;
    else if (value !== null && value !== undefined && value !== false) found.setAttribute(key, value === true ? "" : value);
  });
  found.append(...inner);
  return found;
};
const drawn = (name, attributes, ...inner) => {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes || {}).forEach(([key, value]) => {
    if (key === "text") found.textContent = value; else found.setAttribute(key, value);
  });
  found.append(...inner);
  return found;
};
const filled = (id, ...inner) => at(id).replaceChildren(...inner);

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (name) => style(name).split(" ").map(Number);
const nothing = (x) => x === null || x === undefined;
const short = (x) => (nothing(x) ? "–" : Number(x.toPrecision(3)).toString());
const signed = (x) => (x > 0 ? "+" : "") + short(x);
const count = (x) => (x >= 1e9 ? `${(x / 1e9).toPrecision(3)}\u00a0G` : x >= 1e6 ? `${(x / 1e6).toPrecision(3)}\u00a0M` : x.toLocaleString("en"));
const percent = (x, digits = 0) => `${(100 * x).toFixed(digits)}\u00a0%`;
const metricOf = (way) => (way && way.metric) || content.metric || "score";
const inPercent = (metric) => ["accuracy", "f1", "agreement"].includes(metric);
const scored = (x, metric) => (nothing(x) ? "–" : inPercent(metric) ? percent(x, 1) : short(x));
const lost = (whole, now) => (content.less_is_better ? now - whole : whole - now);
const isKept = (site, head) => (state.kept[site.id] || "")[head] === "1";
const nameOf = (site, head) => `${site.id}:${head}`;

function contrast(a, b) { // WCAG 2
  const light = (color) => color.map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
}
