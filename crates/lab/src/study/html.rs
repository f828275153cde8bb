//! A report on one page: the table and the plots. The page needs nothing else: no network, no
//! script, no font. It follows the reader's choice of light and dark, prints in light, and its
//! plots stand below each other on a narrow screen, where each name of the table has a line of its
//! own above its figures.

use std::fmt::Write as _;

use super::{Plot, Report, Verdict};

/// Colours and layout. The six colours of curves differ in lightness as well, and the curves in
/// dashes.
const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1c1f23;--soft:#5b6470;--grid:#e3e6ea;--good:#1a7f37;--bad:#b42318;\
--c0:#1f5fbf;--c1:#c2570c;--c2:#1b7f4b;--c3:#8250df;--c4:#b02a6b;--c5:#0e7490}\
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e8eb;--soft:#a0a8b2;--grid:#30363d;--good:#4ac26b;\
--bad:#ff8a80;--c0:#6ea8fe;--c1:#f5a25d;--c2:#4ac38a;--c3:#c4a1ff;--c4:#f58ab8;--c5:#3cc8de}}\
@media print{:root{color-scheme:light;--paper:#fff;--ink:#000;--soft:#444;--grid:#ccc;--good:#1a7f37;--bad:#b42318;\
--c0:#1f5fbf;--c1:#c2570c;--c2:#1b7f4b;--c3:#8250df;--c4:#b02a6b;--c5:#0e7490}body{max-width:none}}\
*{box-sizing:border-box}\
body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem;line-height:1.2;margin:.5rem 0}p{max-width:48rem}\
code{font:.9em ui-monospace,monospace;overflow-wrap:anywhere}.soft{color:var(--soft)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}\
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}\
th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal;min-width:12rem}\
th:last-child,td:last-child{text-align:left}\
@media (max-width:34rem){tr{display:grid;grid-template-columns:repeat(4,1fr);border-bottom:1px solid var(--grid)}\
th,td{border:0;white-space:normal;padding:.1rem .3rem}\
thead th:first-child{display:none}td:first-child{grid-column:1/-1;min-width:0}}\
.good{color:var(--good)}.bad{color:var(--bad);font-weight:600}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,25rem),1fr));gap:1.5rem;margin-top:1.5rem}\
figure{margin:0;break-inside:avoid;min-width:0}figcaption{font-weight:600;margin-bottom:.3rem}\
figure>svg{width:100%;height:auto;display:block}\
svg text{fill:var(--ink);font:12px system-ui,sans-serif}\
.grid{stroke:var(--grid)}.axis,.range{stroke:var(--ink)}.frame{fill:none;stroke:var(--grid)}\
.line{fill:none;stroke-width:2}\
.d0{stroke:var(--c0)}.d1{stroke:var(--c1);stroke-dasharray:7 3}.d2{stroke:var(--c2);stroke-dasharray:2 2}\
.d3{stroke:var(--c3);stroke-dasharray:8 2 2 2}.d4{stroke:var(--c4);stroke-dasharray:12 3}\
.d5{stroke:var(--c5);stroke-dasharray:4 4}\
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{fill:var(--c5)}\
.legend{list-style:none;margin:.3rem 0 0;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.85rem}\
.legend svg{width:1.6rem;height:.5rem;margin-right:.35rem}";

/// Text as HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(c),
        }
    }
    out
}

/// The page: title, what the study does, the command that makes the page, table, plots.
pub fn page(title: &str, about: &str, command: &str, report: &Report, plots: &[Plot]) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>{0}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n<p>{1}</p>\n<p class=\"soft\"><code>{2}</code><br>{3}.</p>\n",
        escape(title),
        escape(about),
        escape(command),
        escape(&report.summary())
    );
    let [against, figure] = report.headings;
    let _ = writeln!(
        out,
        "<div class=\"wide\"><table>\n<thead><tr><th></th><th>{against}</th><th>{figure}</th><th>spread</th><th>verdict</th></tr></thead>\n<tbody>"
    );
    for row in &report.rows {
        let class = match row.verdict {
            Verdict::Agrees | Verdict::Shape => "good",
            Verdict::Differs => "bad",
            Verdict::None => "soft",
        };
        let source = if row.source.is_empty() { String::new() } else { format!(" title=\"{}\"", escape(&row.source)) };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td{source}>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>",
            escape(&row.name),
            escape(&row.published()),
            escape(&row.mean()),
            escape(&row.spread()).replace("+-", "±"),
            escape(&row.verdict())
        );
    }
    out.push_str("</tbody></table></div>\n<div class=\"plots\">\n");
    plots.iter().for_each(|plot| out.push_str(&plot.svg()));
    out.push_str("</div>\n</body>\n</html>\n");
    out
}
