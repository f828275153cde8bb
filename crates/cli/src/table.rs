//! Tables as `zpool` and `zfs` print them: columns two blanks apart, numbers to the right; or tabs
//! without headers for scripts (`-H`).

/// A column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its header.
    pub header: String,
    /// Values are right-aligned.
    pub right: bool,
    /// It is at least this wide.
    pub width: usize,
    /// It grows with its values; in a fixed one, long values push the next columns to the right.
    pub grows: bool,
}

impl Column {
    /// Left-aligned text that grows with its values.
    pub fn text(header: &str) -> Column {
        Column { header: header.to_string(), right: false, width: 0, grows: true }
    }
    /// A number of at most five characters.
    pub fn number(header: &str) -> Column {
        Column { header: header.to_string(), right: true, width: 5, grows: false }
    }
    /// The same column at least `width` wide.
    pub fn wide(mut self, width: usize) -> Column {
        self.width = width;
        self
    }
    /// The same column, growing with its values.
    pub fn growing(mut self) -> Column {
        self.grows = true;
        self
    }
}

/// Characters of `text` on a terminal, one for each.
pub fn width_of(text: &str) -> usize {
    text.chars().count()
}

/// `text` in a field of `width`.
pub fn pad(text: &str, width: usize, right: bool) -> String {
    let blanks = " ".repeat(width.saturating_sub(width_of(text)));
    if right { format!("{blanks}{text}") } else { format!("{text}{blanks}") }
}

/// One line of fields.
pub fn line(columns: &[Column], widths: &[usize], fields: &[String]) -> String {
    let last = columns.len().saturating_sub(1);
    let mut out = String::new();
    for (i, ((column, width), field)) in columns.iter().zip(widths).zip(fields).enumerate() {
        if i > 0 {
            out.push_str("  ");
        }
        // The last column needs no padding.
        let width = if i == last && !column.right { 0 } else { *width };
        out.push_str(&pad(field, width, column.right));
    }
    out.push('\n');
    out
}

/// Widths of columns that hold these rows.
pub fn widths(columns: &[Column], rows: &[Vec<String>]) -> Vec<usize> {
    let of = |i: usize, c: &Column| {
        let own = c.width.max(width_of(&c.header));
        let values = rows.iter().filter(|_| c.grows).filter_map(|r| r.get(i)).map(|f| width_of(f));
        values.max().unwrap_or(0).max(own)
    };
    columns.iter().enumerate().map(|(i, c)| of(i, c)).collect()
}

/// Rows separated by tabs.
pub fn scripted(rows: &[Vec<String>]) -> String {
    rows.iter().map(|r| r.join("\t") + "\n").collect()
}

/// A whole table with its header.
pub fn table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let widths = widths(columns, rows);
    let header: Vec<String> = columns.iter().map(|c| c.header.clone()).collect();
    let mut out = line(columns, &widths, &header);
    rows.iter().for_each(|r| out.push_str(&line(columns, &widths, r)));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_two_blanks_apart() {
        let columns = [Column::text("NAME"), Column::number("USED"), Column::text("MOUNTPOINT")];
        let rows = [
            vec!["tank".to_string(), "27.8M".into(), "/mnt/tank".into()],
            vec!["tank/ä".into(), "1234567".into(), "-".into()],
        ];
        let want = "NAME     USED  MOUNTPOINT\ntank    27.8M  /mnt/tank\ntank/ä  1234567  -\n";
        assert_eq!(table(&columns, &rows), want);
        assert_eq!(scripted(&rows[..1]), "tank\t27.8M\t/mnt/tank\n");
    }
}
