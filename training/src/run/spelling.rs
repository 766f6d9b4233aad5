//! Earlier spellings of settings in stored facts.

/// Renamed keys and values, as they are written at the beginning of a line or in an inline table.
const RENAMED: [(&str, &str); 3] = [
    ("graph = \"graph_r1\"", "graph = \"graphrag_r1\""),
    ("variant = \"graph_r1\"", "variant = \"graphrag_r1\""),
    ("centre = ", "center = "),
];

/// Returns stored facts in the current spelling, to compare them with facts that are written now. Recipes are read in
/// both spellings but written in the current one, and a run that started under an earlier spelling has to resume.
pub(crate) fn respelled(facts: &str) -> String {
    facts.split_inclusive('\n').map(respelled_line).collect()
}

fn respelled_line(line: &str) -> String {
    let mut line = line.to_owned();
    for (earlier, current) in RENAMED {
        if let Some(rest) = line.strip_prefix(earlier) {
            line = format!("{current}{rest}");
        }
        // What stands before a key of an inline table.
        for before in ["{ ", ", "] {
            line = line.replace(&format!("{before}{earlier}"), &format!("{before}{current}"));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_renamed_settings_change() {
        for (earlier, current) in [
            ("k = 3\ngraph = \"graph_r1\"\n", "k = 3\ngraph = \"graphrag_r1\"\n"),
            ("[graph]\nvariant = \"graph_r1\"", "[graph]\nvariant = \"graphrag_r1\""),
            ("x = { graph = \"graph_r1\", k = 3 }\n", "x = { graph = \"graphrag_r1\", k = 3 }\n"),
            ("centre = 0.4\nkind = \"sigmoid\"\n", "center = 0.4\nkind = \"sigmoid\"\n"),
            ("x = { kind = \"sigmoid\", centre = 0.4 }\n", "x = { kind = \"sigmoid\", center = 0.4 }\n"),
            ("reward = \"graph_r1\"\nepicentre = 1\n", "reward = \"graph_r1\"\nepicentre = 1\n"),
        ] {
            assert_eq!((respelled(earlier).as_str(), respelled(current).as_str()), (current, current));
        }
    }
}
