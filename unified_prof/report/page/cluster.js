// Page of a multi-rank run: findings first, then their evidence.

const oneRank = rankSection();
const first = page.findings.find((one) => one.ranks.length)?.ranks[0] ?? (page.ranks.find((row) => row.steps) ?? page.ranks[0])?.rank;

function choose(rank) {
  oneRank.show(rank);
  announce(`showing rank ${rank}`);
  oneRank.section.scrollIntoView({ block: "nearest" });
}

startPage(null, () => {
  const { run } = page;
  const facts = [run.layout, run.hosts ? `${words.count(run.hosts)} host${run.hosts === 1 ? "" : "s"}` : "", run.devices.slice(0, 3).join(", "),
    run.clock_islands > 1 ? `${words.count(run.clock_islands)} groups of ranks without a common clock` : ""].filter(Boolean);
  const intro = make("header", { class: "intro" }, make("h1", { text: page.title }),
    make("ul", { class: "facts soft" }, ...facts.map((text) => make("li", { text }))));
  oneRank.show(first);
  return [intro, verdictSection(choose), runFigures(), missingRanks(), stepsSection(choose), page.ranks.length ? oneRank.section : null, lanesSection(),
    linksSection(choose), groupsSection(), ranksSection()].filter(Boolean);
});
