//! Pages of list routes.

use std::ops::Range;

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
    limit_within(given, MAX_PAGE)
}

fn limit_within(given: &str, most: usize) -> Result<usize, ApiError> {
    let limit = given.parse().ok().filter(|limit| (1..=most).contains(limit));
    limit.ok_or_else(|| ApiError::invalid("limit", format!("`limit` must be from 1 to {most}, not `{given}`")))
}

/// Rules of a list for the parameters of its pages, which OpenAI's interface sets for each list.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageRules {
    /// Default number of entries per page.
    pub(super) default: usize,
    /// Maximum number of entries per page.
    pub(super) most: usize,
    /// If `true`, the list takes `before`.
    pub(super) before: bool,
}

impl PageRules {
    /// Rules of most lists.
    pub(super) const COMMON: PageRules = PageRules { default: PAGE, most: MAX_PAGE, before: false };
    /// Rules of lists that can be read in both directions.
    pub(super) const BOTH_WAYS: PageRules = PageRules { before: true, ..PageRules::COMMON };
}

/// Query of a list that continues after an entry, or ends before one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CursorQuery {
    pub(super) limit: usize,
    pub(super) order: RecordOrder,
    /// ID of the entry after which the page begins. `None` begins at the first one.
    pub(super) after: Option<String>,
    /// ID of the entry before which the page ends. `None` sets no end.
    pub(super) before: Option<String>,
}

impl CursorQuery {
    /// Parses a query. Youngest entries come first unless it says otherwise. `own` takes the names and values of other
    /// parameters; it returns `false` for those that are unknown.
    pub(super) fn parse(
        query: &str,
        rules: PageRules,
        mut own: impl FnMut(&str, &str) -> Result<bool, ApiError>,
    ) -> Result<CursorQuery, ApiError> {
        let order = RecordOrder::Descending;
        let mut page = CursorQuery { limit: rules.default, order, after: None, before: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("limit", value) => page.limit = limit_within(value, rules.most)?,
                ("after", value) => page.after = Some(value.to_owned()),
                ("before", value) if rules.before => page.before = Some(value.to_owned()),
                ("order", "asc") => page.order = RecordOrder::Ascending,
                ("order", "desc") => page.order = RecordOrder::Descending,
                ("order", other) => {
                    return Err(ApiError::invalid("order", format!("`order` must be `asc` or `desc`, not `{other}`")));
                }
                (name, value) if own(name, value)? => {}
                (name, _) => return Err(ApiError::unknown(name)),
            }
        }
        Ok(page)
    }
}

/// Returns `true` if a parameter of a query is `include`, which clients also write as `include[]` and `include[0]`.
pub(super) fn is_include(name: &str) -> bool {
    name.split('[').next() == Some("include")
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
    /// Creates the page that `query` asks for, of all objects with their IDs, oldest first. If the object `after` or
    /// `before` is no longer in the list, because it was deleted or does not pass a filter any more, the page begins or
    /// ends where it was.
    ///
    /// # Errors
    /// 400 if a cursor cannot be the ID of an object.
    pub(super) fn of(all: Vec<(String, T)>, query: &CursorQuery) -> Result<Page<T>, ApiError> {
        Page::placed(all, query, place_by_id)
    }

    /// Creates a page as [`Page::of`] does, of a list in another order. `place` returns the range of a cursor in the
    /// list: that of its object, or an empty one where the object was.
    ///
    /// # Errors
    /// 400 if `place` returns none.
    pub(super) fn placed(
        mut all: Vec<(String, T)>,
        query: &CursorQuery,
        place: impl Fn(&[(String, T)], &str) -> Option<Range<usize>>,
    ) -> Result<Page<T>, ApiError> {
        let range = |param: &str, cursor: &Option<String>| {
            let message = || format!("`{param}` is not the ID of an object in this list: start again without it");
            let find = |id: &String| place(&all, id).ok_or_else(|| ApiError::invalid(param, message()));
            cursor.as_ref().map(find).transpose()
        };
        let after = range("after", &query.after)?;
        let before = range("before", &query.before)?;
        // Without `after`, the page is the one that ends right before `before`.
        let is_last = after.is_none() && before.is_some();
        let descends = query.order == RecordOrder::Descending;
        let (older, younger) = if descends { (before, after) } else { (after, before) };
        all.truncate(younger.map_or(all.len(), |range| range.start));
        all.drain(..older.map_or(0, |range| range.end).min(all.len()));
        if descends {
            all.reverse();
        }
        let has_more = all.len() > query.limit;
        if is_last {
            all.drain(..all.len().saturating_sub(query.limit));
        }
        all.truncate(query.limit);
        let first_id = all.first().map(|(id, _)| id.clone());
        let last_id = all.last().map(|(id, _)| id.clone());
        let data = all.into_iter().map(|(_, object)| object).collect();
        Ok(Page { object: "list", data, first_id, last_id, has_more })
    }
}

/// Returns the range of an object in a list that is ordered by IDs: an empty one if the object is not in the list any
/// more. IDs of one kind ascend with the time of their creation; objects with other IDs are older. `None` if `wanted` is no
/// ID that the server gives, or is of another kind than the objects of the list.
pub(super) fn place_by_id<T>(all: &[(String, T)], wanted: &str) -> Option<Range<usize>> {
    if let Some(known) = all.iter().position(|(id, _)| id == wanted) {
        return Some(known..known + 1);
    }
    let wanted_kind = kind(wanted)?;
    let is_alike = |id: &str| kind(id) == Some(wanted_kind);
    let next = all.iter().position(|(id, _)| is_alike(id) && id.as_str() > wanted);
    let last = all.iter().rposition(|(id, _)| is_alike(id)).map(|place| place + 1);
    if last.is_none() && all.iter().any(|(id, _)| kind(id).is_some()) {
        return None;
    }
    let place = next.or(last).unwrap_or(all.len());
    Some(place..place)
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

    fn common(query: &str) -> Result<CursorQuery, ApiError> {
        CursorQuery::parse(query, PageRules::COMMON, |_, _| Ok(false))
    }

    #[test]
    fn a_page_follows_the_last_one() {
        let page = |query: &str| {
            let all = ["a", "b", "c"].map(|id| (id.to_owned(), id.to_uppercase()));
            Page::of(all.into(), &common(query).unwrap())
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
    fn a_page_ends_before_an_object() {
        let page = |query: &str| {
            let all = ["a", "b", "c", "d"].map(|id| (id.to_owned(), id));
            let query = CursorQuery::parse(query, PageRules::BOTH_WAYS, |_, _| Ok(false)).unwrap();
            Page::of(all.into(), &query).map(|page| (page.data, page.has_more))
        };
        assert_eq!(page("order=asc&before=d&limit=2").unwrap(), (vec!["b", "c"], true));
        assert_eq!(page("order=asc&before=b&limit=2").unwrap(), (vec!["a"], false));
        assert_eq!(page("before=a&limit=2").unwrap(), (vec!["c", "b"], true));
        assert_eq!(page("before=c&limit=2").unwrap(), (vec!["d"], false));
        assert_eq!(page("order=asc&after=a&before=d&limit=1").unwrap(), (vec!["b"], true));
        assert_eq!(page("after=a&before=d").unwrap(), (vec![], false), "the cursors cross");
        assert_eq!(page("before=x").unwrap_err().param.as_deref(), Some("before"));
    }

    #[test]
    fn a_page_goes_on_behind_an_object_that_is_gone() {
        let id = |number: u32| format!("file-{number:032x}");
        let page = |numbers: &[u32], query: String| {
            let all = numbers.iter().map(|&number| (id(number), number));
            // An object that has another kind of ID comes first.
            let all = std::iter::once(("default".to_owned(), 0)).chain(all).collect();
            Page::of(all, &common(&query).unwrap()).map(|page| page.data)
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
        let all = common("limit=5&order=asc&after=a%20b").unwrap();
        let after = Some("a b".into());
        assert_eq!(all, CursorQuery { limit: 5, order: RecordOrder::Ascending, after, before: None });
        for (query, param) in [("limit=0", "limit"), ("order=up", "order"), ("before=a", "before")] {
            assert_eq!(common(query).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
