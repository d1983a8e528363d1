"""docs/papers/decisions.md: where a preset does what its paper did, where not, and what all of it costs. For
papers_build.py."""

from __future__ import annotations

from headprune.lab.experiments.estimate import estimate, known_times
from headprune.lab.experiments.expand import trials_of
from headprune.lab.experiments.library import all_presets

NOTE = "<!-- Written by `make docs` from the presets and stored times; edit docs/decisions_page.py instead. -->"
HOW = (
    "How the presets repeat the four papers, table by table: what is theirs by name, what stands beside it, and what "
    "cannot be had at a size for two cores. The presets themselves say the rest (`headprune run --show NAME`)."
)
DECISIONS = (
    (
        "Michel, Tables 1, 2 and 5",
        "Significance by compare-mt's bootstrap (half of the sentences drawn, one minus the share of wins), "
        "as the paper has it; ours (all drawn, two-sided) beside it, in every ablation.",
    ),
    (
        "Michel, Tables 2 and 5",
        "One trial: the heads chosen on dev sentences are told there (Table 2) and on the test set, where "
        "only the chosen ones are tried (Table 5).",
    ),
    (
        "Michel, Tables 3 and 6",
        '"None significant" by the t-test is the statement. That no layer loses more than a point is our '
        "reading: the paper's worst loses 0.96 points.",
    ),
    (
        "Michel, Figure 2",
        "The claim is r > 0.5, as in the text. The second domain of translation is captions written "
        "carelessly (lower case, no commas, typing errors), because MTNT is noisy text and a model of "
        "captions can do it; CoLA in and out of domain for MNLI matched and mismatched.",
    ),
    (
        "Michel, Figures 1, 5 and 6",
        "The printed values are beside ours: Table 1's range, BLEU by epoch, how far the text says that "
        'curves go. "Noticeable" is half a point of BLEU, a point of accuracy or a twentieth of the score: '
        "our reading.",
    ),
    (
        "Voita, Figures 7 to 10, Table 2",
        "Their gates are a weight λ, Glorot's start and no freezing. The paper gives no λ: ours are swept. "
        "Ours (a target, initial value 2, frozen at 70 % of the steps) stand beside them. Gates learn at 0.05 "
        "at the small size, because there are hundreds of steps and not tens of thousands.",
    ),
    (
        "Voita, the second corpus",
        "Help sentences of LibreOffice stand in for subtitles: short and of one kind, but nobody speaks so. "
        "No spoken corpus comes in a package.",
    ),
    (
        "Voita, sections 4 and 5",
        "The accuracies of the paper's Table 1 are beside ours; it prints none for confidence or relevance.",
    ),
    (
        "Budhraja, Tables 1 to 3",
        "All five shares of Table 2 and all four of Table 3; of Table 1 five of eight (25, 50, 58, 75 and "
        "87.5 %), one language pair, and the whole model tuned as long. One or two epochs of tuning for "
        "thirty.",
    ),
    (
        "Budhraja, Tables 4 and 5",
        "SST-2 in full; CoLA, MRPC and SNLI stand in for MNLI, QQP and QNLI, without the paper's values "
        "beside them: two shares of Table 4, and of Table 5 what the rule of 14 of 16 compares, which makes 8 "
        "pairs of six layers.",
    ),
    (
        "Budhraja, text",
        "The rule of 10 % is tested on the layers of Tables 5 and 6, 14 of 16 on the pairs of Table 5.",
    ),
    (
        "Shim, Tables 1 and 2",
        "By words (Penn Treebank, 10,000 different ones) and by letters (books): two models, two data sets.",
    ),
    (
        "Shim, Table 3",
        "At one λ the rows keep different numbers of heads. As the paper has it, and again with half of the "
        "heads in every row.",
    ),
    (
        "Shim, Figure 3 and export",
        "The exported model's speed against the whole one's, interleaved, with a control; the paper prints none.",
    ),
    (
        "Typed values",
        "The heads of Shim's Table 2 are of 96, and Voita's Figure 6 has the two digits that are printed.",
    ),
    (
        "At the papers' size",
        "Every preset but Budhraja's grid of learning rates has statements there, too. Data are read in the "
        "papers' formats, models are built at their true size (`run --check`); nothing was trained there.",
    ),
    (
        "Cheaper",
        "Six epochs for a translation model, two for a classifier, 1,500 steps for a language model; 200 to "
        "500 sentences for what is translated 72 times; a translation ends at twice its own source and ten "
        "tokens.",
    ),
)


def decisions_page() -> str:
    planned = {
        preset.name: trials_of(preset, "small", dict.fromkeys(preset.scale("small").inputs, ""), [1, 2, 3])
        for preset in all_presets()
    }
    found = estimate(planned, set(), 2, known_times())
    parts = [NOTE, "# What is the papers', and what is not", "", HOW, "", "| of | decided |", "| --- | --- |"]
    parts += [f"| {of} | {told} |" for of, told in DECISIONS]
    parts += [
        "", "## What it costs", "",
        f"All presets with three seeds are {found.trials} trials: {found.hours:.1f} hours of one thread, "
        f"{found.wall:.1f} hours on two cores, by the times that are stored today ({found.like} trials were measured "
        f"as they are, {found.kind_only} are taken for their kind; `headprune run --all --estimate`). A trial that "
        "presets share counts for the first, so that an addition costs what stands in its row.",
        "", "| preset | hours of one thread |", "| --- | --- |",
    ]  # fmt: skip
    parts += [f"| {name} | {seconds / 3600:.2f} |" for name, seconds in found.seconds.items()]
    return "\n".join(parts) + "\n"
