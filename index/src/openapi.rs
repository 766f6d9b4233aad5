//! OpenAPI schemas of types whose JSON a derive cannot describe: every field has a default, or the form depends on
//! `type`.

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Ref, Schema, SchemaFormat, SchemaType, Type,
};
use utoipa::{Number, PartialSchema, ToSchema};

use crate::condition::{Condition, ConditionType};
use crate::options::{KagOptions, Relevance};

/// Schemas under their names in the document.
type NamedSchemas = Vec<(String, RefOr<Schema>)>;

/// Schema of a value that may be absent or `null`.
fn optional(kind: Type, description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::from_iter([kind, Type::Null])).description(Some(description))
}

fn count(format: Option<KnownFormat>, description: &str) -> ObjectBuilder {
    optional(Type::Integer, description)
        .format(format.map(SchemaFormat::KnownFormat))
        .minimum(Some(1))
        .maximum(Some(KagOptions::MOST))
}

fn real(description: &str) -> ObjectBuilder {
    optional(Type::Number, description).format(Some(SchemaFormat::KnownFormat(KnownFormat::Double)))
}

fn share(description: &str) -> ObjectBuilder {
    real(description).minimum(Some(Number::UInt(0))).maximum(Some(Number::UInt(1)))
}

impl PartialSchema for KagOptions {
    fn schema() -> RefOr<Schema> {
        let relevance = "Conversion of a cosine to a relevance. Default: a sigmoid of slope 10 around 0.4.";
        let relevance = OneOfBuilder::new()
            .item(Ref::builder().ref_location_from_schema_name(Relevance::name()).description(Some(relevance)).build())
            .item(ObjectBuilder::new().schema_type(Type::Null));
        let about = "Options of the joint ranking of passages and triples in the mode `kag`. Missing fields have their \
                     defaults.";
        ObjectBuilder::new()
            .description(Some(about))
            .property("chunks", count(None, "Number of passages in the graph, at least `k`. Default 10."))
            .property("entities", count(None, "Number of phrases per entity. Default 5."))
            .property("triples", count(None, "Number of triples in the graph, at least `k`. Default 10."))
            .property("damping", share("Share of the mass that follows edges, below 1. Default 0.5."))
            .property("threshold", share("Relevance above which a triple is connected to the question. Default 0.5."))
            .property("iterations", count(Some(KnownFormat::Int32), "Number of steps of the walk. Default 20."))
            .property("relevance", relevance)
            .into()
    }
}

impl ToSchema for KagOptions {
    fn name() -> Cow<'static, str> {
        "KagOptions".into()
    }

    fn schemas(schemas: &mut NamedSchemas) {
        schemas.push((Relevance::name().into_owned(), Relevance::schema()));
    }
}

impl PartialSchema for Relevance {
    fn schema() -> RefOr<Schema> {
        let kind = "`sigmoid`, or `cosine`: the cosine itself, 0 if it is negative.";
        ObjectBuilder::new()
            .description(Some("Conversion of a cosine to a relevance between 0 and 1."))
            .property("kind", ObjectBuilder::new().schema_type(Type::String).description(Some(kind)))
            .required("kind")
            .property("slope", real("Slope of the sigmoid."))
            .property("center", real("Cosine at which the sigmoid is one half."))
            .into()
    }
}

impl ToSchema for Relevance {
    fn name() -> Cow<'static, str> {
        "Relevance".into()
    }
}

impl PartialSchema for Condition {
    fn schema() -> RefOr<Schema> {
        let filters = ArrayBuilder::new()
            .schema_type(SchemaType::from_iter([Type::Array, Type::Null]))
            .items(Ref::from_schema_name(Condition::name()))
            .min_items(Some(1))
            .description(Some("Conditions of `and` and `or`."));
        let kind = Ref::builder().ref_location_from_schema_name(ConditionType::name());
        let value = "Value to compare with: a string, a number or a boolean; a list of them for `in` and `nin`.";
        let about = "Filter on a document's metadata: a comparison of the value at a key, or several conditions \
                     together, with at most 8 levels and 1000 values. Strings, numbers and booleans are compared, each \
                     with its own type. A key that is missing, or has a value of another type, matches only `ne` and \
                     `nin`.";
        ObjectBuilder::new()
            .description(Some(about))
            .property("type", kind.description(Some("Comparison, or combination of `filters`.")).build())
            .required("type")
            .property("key", optional(Type::String, "Key in the metadata, for a comparison."))
            .property("value", ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(value)))
            .property("filters", filters)
            .into()
    }
}

impl ToSchema for Condition {
    fn name() -> Cow<'static, str> {
        "Condition".into()
    }

    fn schemas(schemas: &mut NamedSchemas) {
        schemas.push((ConditionType::name().into_owned(), ConditionType::schema()));
    }
}
