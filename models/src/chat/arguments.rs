//! Arguments of function calls.

use std::fmt;

use minijinja::Value;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::exact_json::ExactJson;
use super::tool::Mark;

/// Arguments of a function call: a JSON object as compact text. Numbers are kept as they were written, because a parsed
/// integer of more than 64 bits would be rounded.
#[derive(Debug, Clone, Eq)]
pub struct Arguments(String);

impl Arguments {
    /// Parses a JSON object.
    ///
    /// # Errors
    /// If the text is not a JSON object, has a number that no float can hold, or is nested too deep.
    pub fn parse(text: &str) -> serde_json::Result<Arguments> {
        let object = ExactJson::parse(text)?;
        if matches!(object, ExactJson::Object(_)) {
            Ok(Arguments(object.to_string()))
        } else {
            Err(de::Error::custom("expected an object"))
        }
    }

    /// Returns the JSON text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the arguments as a template value. Integers of more than 128 bits become floats.
    pub(super) fn value(&self, mark: Mark<'_>) -> Value {
        // The text was parsed before.
        ExactJson::parse(&self.0).map(|object| object.value(mark)).unwrap_or_default()
    }
}

impl Default for Arguments {
    /// Returns an empty object.
    fn default() -> Arguments {
        Arguments("{}".to_owned())
    }
}

impl PartialEq for Arguments {
    /// Compares the parsed objects: clients that send arguments back may write them in another way.
    fn eq(&self, other: &Arguments) -> bool {
        let parsed = |text: &str| serde_json::from_str::<Json>(text).ok();
        self.0 == other.0 || parsed(&self.0) == parsed(&other.0)
    }
}

impl fmt::Display for Arguments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Serialize for Arguments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Arguments, D::Error> {
        let raw: Box<RawValue> = Box::deserialize(deserializer)?;
        Arguments::parse(raw.get()).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::{ChatTemplate, Message, ToolCall};
    use super::*;

    const WRITTEN: &str = r#"{"id":340282366920938463463374607431768211455,"less":-18446744073709551617,"x":[1.50]}"#;

    #[test]
    fn large_integers_are_kept() {
        let spaced = WRITTEN.replace(',', " ,\n").replace(':', ": ");
        let arguments = Arguments::parse(&spaced).unwrap();
        assert_eq!(arguments.as_str(), WRITTEN);
        let stored = serde_json::to_string(&arguments).unwrap();
        assert_eq!(stored, WRITTEN);
        assert_eq!(serde_json::from_str::<Arguments>(&stored).unwrap().as_str(), WRITTEN);
    }

    #[test]
    fn templates_show_large_integers() {
        let source = "{% for call in messages[0].tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}";
        let template = ChatTemplate::new(source, "", "").unwrap();
        let arguments = Arguments::parse(WRITTEN).unwrap();
        let call = ToolCall { name: "look".to_owned(), arguments };
        let message = Message { tool_calls: vec![call], ..Message::new("assistant", "") };
        let shown = template.render(&[message], false).unwrap();
        assert_eq!(shown.replace(' ', ""), WRITTEN.replace("1.50", "1.5"));
    }

    #[test]
    fn the_way_of_writing_does_not_matter() {
        let parsed = |text| Arguments::parse(text).unwrap();
        assert_eq!(parsed(r#"{"a":1.5,"b":"\u00e9"}"#), parsed(r#"{ "b": "é", "a": 1.50 }"#));
        assert_eq!(parsed(r#"{"b":"\u00e9"}"#).as_str(), r#"{"b":"é"}"#);
        assert_ne!(parsed(r#"{"a":1}"#), parsed(r#"{"a":2}"#));
        assert_eq!(Arguments::default(), parsed("{}"));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "[]", "null", "{", "{\"a\":01}", "{\"a\":1e400}", "{} {}"] {
            assert!(Arguments::parse(text).is_err(), "{text}");
        }
    }
}
