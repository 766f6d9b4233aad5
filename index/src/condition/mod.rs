//! Conditions on metadata that restrict a search: OpenAI's comparison and compound filters.
//!
//! A comparison reads one key of the metadata. Strings compare by code point, so dates such as `2024-05-01` sort
//! correctly; numbers by value; booleans only for equality. A missing key, a list, an object, or a value of another
//! type than the given one equals nothing: it matches `ne` and `nin`, and no other comparison. Cells of CSV and TSV files
//! are strings, even those that look like numbers.

mod allowed;
mod selections;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

pub(crate) use allowed::{AllowedPassages, TopPassages, admits};
pub(crate) use selections::Selections;

/// Maximum nesting depth of compound conditions.
const DEEPEST: usize = 8;

/// Maximum number of values in a condition, including those in lists.
const MOST: usize = 1000;

/// Condition on the metadata of a document. In JSON it has the form of OpenAI's API: `{"type": "eq", "key": "year",
/// "value": 1901}`, `{"type": "and", "filters": […]}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ConditionJson", into = "ConditionJson")]
pub enum Condition {
    /// Comparison with one value.
    Compare {
        /// Key in the metadata.
        key: String,
        /// Operator.
        test: Comparison,
        /// Value to compare with: a string, a number, or a boolean.
        value: Value,
    },
    /// Comparison with several values.
    Among {
        /// Key in the metadata.
        key: String,
        /// Strings, numbers and booleans.
        values: Vec<Value>,
        /// If `true`, the value must be in the list (`in`); otherwise it must not be (`nin`).
        within: bool,
    },
    /// All of these conditions hold. The list has at least one.
    All(Vec<Condition>),
    /// Any of these conditions holds. The list has at least one.
    Any(Vec<Condition>),
}

/// Comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal, or missing.
    Unequal,
    /// Greater; not for booleans.
    Above,
    /// Greater or equal; not for booleans.
    AtLeast,
    /// Less; not for booleans.
    Below,
    /// Less or equal; not for booleans.
    AtMost,
}

impl Comparison {
    /// Returns `true` if the operator holds for this ordering. `None` means that the values are not comparable.
    fn holds(self, found: Option<Ordering>) -> bool {
        match self {
            Comparison::Equal => found == Some(Ordering::Equal),
            Comparison::Unequal => found != Some(Ordering::Equal),
            Comparison::Above => found == Some(Ordering::Greater),
            Comparison::AtLeast => found.is_some_and(Ordering::is_ge),
            Comparison::Below => found == Some(Ordering::Less),
            Comparison::AtMost => found.is_some_and(Ordering::is_le),
        }
    }

    fn orders(self) -> bool {
        !matches!(self, Comparison::Equal | Comparison::Unequal)
    }
}

impl Condition {
    /// Returns `true` if a document with this metadata satisfies the condition.
    pub fn matches(&self, metadata: &Map<String, Value>) -> bool {
        match self {
            Condition::Compare { key, test, value } => {
                test.holds(metadata.get(key).and_then(|found| compare(found, value)))
            }
            Condition::Among { key, values, within } => {
                let same = |found: &Value| values.iter().any(|value| compare(found, value) == Some(Ordering::Equal));
                metadata.get(key).is_some_and(same) == *within
            }
            Condition::All(parts) => parts.iter().all(|part| part.matches(metadata)),
            Condition::Any(parts) => parts.iter().any(|part| part.matches(metadata)),
        }
    }

    /// Checks the size of the condition and the types of its values.
    ///
    /// # Errors
    /// A description of the problem, phrased to follow the name of the condition.
    pub fn check(&self) -> Result<(), &'static str> {
        let (levels, values) = self.size();
        if levels > DEEPEST {
            Err("is nested deeper than 8 levels")
        } else if values > MOST {
            Err("compares with more than 1000 values")
        } else {
            self.check_parts()
        }
    }

    /// Returns the nesting depth and the number of values.
    fn size(&self) -> (usize, usize) {
        match self {
            Condition::Compare { .. } => (0, 1),
            // An empty list still costs one comparison per document.
            Condition::Among { values, .. } => (0, values.len().max(1)),
            Condition::All(parts) | Condition::Any(parts) => parts
                .iter()
                .map(Condition::size)
                .fold((1, 0), |(most, sum), (levels, values)| (most.max(levels + 1), sum + values)),
        }
    }

    fn check_parts(&self) -> Result<(), &'static str> {
        let plain = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
        match self {
            Condition::Compare { test, value, .. } if test.orders() && !(value.is_string() || value.is_number()) => {
                Err("needs a `value` that is a string or a number: others have no order")
            }
            Condition::Compare { value, .. } if !plain(value) => {
                Err("needs a `value` that is a string, a number or a boolean")
            }
            Condition::Among { values, .. } if !values.iter().all(plain) => {
                Err("needs a `value` that is a list of strings, numbers and booleans")
            }
            Condition::All(parts) | Condition::Any(parts) if parts.is_empty() => Err("needs one of `filters` at least"),
            Condition::All(parts) | Condition::Any(parts) => parts.iter().try_for_each(Condition::check_parts),
            Condition::Compare { .. } | Condition::Among { .. } => Ok(()),
        }
    }
}

/// Compares two values. `None` if their types differ.
fn compare(found: &Value, value: &Value) -> Option<Ordering> {
    match (found, value) {
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Number(a), Value::Number(b)) => compare_numbers(a, b),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// Compares integers exactly, since `f64` does not distinguish all integers beyond 2^53.
fn compare_numbers(a: &Number, b: &Number) -> Option<Ordering> {
    let whole = |number: &Number| number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => Some(a.cmp(&b)),
        _ => a.as_f64()?.partial_cmp(&b.as_f64()?),
    }
}

/// JSON form of a condition.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionJson {
    #[serde(rename = "type")]
    kind: ConditionType,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filters: Option<Vec<Condition>>,
}

/// Kind of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ConditionKind))]
pub(crate) enum ConditionType {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater than, for numbers and strings.
    Gt,
    /// Greater than or equal.
    Gte,
    /// Less than.
    Lt,
    /// Less than or equal.
    Lte,
    /// Equal to one of several values.
    In,
    /// Equal to none of several values.
    Nin,
    /// All conditions match.
    And,
    /// At least one condition matches.
    Or,
}

impl TryFrom<ConditionJson> for Condition {
    type Error = String;

    fn try_from(ConditionJson { kind, key, value, filters }: ConditionJson) -> Result<Condition, String> {
        // serde's own wording, by which the request parser recognizes a missing field.
        let missing = |name: &str| format!("missing field `{name}`");
        let condition = if matches!(kind, ConditionType::And | ConditionType::Or) {
            if key.is_some() || value.is_some() {
                return Err("of the type `and` or `or` has `filters`, and neither `key` nor `value`".to_owned());
            }
            let parts = filters.ok_or_else(|| missing("filters"))?;
            if kind == ConditionType::And { Condition::All(parts) } else { Condition::Any(parts) }
        } else {
            if filters.is_some() {
                return Err("has `filters` only of the type `and` or `or`".to_owned());
            }
            let key = key.ok_or_else(|| missing("key"))?;
            let value = value.ok_or_else(|| missing("value"))?;
            match (kind.test(), value) {
                (Some(test), value) => Condition::Compare { key, test, value },
                (None, Value::Array(values)) => Condition::Among { key, values, within: kind == ConditionType::In },
                (None, _) => return Err("of the type `in` or `nin` needs a `value` that is a list".to_owned()),
            }
        };
        condition.check().map(|()| condition).map_err(str::to_owned)
    }
}

impl ConditionType {
    fn test(self) -> Option<Comparison> {
        match self {
            ConditionType::Eq => Some(Comparison::Equal),
            ConditionType::Ne => Some(Comparison::Unequal),
            ConditionType::Gt => Some(Comparison::Above),
            ConditionType::Gte => Some(Comparison::AtLeast),
            ConditionType::Lt => Some(Comparison::Below),
            ConditionType::Lte => Some(Comparison::AtMost),
            ConditionType::In | ConditionType::Nin | ConditionType::And | ConditionType::Or => None,
        }
    }
}

impl From<Comparison> for ConditionType {
    fn from(test: Comparison) -> ConditionType {
        match test {
            Comparison::Equal => ConditionType::Eq,
            Comparison::Unequal => ConditionType::Ne,
            Comparison::Above => ConditionType::Gt,
            Comparison::AtLeast => ConditionType::Gte,
            Comparison::Below => ConditionType::Lt,
            Comparison::AtMost => ConditionType::Lte,
        }
    }
}

impl From<Condition> for ConditionJson {
    fn from(condition: Condition) -> ConditionJson {
        let compound = |kind, parts| ConditionJson { kind, key: None, value: None, filters: Some(parts) };
        match condition {
            Condition::Compare { key, test, value } => {
                ConditionJson { kind: test.into(), key: Some(key), value: Some(value), filters: None }
            }
            Condition::Among { key, values, within } => {
                let kind = if within { ConditionType::In } else { ConditionType::Nin };
                ConditionJson { kind, key: Some(key), value: Some(Value::Array(values)), filters: None }
            }
            Condition::All(parts) => compound(ConditionType::And, parts),
            Condition::Any(parts) => compound(ConditionType::Or, parts),
        }
    }
}
