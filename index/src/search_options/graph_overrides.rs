//! Options of a graph search that differ from those published with its variant.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::mode::GraphVariant;
use crate::options::GraphOptions;

/// Options of graph search.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = GraphRequest))]
#[cfg_attr(feature = "clap", derive(clap::Args))]
pub struct GraphOverrides {
    /// Algorithm of graph search: `route_rag` (the default), `hippo_rag`, `graphrag_r1` or `waymark`. Its other options have
    /// the values published with it, unless they are set.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    #[cfg_attr(feature = "clap", arg(long = "graph", value_name = "VARIANT", help_heading = "Graph search"))]
    pub variant: Option<GraphVariant>,
    /// Number of facts linked to the query, and of phrases that the walk starts from.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "N", help_heading = "Graph search"))]
    pub linking_top_k: Option<usize>,
    /// Damping factor of the walk: probability of following an edge instead of restarting.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 0.95))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "P", help_heading = "Graph search"))]
    pub damping: Option<f64>,
    /// Weight of the passages' own similarity in the restart distribution.
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1))]
    #[cfg_attr(feature = "clap", arg(long, value_name = "W", help_heading = "Graph search"))]
    pub passage_weight: Option<f64>,
}

impl GraphOverrides {
    /// Lays these options over `under`.
    #[must_use]
    pub fn or(self, under: GraphOverrides) -> GraphOverrides {
        GraphOverrides {
            variant: self.variant.or(under.variant),
            linking_top_k: self.linking_top_k.or(under.linking_top_k),
            damping: self.damping.or(under.damping),
            passage_weight: self.passage_weight.or(under.passage_weight),
        }
    }

    /// Returns the options published with the variant, overridden by these.
    pub fn options(self) -> GraphOptions {
        let own = GraphOptions::from(self.variant.unwrap_or_default());
        GraphOptions {
            variant: own.variant,
            linking_top_k: self.linking_top_k.unwrap_or(own.linking_top_k),
            damping: self.damping.unwrap_or(own.damping),
            passage_weight: self.passage_weight.unwrap_or(own.passage_weight),
        }
    }
}

impl From<GraphVariant> for GraphOverrides {
    fn from(variant: GraphVariant) -> GraphOverrides {
        GraphOverrides { variant: Some(variant), ..GraphOverrides::default() }
    }
}

/// Reads the options of graph search: an object, or the name of a variant alone. `null` is `None`.
///
/// # Errors
/// If the value has another form, or a name is unknown.
pub(super) fn options<'de, D: Deserializer<'de>>(value: D) -> Result<Option<GraphOverrides>, D::Error> {
    value.deserialize_any(FormVisitor { tunes: true })
}

/// Reads the variant of graph search in the forms of [`options`], where it has no other options.
///
/// # Errors
/// If the value has another form, or a name is unknown.
pub(super) fn variant<'de, D: Deserializer<'de>>(value: D) -> Result<Option<GraphOverrides>, D::Error> {
    value.deserialize_any(FormVisitor { tunes: false })
}

/// Object that sets the variant alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VariantObject {
    variant: Option<GraphVariant>,
}

/// Visitor of both forms of the options.
struct FormVisitor {
    /// If `true`, an object may set all options, and otherwise the variant alone.
    tunes: bool,
}

impl<'de> Visitor<'de> for FormVisitor {
    type Value = Option<GraphOverrides>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a graph search, such as \"waymark\", or an object, such as {\"variant\": \"waymark\"}")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let variant = GraphVariant::deserialize(name.into_deserializer())?;
        Ok(Some(variant.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let object = MapAccessDeserializer::new(map);
        if self.tunes {
            return GraphOverrides::deserialize(object).map(Some);
        }
        let VariantObject { variant } = VariantObject::deserialize(object)?;
        Ok(Some(GraphOverrides { variant, ..GraphOverrides::default() }))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}
