//! Serialization of a condition that many searches share, with the same JSON as the condition itself.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::condition::Condition;

pub(super) fn serialize<S: Serializer>(shared: &Option<Arc<Condition>>, serializer: S) -> Result<S::Ok, S::Error> {
    shared.as_deref().serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Condition>>, D::Error> {
    Ok(Option::<Condition>::deserialize(deserializer)?.map(Arc::new))
}
