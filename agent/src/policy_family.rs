//! Policy families: a folder with the stages of one training run, each a policy in its own subfolder.
//!
//! The file `family.toml` in the folder names the recommended policy:
//!
//! ```toml
//! recommended = "stage1"
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{AgentError, Policy};

/// Name of the file in a policy's directory.
pub(super) const FILE: &str = "policy.toml";

/// Name of the file in a family's folder that names the recommended member.
pub(super) const FAMILY: &str = "family.toml";

/// Maximum number of members that an error message lists.
const NAMED: usize = 20;

/// Content of `family.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FamilyFile {
    recommended: String,
}

/// Returns the directory of the policy that `dir` stands for: `dir` itself if it has a `policy.toml`, and otherwise the
/// recommended member of the family.
///
/// # Errors
/// [`AgentError::Policy`] if `dir` is neither a policy nor a family, if the family recommends no member (the message
/// lists the members), or if it recommends one that it does not have.
pub(super) fn member_dir(dir: &Path) -> Result<PathBuf, AgentError> {
    let path = dir.join(FAMILY);
    if dir.join(FILE).exists() {
        return Ok(dir.to_owned());
    }
    let members = family_members(dir);
    let refuse = |path: PathBuf, reason: String| Err(AgentError::Policy { path, reason });
    let named = members.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if !path.is_file() {
        return match members.first() {
            None => refuse(dir.to_owned(), absent(dir)),
            Some(first) => {
                let example = dir.join(first);
                let reason = format!("a family of policies ({named}): name one of them, such as {}", example.display());
                refuse(dir.to_owned(), reason)
            }
        };
    }
    let text = fs::read_to_string(&path)
        .map_err(|error| AgentError::Policy { path: path.clone(), reason: error.to_string() })?;
    let family: FamilyFile = match toml::from_str(&text) {
        Ok(family) => family,
        Err(error) => return refuse(path, error.message().to_owned()),
    };
    // Only names of members are accepted, so that the file cannot point outside its folder.
    if members.contains(&family.recommended) {
        return Ok(dir.join(family.recommended));
    }
    let reason = format!("`recommended` is {:?}, which is none of the members: {named}", family.recommended);
    refuse(path, reason)
}

/// Returns the reason for which `dir` is not a policy.
fn absent(dir: &Path) -> String {
    let kind = match fs::metadata(dir) {
        Ok(kind) => kind,
        Err(error) if Policy::BUILTIN.iter().any(|name| dir == Path::new(name)) => {
            return format!("{error}; the built-in policy of this name is always served and needs no directory");
        }
        Err(error) => return error.to_string(),
    };
    if kind.is_dir() {
        format!("no policy: the folder has no {FILE}")
    } else {
        format!("expected a folder with a {FILE}")
    }
}

/// Returns the names of the folders in `dir` that hold a policy, sorted. Empty if `dir` cannot be read.
pub fn family_members(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let policies = entries.filter(|entry| entry.path().join(FILE).is_file());
    let mut names: Vec<String> = policies.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Creates a family with the members `first` and `second`, and `family` as its file.
    fn family(family: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for member in ["second", "first"] {
            let dir = root.path().join(member);
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join(FILE), format!("name = \"{member}\"\nprotocol = \"plain\"\n")).unwrap();
        }
        fs::create_dir(root.path().join("eval")).unwrap();
        if let Some(text) = family {
            fs::write(root.path().join(FAMILY), text).unwrap();
        }
        root
    }

    #[test]
    fn the_recommended_member_stands_for_the_family() {
        let root = family(Some("recommended = \"second\"\n"));
        let policy = Policy::open(root.path()).unwrap();
        assert_eq!((policy.name.as_str(), policy.dir.unwrap()), ("second", root.path().join("second")));
        assert_eq!(Policy::open(&root.path().join("first")).unwrap().name, "first");
        assert_eq!(family_members(root.path()), ["first", "second"]);
    }

    #[test]
    fn a_family_without_a_recommendation_names_its_members() {
        let root = family(None);
        let refused = Policy::open(root.path()).unwrap_err().to_string();
        assert!(refused.contains("(first, second)"), "{refused}");
        let empty = tempfile::tempdir().unwrap();
        let refused = Policy::open(empty.path()).unwrap_err().to_string();
        assert!(refused.contains("policy.toml"), "{refused}");
        let builtin = Policy::open(Path::new("search-r1")).unwrap_err().to_string();
        assert!(builtin.contains("built-in policy"), "{builtin}");
    }

    #[test]
    fn a_recommendation_stays_in_the_folder() {
        for recommended in ["third", "eval", "../first", "", "/"] {
            let root = family(Some(&format!("recommended = {recommended:?}\n")));
            let refused = Policy::open(root.path()).unwrap_err().to_string();
            assert!(refused.contains("none of the members: first, second"), "{recommended}: {refused}");
        }
        let unknown = family(Some("recommended = \"first\"\nbest = 1\n"));
        assert!(Policy::open(unknown.path()).unwrap_err().to_string().contains("best"));
    }

    #[test]
    fn the_family_of_this_repository_recommends_a_policy() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/policies/routerag-smollm2-135m");
        assert_eq!(family_members(&dir), ["routed", "sft", "stage1", "stage2", "three_modes"]);
        assert_eq!(member_dir(&dir).unwrap(), dir.join("stage1"));
    }
}
