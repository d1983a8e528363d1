// ---- what the model answers before and after
const label = (number) => (content.labels[number] === undefined ? String(number) : content.labels[number]);
const verdicts = { right: ["now right", "now-right"], wrong: ["now wrong", "now-wrong"], changed: ["changed", "changed"], same: ["same", "same"] };

function verdict(example, before, after) {
  if (before === after) return "same";
  if (nothing(example.label)) return "changed";
  return after === example.label ? "right" : before === example.label ? "wrong" : "changed";
}

function meter(before, after) { // of two classes: left is the first, right the second
  const box = made("span", { class: "p-meter", role: "img", "aria-label": `share of ${label(1)}: ${percent(before)} with the whole model, ${percent(after)} now` }, made("u"), made("i"));
  box.firstChild.style.left = `${100 * before}%`;
  box.lastChild.style.left = `${100 * after}%`;
  return box;
}
const wordsTold = (words) => words.slice(0, 4).map(([word, share]) => `${word.trim() || "␣"} ${percent(share)}`).join(", ");

function row(number) {
  const [whole, now] = [content.ways[state.way].points[0], content.ways[state.way].points[state.point]];
  const example = content.examples[number], said = verdict(example, whole.chosen[number], now.chosen[number]);
  const [told, name] = verdicts[said];
  const text = made("span", { class: "text", text: example.text });
  if (content.answers === "words") {
    return made("li", {}, text, made("span", { class: "said", text: `before: ${wordsTold(whole.words[number])}` }),
      made("span", { class: "said", text: `now: ${wordsTold(now.words[number])}` }), made("span", { class: name, text: said === "same" ? "same word" : told === "changed" ? "another word" : told }));
  }
  if (!nothing(example.label)) text.append(" ", made("span", { class: "label", text: `(${label(example.label)})` }));
  const shown = content.labels.length === 2 ? meter(whole.answers[number], now.answers[number])
    : made("span", { class: "said", text: `${label(whole.chosen[number])} ${percent(whole.answers[number])} → ${label(now.chosen[number])} ${percent(now.answers[number])}` });
  return made("li", {}, text, shown, made("span", { class: name, text: told }));
}

function paintExamples() {
  const way = content.ways[state.way];
  const usable = content.examples.length > 0 && way && way.points.every((point) => point.chosen.length === content.examples.length);
  at("p-examples").hidden = !usable;
  if (!usable) return;
  const [whole, now] = [way.points[0], way.points[state.point]];
  ["p-sample", "p-flips"].forEach((id) => at(id).classList.toggle("words", content.answers === "words"));
  const every = content.examples.map((_, number) => number);
  const sample = every.filter((number) => content.examples[number].sampled);
  const flips = every.filter((number) => whole.chosen[number] !== now.chosen[number]);
  const tally = (kind) => flips.filter((number) => verdict(content.examples[number], whole.chosen[number], now.chosen[number]) === kind).length;
  at("p-sample-hint").textContent = `${sample.length} of ${content.data}, drawn before any answer was known.${
    content.labels.length === 2 && content.answers === "classes" ? ` ○ is the whole model, | this one; left ${label(0)}, right ${label(1)}; in brackets the right answer.` : ""}`;
  filled("p-sample", ...sample.map(row));
  const known = !content.examples.every((example) => nothing(example.label));
  at("p-flips-hint").textContent = flips.length
    ? `${flips.length} of ${every.length} answers are not the whole model's${known ? `: ${tally("wrong")} were right and are wrong now, ${tally("right")} were wrong and are right now` : ""}. These were picked because they changed; the sample above was not.`
    : `None of ${every.length} answers differs from the whole model's.`;
  filled("p-flips", ...flips.map(row));
}
