//! Tables and fact lists, aligned by counting characters.

use crate::term::{Paint, clean};

/// Between two columns.
const GAP: &str = "  ";

/// Rows under headings; the last column is not padded. No rows, no table.
pub(crate) fn table(paint: Paint, headings: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| one_line(cell)).collect()).collect();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .chain([headings[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..headings.len()).map(width).collect();
    let line = |cells: &[String]| {
        let last = cells.len().saturating_sub(1);
        let padded = cells.iter().enumerate().map(|(column, cell)| {
            let missing = widths[column].saturating_sub(cell.chars().count());
            if column == last { cell.clone() } else { format!("{cell}{}", " ".repeat(missing)) }
        });
        padded.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    let headings: Vec<_> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    let mut text = paint.dim(&line(&headings));
    for row in &rows {
        text.push('\n');
        text.push_str(&line(row));
    }
    text
}

/// `name  value` lines; those without a value are left out.
pub(crate) fn facts(paint: Paint, facts: &[(&str, Option<String>)]) -> String {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines = facts.iter().filter_map(|(name, value)| {
        let value = one_line(value.as_ref()?);
        let padding = " ".repeat(width - name.chars().count());
        Some(format!("{}{padding}{GAP}{value}", paint.dim(name)))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Text of others as a part of one line.
pub(crate) fn one_line(text: &str) -> String {
    clean(text).replace('\n', "⏎").replace('\t', " ")
}

/// Cut to a width, with a sign that it was.
pub(crate) fn cut(text: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if text.chars().count() > width => {
            let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
            short.push('…');
            short
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_have_no_tail() {
        let rows = [
            vec!["a".into(), "long cell".into(), "x".into()],
            vec!["bcd".into(), "é\n".into(), String::new()],
        ];
        assert_eq!(
            table(Paint::PLAIN, &["ID", "B", "C"], &rows),
            "ID   B          C\na    long cell  x\nbcd  é⏎"
        );
    }

    #[test]
    fn facts_without_a_value_are_left_out() {
        let list = [("id", Some("1".to_owned())), ("model", None), ("status", Some("active".to_owned()))];
        assert_eq!(facts(Paint::PLAIN, &list), "id      1\nstatus  active");
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(cut("abcdef", Some(4)), "abc…");
        assert_eq!(cut("abcd", Some(4)), "abcd");
        assert_eq!(cut("abcdef", None), "abcdef");
    }
}
