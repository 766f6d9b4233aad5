//! Fields that hold a text, or a list or an object in its place. An untagged enum of serde would read the value from a
//! buffer, and its errors would not name the item or the field at fault.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Text, or a value in its place.
#[derive(Debug)]
pub(super) enum TextOr<T> {
    /// The text.
    Text(String),
    /// List or object.
    Other(T),
}

/// List or object that may stand in place of a text.
pub(super) trait InPlaceOfText: DeserializeOwned {
    /// Description of both, for errors.
    const EXPECTED: &'static str;
}

impl<T: DeserializeOwned> InPlaceOfText for Vec<T> {
    const EXPECTED: &'static str = "a string or a list";
}

impl<'de, T: InPlaceOfText> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: InPlaceOfText> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(TextOr::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Self::Value, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(items)).map(TextOr::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(TextOr::Other)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::body;

    #[test]
    fn the_item_at_fault_is_named() {
        let read = |value| body::read::<TextOr<Vec<u32>>>(value, "field");
        assert!(matches!(read(json!("a")), Ok(TextOr::Text(text)) if text == "a"));
        assert!(matches!(read(json!([1, 2])), Ok(TextOr::Other(numbers)) if numbers == [1, 2]));
        for (value, param, expected) in [
            (json!([1, "x"]), "field[1]", "expected u32"),
            (json!(3), "field", "expected a string or a list"),
            (json!({}), "field", "expected a sequence"),
        ] {
            let refused = read(value).unwrap_err();
            assert_eq!(refused.param.as_deref(), Some(param));
            assert!(refused.message.contains(expected), "{}", refused.message);
        }
    }
}
