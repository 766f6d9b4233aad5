//! Pages of list routes.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::error::ApiError;
use crate::store::RecordOrder;

/// Default number of entries per page.
pub(super) const PAGE: usize = 20;

/// Maximum number of entries per page.
const MAX_PAGE: usize = 100;

/// Parses the `limit` parameter: the number of entries per page.
pub(super) fn limit(given: &str) -> Result<usize, ApiError> {
    let limit = given.parse().ok().filter(|limit| (1..=MAX_PAGE).contains(limit));
    limit.ok_or_else(|| ApiError::invalid("limit", format!("`limit` must be from 1 to {MAX_PAGE}, not `{given}`")))
}

/// Query of a list that continues after an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CursorQuery {
    pub(super) limit: usize,
    pub(super) order: RecordOrder,
    /// ID of the entry after which the page begins. `None` begins at the first one.
    pub(super) after: Option<String>,
}

impl CursorQuery {
    /// Parses the query. Youngest entries come first unless it says otherwise.
    pub(super) fn parse(query: &str) -> Result<CursorQuery, ApiError> {
        let mut page = CursorQuery { limit: PAGE, order: RecordOrder::Descending, after: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("limit", value) => page.limit = limit(value)?,
                ("after", value) => page.after = Some(value.to_owned()),
                ("order", "asc") => page.order = RecordOrder::Ascending,
                ("order", "desc") => page.order = RecordOrder::Descending,
                ("order", other) => {
                    return Err(ApiError::invalid("order", format!("`order` must be `asc` or `desc`, not `{other}`")));
                }
                (name, _) => return Err(ApiError::unknown(name)),
            }
        }
        Ok(page)
    }
}

/// Page of items of a conversation or a response.
#[derive(Debug, Serialize, ToSchema)]
pub struct ItemList {
    /// Always `list`.
    pub object: &'static str,
    /// The items.
    #[schema(value_type = Vec<Object>)]
    pub data: Vec<Value>,
    /// ID of the first item. Null if there are none.
    #[schema(required)]
    pub first_id: Option<String>,
    /// ID of the last item. Null if there are none.
    #[schema(required)]
    pub last_id: Option<String>,
    /// If `true`, there are further items.
    pub has_more: bool,
}

impl ItemList {
    /// Creates a page of `data`, which holds one item beyond `limit` if there are more.
    pub(super) fn new(mut data: Vec<Value>, limit: usize) -> ItemList {
        let has_more = data.len() > limit;
        data.truncate(limit);
        let id = |item: &Value| item["id"].as_str().map(str::to_owned);
        let first_id = data.first().and_then(id);
        let last_id = data.last().and_then(id);
        ItemList { object: "list", data, first_id, last_id, has_more }
    }
}

/// Page of objects that have IDs.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    /// Always `list`.
    pub object: &'static str,
    /// The objects.
    pub data: Vec<T>,
    /// ID of the first object. Null if there are none.
    #[schema(required)]
    pub first_id: Option<String>,
    /// ID of the last object. Null if there are none.
    #[schema(required)]
    pub last_id: Option<String>,
    /// If `true`, there are further objects.
    pub has_more: bool,
}

impl<T> Page<T> {
    /// Creates the page that `query` asks for, of all objects with their IDs, oldest first. If the object `after` is no
    /// longer in the list, because it was deleted or does not pass a filter any more, the page begins where it was.
    ///
    /// # Errors
    /// 400 if `after` cannot be the ID of an object.
    pub(super) fn of(mut all: Vec<(String, T)>, query: &CursorQuery) -> Result<Page<T>, ApiError> {
        if query.order == RecordOrder::Descending {
            all.reverse();
        }
        if let Some(after) = &query.after {
            let message = "`after` is not the ID of an object in this list: start again without it";
            let known = all.iter().position(|(id, _)| id == after).map(|place| place + 1);
            let begin = known.or_else(|| place_of_absent(&all, after, query.order));
            all.drain(..begin.ok_or_else(|| ApiError::invalid("after", message))?);
        }
        let has_more = all.len() > query.limit;
        all.truncate(query.limit);
        let first_id = all.first().map(|(id, _)| id.clone());
        let last_id = all.last().map(|(id, _)| id.clone());
        let data = all.into_iter().map(|(_, object)| object).collect();
        Ok(Page { object: "list", data, first_id, last_id, has_more })
    }
}

/// Returns the place behind an object that is not in the list any more. IDs of one kind ascend with the time of their
/// creation; objects with other IDs are older. `None` if `after` is no ID that the server gives, or is of another kind than
/// the objects of the list.
fn place_of_absent<T>(all: &[(String, T)], after: &str, order: RecordOrder) -> Option<usize> {
    let wanted = kind(after)?;
    let is_later = |id: &str| match order {
        RecordOrder::Ascending => id > after,
        RecordOrder::Descending => id < after,
    };
    let alike = |(id, _): &&(String, T)| kind(id) == Some(wanted);
    let next = all.iter().position(|object| alike(&object) && is_later(&object.0));
    let last = all.iter().rposition(|object| alike(&object)).map(|place| place + 1);
    if last.is_none() && all.iter().any(|(id, _)| kind(id).is_some()) {
        return None;
    }
    let none_left = match order {
        RecordOrder::Ascending => all.len(),
        RecordOrder::Descending => 0,
    };
    Some(next.or(last).unwrap_or(none_left))
}

/// Returns what stands before the number of an ID that the server gives: a UUID of 32 digits, version 7.
fn kind(id: &str) -> Option<&str> {
    let (kind, number) = id.split_at_checked(id.len().checked_sub(32)?)?;
    (!kind.is_empty() && number.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(kind)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_page_follows_the_last_one() {
        let page = |query: &str| {
            let all = ["a", "b", "c"].map(|id| (id.to_owned(), id.to_uppercase()));
            Page::of(all.into(), &CursorQuery::parse(query).unwrap())
        };
        let first = page("limit=2").unwrap();
        assert_eq!(
            (first.data, first.last_id.as_deref(), first.has_more),
            (vec!["C".into(), "B".into()], Some("b"), true)
        );
        let second = page("limit=2&after=b").unwrap();
        assert_eq!((second.data, second.first_id.as_deref(), second.has_more), (vec!["A".into()], Some("a"), false));
        assert_eq!(page("order=asc&after=c").unwrap().first_id, None);
        assert_eq!(page("after=d").unwrap_err().param.as_deref(), Some("after"));
    }

    #[test]
    fn a_page_goes_on_behind_an_object_that_is_gone() {
        let id = |number: u32| format!("file-{number:032x}");
        let page = |numbers: &[u32], query: String| {
            let all = numbers.iter().map(|&number| (id(number), number));
            // An object that has another kind of ID comes first.
            let all = std::iter::once(("default".to_owned(), 0)).chain(all).collect();
            Page::of(all, &CursorQuery::parse(&query).unwrap()).map(|page| page.data)
        };
        assert_eq!(page(&[1, 3, 5], format!("order=asc&after={}", id(2))).unwrap(), [3, 5]);
        assert_eq!(page(&[1, 3, 5], format!("order=asc&after={}", id(0))).unwrap(), [1, 3, 5]);
        assert_eq!(page(&[1, 3, 5], format!("order=asc&after={}", id(9))).unwrap(), [0; 0]);
        assert_eq!(page(&[1, 3, 5], format!("after={}", id(4))).unwrap(), [3, 1, 0]);
        assert_eq!(page(&[3, 5], format!("after={}", id(1))).unwrap(), [0]);
        assert_eq!(page(&[], format!("after={}", id(1))).unwrap(), [0]);
        assert_eq!(page(&[], format!("order=asc&after={}", id(1))).unwrap(), [0; 0]);
        assert!(page(&[1], "after=file-7".to_owned()).is_err());
        assert!(page(&[1], format!("after=vs_{:032x}", 1)).is_err(), "an ID of another kind");
    }

    #[test]
    fn queries_are_read_or_refused_by_name() {
        let all = CursorQuery::parse("limit=5&order=asc&after=a%20b").unwrap();
        assert_eq!(all, CursorQuery { limit: 5, order: RecordOrder::Ascending, after: Some("a b".into()) });
        for (query, param) in [("limit=0", "limit"), ("order=up", "order"), ("before=a", "before")] {
            assert_eq!(CursorQuery::parse(query).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
