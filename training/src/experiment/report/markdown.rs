//! Blocks as Markdown.

use super::block::{Block, Grid};

/// Renders blocks.
pub(super) fn render(blocks: &[Block]) -> String {
    let rendered: Vec<String> = blocks.iter().filter_map(block).collect();
    rendered.join("\n")
}

fn block(block: &Block) -> Option<String> {
    match block {
        Block::Heading(level, text) => Some(format!("{} {}\n", "#".repeat(*level), escape(text))),
        Block::Text(text) => Some(format!("{}\n", escape(text))),
        Block::Grid(grid) => Some(table(grid)),
        Block::Forest(_) => None,
    }
}

fn table(grid: &Grid) -> String {
    let line = |cells: &[String]| {
        // A bar would end its cell.
        let cells: Vec<String> = cells.iter().map(|cell| escape(cell).replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = format!("|{}\n", "---|".repeat(grid.head.len()));
    let rows: String = grid.rows.iter().map(|row| line(row)).collect();
    format!("{}{rule}{rows}", line(&grid.head))
}

/// Escapes characters that would begin markup, and joins lines.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for word in text.chars() {
        match word {
            '\n' | '\r' => escaped.push(' '),
            '*' | '_' | '`' | '<' | '[' | ']' | '\\' => {
                escaped.push('\\');
                escaped.push(word);
            }
            word => escaped.push(word),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_cannot_break_the_table() {
        let grid = Grid { head: vec!["a".into(), "b".into()], rows: vec![vec!["x|y".into(), "1\n2 <b>".into()]] };
        let text = render(&[Block::Heading(1, "t_t".into()), Block::Grid(grid), Block::Forest(Vec::new())]);
        assert_eq!(text, "# t\\_t\n\n| a | b |\n|---|---|\n| x\\|y | 1 2 \\<b> |\n");
    }
}
