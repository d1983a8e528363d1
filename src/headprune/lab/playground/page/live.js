// ---- a page that its own server answers: type a sentence, take heads away, save what is left
let asking = 0;

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

async function ask(change) {
  asking += 1;
  const mine = asking;
  at("p-told").className = ""; at("p-told").textContent = "asking…";
  try {
    const found = await post("ask", { text: at("p-text").value, kept: state.kept, ...change });
    if (mine === asking) shown(found);
  } catch (error) { told(error.message); }
}

function told(message) { at("p-told").className = "wrong"; at("p-told").textContent = message; }

function shown(found) {
  content.ways = [{ name: "live", axis: "heads", points: [found.whole, found.now] }];
  content.sentences = found.sentence ? [found.sentence] : [];
  state.way = 0; state.point = 1;
  at("p-told").textContent = found.told;
  if (found.label) { at("p-at").textContent = found.label; at("p-slider").setAttribute("aria-valuetext", found.label); }
  const label = at("p-at").textContent;
  paint();
  at("p-at").textContent = label;
  at("p-said").hidden = !found.answers.length;
  filled("p-answers", ...found.answers.map((one) => made("div", {}, made("h3", { text: one.name }),
    made("dl", { class: "p-bars" }, ...one.shares.map(([name, share]) => {
      const track = made("dd", { class: "track" }, made("span", { class: "fill" }));
      track.firstChild.style.width = `${100 * share}%`;
      return made("div", {}, made("dt", { text: name.trim() || "␣" }), track, made("dd", { text: percent(share, 1) }));
    })))));
  paintToggle();
}

const chosenName = () => nameOf(attention[state.site], state.head);
function paintToggle() {
  at("p-toggle").textContent = isKept(attention[state.site], state.head) ? `Remove ${chosenName()}` : `Put ${chosenName()} back`;
}

function startLive() {
  const { live } = content;
  state.kept = live.kept;
  at("p-form").hidden = at("p-save").hidden = false;
  at("p-curves").hidden = true;
  at("p-text").value = live.text;
  at("p-out").textContent = live.out;
  const toggle = made("button", { type: "button", class: "plain", id: "p-toggle" });
  at("p-head").after(toggle);
  toggle.addEventListener("click", () => ask({ toggle: chosenName() }));
  at("p-map-hint").textContent += " Press x, or click twice, to remove the head or put it back.";
  at("p-map").addEventListener("keydown", (event) => { if (event.key === "x") ask({ toggle: chosenName() }); });
  at("p-map").addEventListener("dblclick", (event) => { if (event.target.tagName === "BUTTON") ask({ toggle: chosenName() }); });
  at("p-map").addEventListener("click", paintToggle);
  at("p-map").addEventListener("focusin", paintToggle);
  at("p-map").addEventListener("keyup", paintToggle);
  at("p-form").addEventListener("submit", (event) => { event.preventDefault(); ask({}); });
  at("p-save").addEventListener("submit", async (event) => {
    event.preventDefault();
    at("p-told").className = ""; at("p-told").textContent = "saving…";
    try { at("p-told").textContent = (await post("save", { name: at("p-name").value, kept: state.kept })).told; }
    catch (error) { told(error.message); }
  });
  const slid = () => ask({ way: Number(at("p-way").value), step: Number(at("p-slider").value) });
  const opened = () => {
    const way = live.ways[Number(at("p-way").value)];
    at("p-slider").max = way.steps; at("p-slider").value = 0;
  };
  filled("p-way", ...live.ways.map((way, number) => made("option", { value: number, text: way.name })));
  at("p-way").disabled = live.ways.length < 2;
  at("p-way").addEventListener("change", () => { opened(); slid(); });
  at("p-slider").addEventListener("change", slid);
  opened(); ask({});
}
