// ---- the map of heads: a table of buttons, one of which the tab key reaches
const pressed = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const worth = (site, head) => {
  const row = content.worth && content.worth.values[site.id];
  return row ? row[head] : null;
};
const cell = (row, head) => at("p-map").querySelector(`button[data-site="${row}"][data-head="${head}"]`);

function buildMap() {
  const width = Math.max(1, ...attention.map((site) => site.heads));
  at("p-map").classList.toggle("small", width > 16 || attention.length > 16);
  const top = made("tr", {}, made("td"));
  for (let head = 0; head < width; head += 1) top.append(made("th", { scope: "col", text: head }));
  at("p-map").tHead.replaceChildren(top);
  at("p-map").tBodies[0].replaceChildren(...attention.map((site, row) => {
    const line = made("tr", {}, made("th", { scope: "row", text: site.id }));
    for (let head = 0; head < site.heads; head += 1) {
      line.append(made("td", {}, made("button", { type: "button", "data-site": row, "data-head": head, tabindex: -1 })));
    }
    return line;
  }));
  at("p-map").addEventListener("keydown", (event) => {
    if (event.target.tagName !== "BUTTON" || !pressed[event.key]) return;
    event.preventDefault();
    const [down, right] = pressed[event.key];
    const row = Math.min(Math.max(state.site + down, 0), attention.length - 1);
    chooseHead(row, Math.min(Math.max(state.head + right, 0), attention[row].heads - 1), true);
  });
  at("p-map").addEventListener("click", (event) => {
    if (event.target.tagName === "BUTTON") chooseHead(Number(event.target.dataset.site), Number(event.target.dataset.head), false);
  });
  at("p-map-hint").textContent = `A row is an attention block, a cell a head. Click a cell, or walk with the arrow keys.${
    content.worth ? ` Darker: worth more, by ${content.worth.name}.` : ""} A dashed cell is a head that is gone.`;
  if (content.worth) filled("p-scale", made("span", { text: "worth least" }), made("i", { "aria-hidden": "true" }), made("span", { text: "worth most" }));
}

function paintMap() {
  const all = attention.flatMap((site) => (content.worth ? content.worth.values[site.id] || [] : [])).filter((x) => !nothing(x));
  const low = all.length ? Math.min(...all) : 0, high = all.length ? Math.max(...all) : 1;
  const [pale, full] = [rgb("--low"), rgb("--high")];
  let removed = 0;
  attention.forEach((site, row) => {
    for (let head = 0; head < site.heads; head += 1) {
      const key = cell(row, head), value = worth(site, head), gone = !isKept(site, head);
      const part = nothing(value) || high === low ? (content.worth ? 0 : 1) : (value - low) / (high - low);
      const color = pale.map((x, i) => Math.round(x + (full[i] - x) * part));
      removed += gone ? 1 : 0;
      key.className = `${gone ? "gone" : ""}${row === state.site && head === state.head ? " chosen" : ""}`.trim();
      key.style.background = gone ? "" : `rgb(${color.join(" ")})`;
      key.style.color = gone ? "" : contrast(color, [0, 0, 0]) > contrast(color, [255, 255, 255]) ? "#000" : "#fff";
      key.textContent = gone ? "×" : "";
      const told = nothing(value) ? "" : `, worth ${short(value)}`;
      key.setAttribute("aria-label", `${nameOf(site, head)}${told}${gone ? ", removed" : ""}`);
      key.setAttribute("aria-pressed", row === state.site && head === state.head ? "true" : "false");
      key.tabIndex = row === state.site && head === state.head ? 0 : -1;
    }
  });
  at("p-map").caption.textContent = removed ? `${removed} heads are gone` : "All heads are there";
}

function chooseHead(row, head, focus) {
  state.site = row; state.head = head;
  paintMap(); paintHead();
  if (focus) cell(row, head).focus();
}

function paintNeurons() {
  at("p-neurons-box").hidden = neurons.length === 0;
  filled("p-neurons", ...neurons.map((site) => {
    const left = Number(state.kept[site.id] === undefined ? site.heads : state.kept[site.id]);
    const track = made("dd", { class: "track" }, made("span", { class: "fill" }));
    track.firstChild.style.width = `${(100 * left) / site.heads}%`;
    return made("div", {}, made("dt", { text: site.id }), track, made("dd", { text: `${left.toLocaleString("en")} of ${site.heads.toLocaleString("en")}` }));
  }));
}
