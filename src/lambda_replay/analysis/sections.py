"""The parts of the report as HTML; words and digits come from wording.py, looks from report.css."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np

from lambda_replay.analysis import divergence, wording
from lambda_replay.analysis.graphics import Domain, interval_bar, padded, run_strip, scale, swatch
from lambda_replay.analysis.pairs import Pair
from lambda_replay.analysis.palette import ArmStyle
from lambda_replay.analysis.statistics import Estimate, MedianTime
from lambda_replay.analysis.summary import AXES, ArmAggregate, ArmSummary, EnvironmentSummary, StudySummary
from lambda_replay.config import environment_directory

Styles = Mapping[str, ArmStyle]
PROBABILITIES: Domain = (-0.06, 1.06)
SIGNS: Mapping[wording.Verdict, str] = {"above": "▲", "below": "▼"}


def header(summary: StudySummary) -> str:
    """Name, size and state of the study."""
    study = summary.study
    facts = [
        wording.count(len(study.environments), "environment"),
        wording.count(len(study.arms), "arm"),
        wording.count(len(study.seeds), "seed"),
        f"{'' if study.has_one_length else 'up to '}{study.steps:,} steps per run",
        f"baseline <b>{escape(study.baseline)}</b>",
    ]
    return f"""<header>
<p class="eyebrow">lambda-replay study</p>
<h1>{escape(study.name)}</h1>
<p class="facts">{" · ".join(facts)}</p>
{_state(summary)}
{_divergence(summary)}
{_differences(summary)}
</header>"""


def summary_section(summary: StudySummary, styles: Styles) -> str:
    """Who wins where, by how much and how surely: sentences, then one table."""
    sentences = " ".join(wording.overall_sentences(summary))
    findings = [
        f'<li><span class="where">{escape(environment.environment)}:</span> '
        f"{wording.environment_sentence(environment, summary.study.baseline)}</li>"
        for environment in summary.environments
    ]
    return f"""<section id="summary">
<h2>Summary</h2>
<p class="lead">{sentences}</p>
<ul class="findings">
{lines(findings)}
</ul>
{_score_table(summary, styles)}
<p class="note">Mean final score ± standard error over runs; bold is the highest of its column. ▲ and ▼: the 95%
interval of the difference from {escape(summary.study.baseline)} lies wholly above or below zero.
{wording.chance_sentence(summary)}</p>
</section>"""


def aggregate_section(summary: StudySummary, styles: Styles) -> str:
    """The arms over all environments together; empty until one arm has a finished run everywhere."""
    if not summary.aggregates:
        return ""
    means = [result.interquartile_mean for result in summary.aggregates]
    domain = padded(np.array([0.0, 1.0, *(end for mean in means for end in (mean.value, mean.low, mean.high))]))
    rows = [_aggregate_row(result, styles[result.arm], summary.study.baseline, domain) for result in summary.aggregates]
    baseline = escape(summary.study.baseline)
    return f"""<section id="aggregate">
<h2>All environments together</h2>
<p class="note">Scores are normalised within each environment: 0 is random play, 1 is the mean of the best arm. The
interquartile mean is the mean of the middle half of all runs. The probability is that of a run of the arm scoring
higher than a run of {baseline} in the same environment; 0.5 is a draw. Bars are 95% bootstrap intervals.</p>
{_scroller("All environments together")}<table class="aggregate">
<thead><tr><th scope="col">Arm</th><th scope="col" colspan="2">Interquartile mean</th>
<th scope="col" colspan="2">Better than {baseline}</th></tr></thead>
<tbody>
{lines(rows)}
</tbody>
<tfoot><tr><td></td><td class="graphic">{scale((0.0, 0.5, 1.0), domain)}</td><td></td>
<td class="graphic">{scale((0.0, 0.5, 1.0), PROBABILITIES)}</td><td></td></tr></tfoot>
</table></div>
{_not_aggregated(summary)}
{_note(divergence.aggregate_sentence(summary))}
{_note(wording.unlearnt_sentence(summary))}
{file_links("aggregate")}
</section>"""


def files_of_all(summary: StudySummary) -> str:
    """Links to the figures that show every environment."""
    axes = [axis for axis in AXES if sum(environment.has_curves(axis) for environment in summary.environments) > 1]
    return file_links(*(f"all-{axis}" for axis in axes))


def pairs_section(pairs: Sequence[Pair], styles: Styles) -> str:
    """Every arm against every other over all environments; empty with fewer than three arms, which say it above."""
    if len(pairs) < 3:
        return ""
    chances = {(pair.arm, pair.other): pair.probability for pair in pairs}
    chances |= {(other, arm): chance.complement for (arm, other), chance in chances.items()}
    arms = list(dict.fromkeys(arm for arm, _ in chances))
    is_marked = all(pair.is_enough for pair in pairs)
    columns = "".join(f'<th scope="col">{_name(arm, styles[arm])}</th>' for arm in arms)
    rows = [
        f'<tr><th scope="row">{_name(arm, styles[arm])}</th>'
        + "".join(_pair_cell(arm, other, chances.get((arm, other)), is_marked=is_marked) for other in arms)
        + "</tr>"
        for arm in arms
    ]
    return f"""<section id="pairs">
<h2>Every pair of arms</h2>
<p class="note">The probability that a run of the row’s arm scores higher than a run of the column’s in the same
environment, averaged over environments; arms stand in the order of their interquartile means. Below it stands the 95%
bootstrap interval. {wording.pair_marks(len(pairs), is_marked=is_marked)}</p>
{_scroller("Every pair of arms")}<table class="pairs">
<thead><tr><th scope="col">Arm</th>{columns}</tr></thead>
<tbody>
{lines(rows)}
</tbody></table></div>
<p class="files">Table, also of each environment <a href="figures/pairs.csv">CSV</a></p>
</section>"""


def toolbar(summary: StudySummary, styles: Styles) -> str:
    """Buttons for the horizontal axis and for each arm."""
    timed = any(environment.has_curves("hours") for environment in summary.environments)
    arms = [
        f'<button type="button" class="arm" data-arm="{index}" aria-pressed="true">{_name(arm, styles[arm])}</button>'
        for index, arm in enumerate(summary.study.arms)
    ]
    return f"""<div class="toolbar">
<div class="switch" role="group" aria-label="Horizontal axis">
<button type="button" data-axis="steps" aria-pressed="true">Steps</button>
<button type="button" data-axis="hours" aria-pressed="false"{"" if timed else " disabled"}>Time</button>
</div>
<div class="arms" role="group" aria-label="Arms shown">
{lines(arms)}
<button type="button" class="everything" disabled>Show all</button>
</div>
</div>"""


def panel(summary: StudySummary, index: int, styles: Styles) -> str:
    """One environment: the place for its chart, which report.js draws, and its table."""
    environment, baseline = summary.environments[index], escape(summary.study.baseline)
    name = environment_directory(environment.environment)
    threshold = wording.number(environment.threshold, wording.decimals_of(environment))
    rows = [_arm_row(arm, environment, styles[arm.arm]) for arm in environment.arms]
    figures = [f"{name}-{axis}" for axis in environment.grids if environment.has_curves(axis)]
    return f"""<section class="panel" id="{escape(name)}">
<h3>{escape(environment.environment)}</h3>
<div class="chart" data-environment="{index}">
<div class="plot" tabindex="0" role="slider" aria-label="Learning curves of {escape(environment.environment)}"
 aria-valuemin="0" aria-valuemax="0" aria-valuenow="0"></div>
<div class="readout" hidden></div>
</div>
{_scroller(f"Numbers of {environment.environment}")}<table>
<thead><tr><th scope="col">Arm</th><th scope="col">Final score</th><th scope="col" class="graphic">Its runs</th>
<th scope="col">Difference from {baseline}</th><th scope="col">Better with probability</th>
<th scope="col">Mean over training</th>
<th scope="col">Steps to {threshold}</th><th scope="col">Time to {threshold}</th></tr></thead>
<tbody>
{lines(rows)}
</tbody></table></div>
{file_links(*figures)}
</section>"""


def method_section(summary: StudySummary) -> str:
    """How the numbers are made."""
    method = [*([divergence.METHOD] if summary.num_diverged else []), *wording.method(summary)]
    items = [f"<dt>{term}</dt><dd>{text}</dd>" for term, text in method]
    return f"""<section id="method">
<h2>How the numbers are made</h2>
<dl class="method">
{lines(items)}
</dl>
</section>"""


def file_links(*names: str) -> str:
    """Links to the files that plots.py wrote beside the report."""
    links = [
        " ".join(f'<a href="figures/{escape(name)}.{kind}">{label}</a>' for kind, label in _FILE_KINDS)
        for name in names
    ]
    words = [f"over {name.rpartition('-')[2]}: " if len(names) > 1 else "" for name in names]
    texts = [escape(word) + link for word, link in zip(words, links, strict=True)]
    return f'<p class="files">Figure {" · ".join(texts)}</p>' if names else ""


def lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)


_FILE_KINDS = (("png", "PNG"), ("pdf", "PDF"), ("csv", "CSV"))


def _state(summary: StudySummary) -> str:
    sentences = " ".join(wording.state_sentences(summary))
    total = len(summary.study.runs)
    if summary.is_complete:
        return f'<p class="facts">{sentences}</p>'
    bar = f'<progress value="{summary.num_finished}" max="{total}" aria-label="Finished runs"></progress>'
    return f'<div class="callout">{bar}<p>{sentences}</p></div>'


def _divergence(summary: StudySummary) -> str:
    """What must be known before any number is read: which arms lost runs."""
    sentence = divergence.study_sentence(summary)
    if not sentence:
        return ""
    items = [f"<li>{item}</li>" for item in divergence.arm_items(summary)]
    return f"""<div class="callout warning"><p><b>{sentence}</b></p>
<ul>
{lines(items)}
</ul></div>"""


def _differences(summary: StudySummary) -> str:
    sentences = " ".join(wording.provenance_sentences(summary))
    return f'<div class="callout"><p>{escape(sentences)}</p></div>' if sentences else ""


def _name(arm: str, style: ArmStyle) -> str:
    return f"{swatch(style)}{escape(arm)}"


def _scroller(label: str) -> str:
    """The beginning of a part that scrolls sideways where it is too wide; the Tab key reaches it in every browser."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">'


def _score_table(summary: StudySummary, styles: Styles) -> str:
    columns = [f'<th scope="col">{escape(env.environment).replace("/", "/<wbr>")}</th>' for env in summary.environments]
    rows = [
        f'<tr><th scope="row">{_name(arm, styles[arm])}</th>'
        + "".join(_score_cell(environment.arm(arm), environment) for environment in summary.environments)
        + "</tr>"
        for arm in summary.study.arms
    ]
    return f"""{_scroller("Final scores")}<table>
<thead><tr><th scope="col">Arm</th>{"".join(columns)}</tr></thead>
<tbody>
{lines(rows)}
</tbody></table></div>"""


def _score_cell(arm: ArmSummary, environment: EnvironmentSummary) -> str:
    finished, planned = len(arm.final_scores), len(arm.runs)
    if arm.is_lost:
        return f'<td class="lost">diverged{_small(divergence.share(arm))}</td>'
    if not finished:
        return f'<td class="absent">not yet{_small(divergence.note(arm))}</td>'
    text = wording.mean_and_error(arm.final, wording.decimals_of(environment))
    if environment.best is arm:
        text = f"<b>{text}</b>"
    lost = f", {arm.num_diverged} diverged" if arm.num_diverged else ""
    part = f"{finished} of {planned} runs{lost}" if finished < planned else ""
    return f"<td>{text}{_mark(arm)}{_small(part)}</td>"


def _pair_cell(arm: str, other: str, chance: Estimate | None, *, is_marked: bool) -> str:
    if chance is None:
        return '<td class="absent"></td>'
    number = wording.number(chance.value, 2)
    mark = _sign(wording.verdict(chance, 0.5) if is_marked else "unknown", escape(other))
    title = f"{escape(arm)} against {escape(other)}"
    return f'<td title="{title}">{number}{mark}{_small_interval(chance, 2)}</td>'


def _mark(arm: ArmSummary) -> str:
    comparison = arm.comparison
    return _sign("unknown" if comparison is None else wording.verdict(comparison.difference, 0.0), "the baseline")


def _sign(kind: wording.Verdict, other: str) -> str:
    """A sign with room kept for it where there is none, so that numbers stay in line."""
    sign = SIGNS.get(kind, "")
    meaning = f"clearly {kind} {other}"
    words = f' role="img" aria-label="{meaning}" title="{meaning}"' if sign else ""
    return f'<span class="mark {kind}"{words}>{sign}</span>'


def _aggregate_row(result: ArmAggregate, style: ArmStyle, baseline: str, domain: Domain) -> str:
    mean, chance = result.interquartile_mean, result.probability
    cells = f'<td class="graphic">{interval_bar(mean, style, domain)}</td><td>{_with_interval(mean, 2)}</td>'
    if chance is None:
        cells += f'<td class="graphic"></td><td class="absent">{"baseline" if result.arm == baseline else "–"}</td>'
    else:
        bar = interval_bar(chance, style, PROBABILITIES, reference=0.5)
        cells += f'<td class="graphic">{bar}</td><td>{_with_interval(chance, 2)}</td>'
    return f'<tr><th scope="row">{_name(result.arm, style)}</th>{cells}</tr>'


def _not_aggregated(summary: StudySummary) -> str:
    ready = {result.arm for result in summary.aggregates}
    absent = [arm for arm in summary.study.arms if arm not in ready]
    if not absent:
        return ""
    names = wording.listed([wording.bold(arm) for arm in absent])
    return _note(f"Not here, for want of a finished run in every environment: {names}.")


def _note(sentence: str) -> str:
    return f'<p class="note">{sentence}</p>' if sentence else ""


def _arm_row(arm: ArmSummary, environment: EnvironmentSummary, style: ArmStyle) -> str:
    digits = wording.decimals_of(environment)
    domain = padded(np.concatenate([other.final_scores for other in environment.arms]))
    cells = [
        wording.mean_and_error(arm.final, digits) + _small(divergence.note(arm)),
        run_strip(arm.final_scores, style, domain),
        *_comparison_cells(arm, digits),
        wording.mean_and_error(arm.area, digits),
        _median(wording.steps(arm.to_threshold["steps"].median), arm.to_threshold["steps"]),
        _median(wording.hours(arm.to_threshold["hours"].median), arm.to_threshold["hours"]),
    ]
    kinds = ["", ' class="graphic"', "", "", "", "", ""]
    columns = "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=True))
    return f'<tr><th scope="row">{_name(arm.arm, style)}</th>{columns}</tr>'


def _comparison_cells(arm: ArmSummary, digits: int) -> tuple[str, str]:
    if arm.comparison is None:
        return (wording.UNKNOWN, wording.UNKNOWN)
    difference, probability = arm.comparison.difference, arm.comparison.probability
    amount = f"{wording.signed(difference.value, digits)}{_mark(arm)}"
    return (amount + _small_interval(difference, digits), _with_interval(probability, 2))


def _median(text: str, time: MedianTime) -> str:
    return f"{text}<small>{wording.share(time)}</small>"


def _small(text: str) -> str:
    return f"<small>{text}</small>" if text else ""


def _with_interval(estimate: Estimate, digits: int) -> str:
    return wording.number(estimate.value, digits) + _small_interval(estimate, digits)


def _small_interval(estimate: Estimate, digits: int) -> str:
    return f"<small>{wording.interval(estimate, digits)}</small>" if estimate.has_interval else ""
