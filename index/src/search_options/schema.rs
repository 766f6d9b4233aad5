//! OpenAPI schema of an object with search options.

use std::borrow::Cow;
use std::collections::BTreeMap;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{Number, PartialSchema, ToSchema};

use super::{SearchField, SearchFields, SearchOptions, SearchScope, WithSearch};

/// Schema under its name in the document.
type NamedSchema = (String, RefOr<Schema>);

impl<T: SearchFields + PartialSchema> PartialSchema for WithSearch<T> {
    fn schema() -> RefOr<Schema> {
        let mut schema = T::schema();
        if let RefOr::T(Schema::Object(object)) = &mut schema {
            for (field, property) in properties(T::SCOPE) {
                if T::SCOPE == SearchScope::Recorded {
                    object.required.push(field.name.to_owned());
                }
                object.properties.insert(field.name.to_owned(), property);
            }
        }
        schema
    }
}

impl<T: SearchFields + ToSchema> ToSchema for WithSearch<T> {
    fn name() -> Cow<'static, str> {
        T::name()
    }

    fn schemas(schemas: &mut Vec<NamedSchema>) {
        T::schemas(schemas);
        let mut known = Vec::new();
        SearchOptions::schemas(&mut known);
        let known: BTreeMap<_, _> = known.into_iter().collect();
        let mut wanted: Vec<RefOr<Schema>> = properties(T::SCOPE).map(|(_, property)| property).collect();
        // Schemas that only options of other scopes refer to are left out.
        let mut named: BTreeMap<String, RefOr<Schema>> = BTreeMap::new();
        while let Some(schema) = wanted.pop() {
            let text = serde_json::to_string(&schema).unwrap_or_default();
            for (name, part) in &known {
                if text.contains(&format!("/{name}\"")) && !named.contains_key(name) {
                    named.insert(name.clone(), part.clone());
                    wanted.push(part.clone());
                }
            }
        }
        schemas.extend(named);
    }
}

/// Returns the options of a scope with their schemas.
fn properties(scope: SearchScope) -> impl Iterator<Item = (SearchField, RefOr<Schema>)> {
    let all = match SearchOptions::schema() {
        RefOr::T(Schema::Object(object)) => object.properties,
        _ => BTreeMap::default(),
    };
    scope.fields().filter_map(move |field| {
        let property = match field.name {
            "graph" if scope.names_variant() => variant(),
            name => all.get(name)?.clone(),
        };
        Some((field, if scope == SearchScope::Recorded { unbounded(property) } else { property }))
    })
}

/// Schema of the name of a variant, where the graph search has no other options.
fn variant() -> RefOr<Schema> {
    let nullable = SchemaType::from_iter([Type::String, Type::Null]);
    let description = "Algorithm of graph search: `route_rag`, `hippo_rag`, `graph_r1` or `waymark`.";
    ObjectBuilder::new().schema_type(nullable).description(Some(description)).into()
}

/// Removes the maximum of numbers and lowers their minimum to 0: the bounds apply to requests, and a record was checked
/// as a request.
fn unbounded(property: RefOr<Schema>) -> RefOr<Schema> {
    let RefOr::T(Schema::Object(mut object)) = property else { return property };
    object.minimum = object.minimum.map(|_| Number::UInt(0));
    object.maximum = None;
    RefOr::T(Schema::Object(object))
}
