//! `weir tune`: tunables, at run time.

use admin::request::{Tune, TuneSet};
use admin::tunables::Tunables;
use admin::view::TunableView;

use crate::zpool::parse_for;
use crate::{Done, Fail, ask, print};

/// Runs `weir tune ARGS`.
pub fn run(args: &[String]) -> Done {
    let (command, rest) = match args.first().map(String::as_str) {
        None => ("list", args),
        Some("help") => return crate::help::print_topic("tune", &[]),
        Some(c) if c.starts_with('-') => ("list", args),
        Some(c) => (c, &args[1..]),
    };
    let long = &[("json", false, 'j'), ("save", false, 's'), ("pool", true, 'p')];
    let p = parse_for("tune", rest, "vjsp:", long, "")?;
    let pool = p.value('p').map(str::to_string);
    match command {
        "list" => {
            let all: Vec<TunableView> = ask(&Tune { pool })?;
            let wanted =
                |t: &&TunableView| p.operands.is_empty() || p.operands.iter().any(|o| t.name.contains(o.as_str()));
            let some: Vec<&TunableView> = all.iter().filter(wanted).collect();
            if p.has('j') {
                return json(&some);
            }
            print(&if p.has('v') { long_list(&some) } else { list(&some) });
            Ok(())
        }
        "get" => {
            if p.operands.is_empty() {
                return Err(Fail::Usage("missing name of a tunable".into(), ""));
            }
            let all: Vec<TunableView> = ask(&Tune { pool })?;
            let mut some = Vec::new();
            for name in &p.operands {
                if let Some(value) = Tunables::fixed(name) {
                    print(&format!("{name}={value}\n"));
                    continue;
                }
                let known = admin::tunables::find(name)?;
                some.extend(all.iter().filter(|t| t.name == known.name));
            }
            if p.has('j') {
                return json(&some);
            }
            some.iter().for_each(|t| print(&format!("{}={}\n", t.name, t.value)));
            Ok(())
        }
        "set" => {
            if p.operands.is_empty() {
                return Err(Fail::Usage("missing name=value".into(), ""));
            }
            for assignment in &p.operands {
                let assignment = match &pool {
                    Some(pool) => format!("{pool}:{assignment}"),
                    None => assignment.clone(),
                };
                let () = ask(&TuneSet { assignment, save: p.has('s') })?;
            }
            Ok(())
        }
        other => Err(Fail::Usage(format!("'{other}' is not a command: there are list, get and set"), "")),
    }
}

fn json(some: &[&TunableView]) -> Done {
    let text = serde_json::to_string_pretty(some).map_err(|e| base::Error::invalid(format!("{e}")))?;
    print(&format!("{text}\n"));
    Ok(())
}

fn list(some: &[&TunableView]) -> String {
    let mut out = format!("{:<46} {:>14} {:>14}  {:<8} SOURCE\n", "NAME", "VALUE", "DEFAULT", "UNIT");
    for t in some {
        out.push_str(&format!("{:<46} {:>14} {:>14}  {:<8} {}\n", t.name, t.value, t.default, t.unit, t.source));
    }
    out
}

fn long_list(some: &[&TunableView]) -> String {
    let one = |t: &&TunableView| {
        let unit = if t.unit.is_empty() || t.unit == "word" { String::new() } else { format!(" {}", t.unit) };
        format!(
            "{}={}{unit} ({})\n    {}\n    range {}, default {}, from {}\n",
            t.name, t.value, t.source, t.meaning, t.range, t.default, t.origin
        )
    };
    some.iter().map(one).collect()
}
