//! OpenAPI schema of an object with search options.

use std::borrow::Cow;
use std::collections::BTreeMap;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type};
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
        let property: RefOr<Schema> = match field.name {
            // A record has the name alone.
            "graph" if scope == SearchScope::Recorded => variant_name(nullable_string()).into(),
            "graph" if scope.names_variant() => variant(),
            "graph" => with_name(all.get("graph")?.clone()),
            name => all.get(name)?.clone(),
        };
        Some((field, if scope == SearchScope::Recorded { unbounded(property) } else { property }))
    })
}

fn nullable_string() -> SchemaType {
    SchemaType::from_iter([Type::String, Type::Null])
}

/// Schema of the name of a variant.
fn variant_name(schema_type: impl Into<SchemaType>) -> ObjectBuilder {
    let description = "Algorithm of graph search: `route_rag`, `hippo_rag`, `graphrag_r1` or `waymark`.";
    ObjectBuilder::new().schema_type(schema_type).description(Some(description))
}

/// Schema of a variant where the graph search has no other options: its name, or an object with the name.
fn variant() -> RefOr<Schema> {
    let object = ObjectBuilder::new()
        .property("variant", variant_name(nullable_string()))
        .additional_properties(Some(AdditionalProperties::FreeForm(false)));
    let null = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new().item(variant_name(Type::String)).item(object).item(null).into()
}

/// Adds the name of a variant to the forms of the options of graph search.
fn with_name(options: RefOr<Schema>) -> RefOr<Schema> {
    let RefOr::T(Schema::OneOf(mut forms)) = options else { return options };
    forms.items.push(variant_name(Type::String).into());
    RefOr::T(Schema::OneOf(forms))
}

/// Removes the maximum of numbers and lowers their minimum to 0: the bounds apply to requests, and a record was checked
/// as a request.
fn unbounded(property: RefOr<Schema>) -> RefOr<Schema> {
    let RefOr::T(Schema::Object(mut object)) = property else { return property };
    object.minimum = object.minimum.map(|_| Number::UInt(0));
    object.maximum = None;
    RefOr::T(Schema::Object(object))
}
