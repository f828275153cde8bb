//! `weir nbd`: volumes over NBD.

use admin::request::{NbdList, NbdStart, NbdStop};
use admin::view::NbdView;

use crate::table::{Column, scripted, table};
use crate::zpool::parse_for;
use crate::{Done, Fail, absolute, ask, print};

/// Runs `weir nbd ARGS`.
pub fn run(args: &[String]) -> Done {
    let Some(command) = args.first() else { return Err(Fail::Usage("missing command".into(), "")) };
    match command.as_str() {
        "help" | "--help" | "-h" => crate::help::print_topic("nbd", &[]),
        "start" => start(&args[1..]),
        "stop" => stop(&args[1..]),
        "list" => list(&args[1..]),
        other => Err(Fail::Usage(format!("unrecognized command '{other}'"), "")),
    }
}

/// An address as the daemon takes it: it works in another folder.
fn address(text: &str) -> Result<String, Fail> {
    match text.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(format!("unix:{}", absolute(path)?)),
        _ => Ok(text.to_string()),
    }
}

fn start(args: &[String]) -> Done {
    let long = &[("all", false, 'a'), ("listen", true, 'l'), ("read-only", false, 'r')];
    let p = parse_for("nbd", args, "al:r", long, "")?;
    let all = p.has('a');
    if all != p.operands.is_empty() {
        let why = if all { "too many arguments: -a serves all volumes" } else { "missing name of a volume" };
        return Err(Fail::Usage(why.into(), ""));
    }
    let at = p.value('l').map(address).transpose()?;
    let view: NbdView = ask(&NbdStart { at, names: p.operands.clone(), all, read_only: p.has('r') })?;
    view.uris.iter().for_each(|uri| print(&format!("{uri}\n")));
    Ok(())
}

fn stop(args: &[String]) -> Done {
    let p = parse_for("nbd", args, "f", &[], "")?;
    let at = p.operands.iter().map(|a| address(a)).collect::<Result<Vec<_>, _>>()?;
    let () = ask(&NbdStop { at, force: p.has('f') })?;
    Ok(())
}

fn list(args: &[String]) -> Done {
    let p = parse_for("nbd", args, "Hj", &[("json", false, 'j')], "")?;
    if !p.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into(), ""));
    }
    let all: Vec<NbdView> = ask(&NbdList)?;
    if p.has('j') {
        let text = serde_json::to_string_pretty(&all).map_err(|e| base::Error::invalid(format!("{e}")))?;
        print(&format!("{text}\n"));
    } else {
        print(&text_of(&all, p.has('H')));
    }
    Ok(())
}

fn text_of(all: &[NbdView], script: bool) -> String {
    let row = |v: &NbdView| {
        let mode = if v.read_only { "ro" } else { "rw" };
        let names = if v.all { "all".to_string() } else { v.names.join(",") };
        vec![v.at.clone(), mode.to_string(), v.clients.to_string(), v.faults.to_string(), names]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    if script {
        return scripted(&rows);
    }
    if rows.is_empty() {
        return "no volume is served\n".to_string();
    }
    let columns = [
        Column::text("ADDRESS"),
        Column::text("MODE"),
        Column::number("CLIENTS").growing(),
        Column::number("FAULTS").growing(),
        Column::text("VOLUMES"),
    ];
    let mut out = table(&columns, &rows);
    for v in all {
        if let Some(why) = &v.last_fault {
            out.push_str(&format!("last fault at {}: {why}\n", v.at));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_listed_with_what_went_wrong() {
        let one = NbdView { at: "127.0.0.1:10809".into(), all: true, clients: 12, ..NbdView::default() };
        let other = NbdView {
            at: "unix:/run/weir/nbd.sock".into(),
            read_only: true,
            names: vec!["tank/a".into(), "tank/b@s".into()],
            faults: 1,
            last_fault: Some("the client lost its place".into()),
            ..NbdView::default()
        };
        let want = "\
ADDRESS                  MODE  CLIENTS  FAULTS  VOLUMES
127.0.0.1:10809          rw         12       0  all
unix:/run/weir/nbd.sock  ro          0       1  tank/a,tank/b@s
last fault at unix:/run/weir/nbd.sock: the client lost its place
";
        assert_eq!(text_of(&[one.clone(), other], false), want);
        assert_eq!(text_of(&[one], true), "127.0.0.1:10809\trw\t12\t0\tall\n");
        assert_eq!(text_of(&[], false), "no volume is served\n");
    }
}
