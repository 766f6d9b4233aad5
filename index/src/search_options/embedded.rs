//! Search options among the other fields of a request, a file or a record.
//!
//! The options stand beside the other fields, in the same object. serde's `flatten` would read them from a buffer, in
//! which an error loses its path in the request and its line in the file. Here each value is read in place.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer, forward_to_deserialize_any};
use serde_json::{Map, Value, json};

use super::{SearchField, SearchOptions, SearchScope, graph_overrides};

/// Other fields of an object with search options. Unknown fields of the object are refused.
pub trait SearchFields {
    /// Scope of the options.
    const SCOPE: SearchScope;
}

/// Object that holds search options next to the fields of `T`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WithSearch<T> {
    /// The search options.
    pub search: SearchOptions,
    /// The other fields.
    pub rest: T,
}

impl<'de, T: SearchFields + Deserialize<'de>> Deserialize<'de> for WithSearch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WithSearch<T>, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Writes every option of the scope, with `null` where it is not set.
impl<T: SearchFields + Serialize> Serialize for WithSearch<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Object<'a, T> {
            #[serde(flatten)]
            rest: &'a T,
            #[serde(flatten)]
            options: Map<String, Value>,
        }
        let value = serde_json::to_value(&self.search).map_err(serde::ser::Error::custom)?;
        let shown = |field: SearchField| match field.name {
            "graph" if T::SCOPE.names_variant() => json!(self.search.graph.and_then(|graph| graph.variant)),
            name => value[name].clone(),
        };
        let options = T::SCOPE.fields().map(|field| (field.name.to_owned(), shown(field))).collect();
        Object { rest: &self.rest, options }.serialize(serializer)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: SearchFields + Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = WithSearch<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WithSearch<T>, A::Error> {
        let mut search = SearchOptions::default();
        let rest = T::deserialize(RestDeserializer { map, scope: T::SCOPE, search: &mut search })?;
        Ok(WithSearch { search, rest })
    }
}

/// Deserializer of the other fields, which takes the search options aside.
struct RestDeserializer<'a, A> {
    map: A,
    scope: SearchScope,
    search: &'a mut SearchOptions,
}

impl<'de, A: MapAccess<'de>> Deserializer<'de> for RestDeserializer<'_, A> {
    type Error = A::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, A::Error> {
        Err(A::Error::custom("search options stand next to the fields of a struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let RestDeserializer { map, scope, search } = self;
        visitor.visit_map(RestFields { map, scope, search, known })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Fields of an object without its search options, which go to `search` as they are met.
struct RestFields<'a, A> {
    map: A,
    scope: SearchScope,
    search: &'a mut SearchOptions,
    /// Names of the other fields.
    known: &'static [&'static str],
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for RestFields<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, mut seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            match self.map.next_key_seed(KeySeed { seed, scope: self.scope, known: self.known })? {
                None => return Ok(None),
                Some(ObjectKey::Rest(key)) => return Ok(Some(key)),
                Some(ObjectKey::Option(field, unused)) => {
                    let set = self.map.next_value_seed(OptionSeed { field, scope: self.scope })?;
                    // Each option is read at most once, so nothing is overwritten.
                    *self.search = set.or(self.search);
                    seed = unused;
                }
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

/// Key of the object: a search option, with the seed that was not needed, or another field.
enum ObjectKey<S, V> {
    Option(SearchField, S),
    Rest(V),
}

/// Seed of a key. Unknown keys are refused here, while the caller still knows their place in the request.
struct KeySeed<S> {
    seed: S,
    scope: SearchScope,
    known: &'static [&'static str],
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for KeySeed<S> {
    type Value = ObjectKey<S, S::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for KeySeed<S> {
    type Value = ObjectKey<S, S::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        let KeySeed { seed, scope, known } = self;
        if let Some(field) = scope.fields().find(|field| field.name == key) {
            return Ok(ObjectKey::Option(field, seed));
        }
        if !known.contains(&key) {
            let names = scope.fields().map(|field| field.name).chain(known.iter().copied());
            let names = names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            // serde's own wording, by which the request parser recognizes an unknown field.
            return Err(E::custom(format_args!("unknown field `{key}`, expected one of {names}")));
        }
        seed.deserialize(key.into_deserializer()).map(ObjectKey::Rest)
    }
}

/// Seed of the value of one search option.
struct OptionSeed {
    field: SearchField,
    scope: SearchScope,
}

impl<'de> DeserializeSeed<'de> for OptionSeed {
    type Value = SearchOptions;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<SearchOptions, D::Error> {
        if self.field.name == "graph" && self.scope.names_variant() {
            let graph = graph_overrides::variant(value)?;
            return Ok(SearchOptions { graph, ..SearchOptions::default() });
        }
        // An object with this one field, so that the type of the value is stated in `SearchOptions` alone.
        SearchOptions::deserialize(MapAccessDeserializer::new(OneField {
            name: Some(self.field.name),
            value: Some(value),
        }))
    }
}

/// Object with a single field.
struct OneField<D> {
    name: Option<&'static str>,
    value: Option<D>,
}

impl<'de, D: Deserializer<'de>> MapAccess<'de> for OneField<D> {
    type Error = D::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, D::Error> {
        self.name.take().map(|name| seed.deserialize(name.into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, D::Error> {
        let value = self.value.take().ok_or_else(|| D::Error::custom("a field has one value"))?;
        seed.deserialize(value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::super::GraphOverrides;
    use super::*;
    use crate::mode::GraphVariant;

    /// Fields of a policy's table next to its search options.
    #[derive(Debug, PartialEq, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct PolicyFields {
        format: Option<String>,
    }

    impl SearchFields for PolicyFields {
        const SCOPE: SearchScope = SearchScope::Policy;
    }

    /// Fields of a request for one search.
    #[derive(Debug, PartialEq, Default, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RequestFields {
        query: String,
    }

    impl SearchFields for RequestFields {
        const SCOPE: SearchScope = SearchScope::Search;
    }

    #[test]
    fn a_scope_takes_its_options_and_refuses_the_others() {
        let read = |json: &str| serde_json::from_str::<WithSearch<PolicyFields>>(json);
        let table = read(r#"{"k": 5, "format": "training", "graph": "hippo_rag", "mode": null}"#).unwrap();
        let graph = Some(GraphVariant::HippoRag.into());
        assert_eq!(table.search, SearchOptions { k: Some(5), graph, ..SearchOptions::default() });
        assert_eq!(table.rest.format.as_deref(), Some("training"));
        for (json, words) in [
            (r#"{"explain": true}"#, "unknown field `explain`, expected one of `mode`"),
            (r#"{"kk": 5}"#, "unknown field `kk`, expected one of `mode`"),
            (r#"{"graph": "lightrag"}"#, "unknown variant `lightrag`, expected one of `route_rag`"),
            (r#"{"graph": {"damping": 0.5}}"#, "unknown field `damping`, expected `variant`"),
            (r#"{"k": "five"}"#, "invalid type: string \"five\", expected usize"),
            ("3", "expected an object"),
        ] {
            let error = read(json).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }

        let read = |json: &str| serde_json::from_str::<WithSearch<RequestFields>>(json);
        let request = read(r#"{"query": "x", "graph": {"damping": 0.5}, "explain": true}"#).unwrap();
        assert_eq!((request.rest.query.as_str(), request.search.graph.unwrap().damping), ("x", Some(0.5)));
        assert!(read(r#"{"k": 1}"#).unwrap_err().to_string().contains("missing field `query`"));
    }

    #[test]
    fn the_graph_search_is_a_name_or_an_object_in_every_scope() {
        let of_policy = |json: &str| {
            let read = serde_json::from_str::<WithSearch<PolicyFields>>(json);
            read.map(|table| table.search.graph).map_err(|error| error.to_string())
        };
        let of_request = |json: &str| {
            let json = json.replacen('{', r#"{"query": "x", "#, 1);
            let read = serde_json::from_str::<WithSearch<RequestFields>>(&json);
            read.map(|request| request.search.graph).map_err(|error| error.to_string())
        };
        for (json, graph) in [
            (r#"{"graph": "waymark"}"#, Some(GraphVariant::Waymark.into())),
            (r#"{"graph": {"variant": "waymark"}}"#, Some(GraphVariant::Waymark.into())),
            (r#"{"graph": {}}"#, Some(GraphOverrides::default())),
            (r#"{"graph": null}"#, None),
        ] {
            assert_eq!((of_policy(json), of_request(json)), (Ok(graph), Ok(graph)), "{json}");
        }
        for json in [r#"{"graph": 3}"#, r#"{"graph": ["waymark"]}"#] {
            for refused in [of_policy(json).unwrap_err(), of_request(json).unwrap_err()] {
                assert!(refused.contains("expected the name of a graph search"), "{refused}");
            }
        }
    }

    #[test]
    fn a_record_has_every_option_of_its_scope() {
        let search =
            SearchOptions { graph: Some(GraphVariant::GraphRagR1.into()), k: Some(2), ..SearchOptions::default() };
        let rest = PolicyFields { format: Some("training".into()) };
        let written = serde_json::to_value(WithSearch { search, rest }).unwrap();
        let mut names: Vec<_> = SearchScope::Policy.fields().map(|field| field.name).collect();
        names.insert(0, "format");
        assert_eq!(written.as_object().unwrap().keys().collect::<Vec<_>>(), names);
        assert_eq!(
            (&written["graph"], &written["k"], &written["mode"]),
            (&json!("graphrag_r1"), &json!(2), &Value::Null)
        );
    }
}
