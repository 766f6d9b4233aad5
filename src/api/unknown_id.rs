//! Error messages for unknown IDs. They tell IDs that existed once from IDs that never did.

use uuid::Uuid;

use super::state::now;

/// Returns the reason why no `what` is kept under `id`. `unkept` says in which other cases none is kept, and ends in a
/// comma and a space; `limits` names the flags that bound the number of kept entries. Only the form of the ID is
/// examined, so nothing is revealed about other keys.
pub(super) fn message(what: &str, id: &str, unkept: &str, limits: &str) -> String {
    if was_given(id, now()) {
        format!("the {what} `{id}` is not kept: it {unkept}was deleted, or newer ones took its place ({limits})")
    } else {
        format!("no {what} ever had the ID `{id}`: copy the ID from a response of this server")
    }
}

/// Returns `true` if `id` has the form of a generated ID, such as `ep-0193…` or `resp_0193…`, that was created at `now`
/// or before, in seconds since 1970. Such IDs contain the time of their creation.
fn was_given(id: &str, now: u64) -> bool {
    let parts = id.split(['-', '_']).filter(|part| part.len() == 32);
    let ids = parts.filter_map(|part| Uuid::try_parse(part).ok());
    let times = ids.filter(|id| id.get_version_num() == 7).filter_map(|id| id.get_timestamp());
    times.map(|time| time.to_unix().0).any(|given| given <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::episodes;

    #[test]
    fn what_was_kept_is_told_from_what_never_was() {
        for id in
            [episodes::id("ep"), format!("{}-1", episodes::id("chatcmpl")), episodes::id("resp").replace('-', "_")]
        {
            let reason = message("trace", &id, "is not finished, ", "`--trace-count`");
            assert!(reason.contains("is not kept: it is not finished, was deleted, or"), "{reason}");
            assert!(reason.contains("--trace-count"), "{reason}");
        }
        for id in ["ep-1", "", "nonsense", "ep-00000000000000000000000000000000", "ep-ffffffffffffffffffffffffffffffff"]
        {
            assert!(message("trace", id, "", "").starts_with("no trace ever had the ID"), "{id}");
        }
    }

    #[test]
    fn an_id_of_the_future_was_never_given() {
        // 2024-12-01, as in the first twelve digits: milliseconds since 1970.
        let id = "ep-019380f1400071238123456789abcdef";
        let given = 0x0193_80f1_4000 / 1000;
        assert!(was_given(id, given) && !was_given(id, given - 1));
    }
}
