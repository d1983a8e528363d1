// ---- one head: what it does, what is lost without it, and what it looks at on a sentence
function mapOf(sentence, site, head) { // rows of bytes: from each token to each token
  const packed = sentence.maps[site.id], size = sentence.tokens.length;
  if (!packed || !site.kept.includes(head)) return null;
  const bytes = atob(packed), start = site.kept.indexOf(head) * size * size;
  if (bytes.length < start + size * size) return null;
  return sentence.tokens.map((_, row) => sentence.tokens.map((__, column) => bytes.charCodeAt(start + row * size + column) / 255));
}

function paintHead() {
  const site = attention[state.site], head = state.head, rows = [["head", nameOf(site, head)]];
  if (content.worth) rows.push([`worth (${content.worth.name})`, short(worth(site, head))]);
  const functions = content.worth && content.worth.functions[nameOf(site, head)];
  if (functions && functions.length) rows.push(["what it does", functions.join("; ")]);
  const change = content.worth && content.worth.changes[site.id];
  if (change && !nothing(change[head])) rows.push([`${content.metric || "score"} without it alone`, `${signed(inPercent(content.metric) ? 100 * change[head] : change[head])}${inPercent(content.metric) ? " points" : ""}`]);
  const sentence = content.sentences[state.sentence];
  const alone = sentence && sentence.without[site.id];
  if (alone && !nothing(alone[head])) rows.push(["this sentence without it alone", `P(${sentence.of}) ${signed(alone[head])}`]);
  rows.push(["now", isKept(site, head) ? "kept" : "removed"]);
  filled("p-head", ...rows.flatMap(([name, told]) => [made("dt", { text: name }), made("dd", { text: told })]));
  at("p-sentence-row").hidden = content.sentences.length < 2;
  paintAttention(sentence, site, head);
}

function paintAttention(sentence, site, head) {
  const weights = sentence && mapOf(sentence, site, head);
  at("p-attention").hidden = !weights;
  at("p-strongest").textContent = "";
  if (!weights) {
    if (sentence) at("p-strongest").textContent = "This head shows no attention on this sentence.";
    return;
  }
  const { tokens } = sentence, step = 19, wide = 460, left = 150, right = wide - 150, tall = tokens.length * step + 8;
  const svg = drawn("svg", { viewBox: `0 0 ${wide} ${tall}`, "aria-hidden": "true" });
  const blue = style("--link"), y = (row) => 16 + row * step;
  const links = weights.flatMap((row, from) => row.map((weight, to) => ({ from, to, weight }))).filter((link) => link.weight > 0.02);
  links.forEach((link) => svg.append(drawn("line", {
    x1: left + 6, y1: y(link.from) - 4, x2: right - 6, y2: y(link.to) - 4, stroke: blue, "stroke-width": 0.6 + 3.4 * link.weight, opacity: Math.min(1, 0.08 + link.weight),
  }, drawn("title", { text: `${tokens[link.from]} → ${tokens[link.to]}: ${percent(link.weight)}` }))));
  tokens.forEach((token, row) => {
    const word = token.length > 18 ? `${token.slice(0, 17)}…` : token;
    svg.append(drawn("text", { x: left, y: y(row), "text-anchor": "end", text: word }), drawn("text", { x: right, y: y(row), text: word }));
  });
  filled("p-attention", svg);
  at("p-attention").setAttribute("aria-label", `What ${nameOf(site, head)} looks at: each word on the left looks at words on the right`);
  const strongest = links.sort((a, b) => b.weight - a.weight).slice(0, 5);
  at("p-strongest").textContent = `Strongest: ${strongest.map((link) => `${tokens[link.from]} → ${tokens[link.to]} ${percent(link.weight)}`).join(", ")}.`;
}

function buildSentences() {
  filled("p-sentence", ...content.sentences.map((one, number) => made("option", { value: number, text: one.tokens.join(" ").slice(0, 70) })));
  at("p-sentence").addEventListener("change", () => { state.sentence = Number(at("p-sentence").value); paintHead(); });
}
