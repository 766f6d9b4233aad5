//! Distance between an unknown ID and those of documents, for suggestions.

/// Longest ID in bytes that is compared by its characters.
const LONGEST: usize = 200;

/// Returns a rank of `other` as a suggestion for `id`; smaller is nearer. `None` if it is none.
pub(crate) fn distance(id: &str, other: &str) -> Option<usize> {
    let id = id.to_lowercase();
    let other = other.to_lowercase();
    if id == other {
        return Some(0);
    }
    if other.strip_prefix(&id).is_some_and(|rest| rest.starts_with('#')) {
        return Some(1);
    }
    // A name in a folder, given without the folder.
    let ends = other.strip_suffix(&id).is_some_and(|folder| folder.ends_with('/'));
    if ends || (id.len() > 2 && other.starts_with(&id)) {
        return Some(2);
    }
    let allowed = (id.chars().count() / 3).min(3);
    if id.len().max(other.len()) > LONGEST || id.len().abs_diff(other.len()) > 4 * allowed {
        return None;
    }
    Some(strsim::damerau_levenshtein(&id, &other)).filter(|&distance| distance <= allowed).map(|distance| 2 + distance)
}

#[cfg(test)]
mod tests {
    use super::distance;

    #[test]
    fn near_ids_are_ranked_and_far_ones_are_none() {
        let ids = ["Seine", "seine#2", "seine-map", "rivers/seine", "siene", "thames", "s"];
        let found: Vec<_> = ids.iter().map(|other| distance("seine", other)).collect();
        assert_eq!(found, [Some(0), Some(1), Some(2), Some(2), Some(3), None, None]);
    }
}
