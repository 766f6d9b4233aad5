//! Flags for the state: records that outlive the process.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use waymark_runtime::config::Size;

use crate::store::StateLimits;

/// Flags for the state.
#[derive(Debug, Clone, clap::Args)]
pub struct StateArgs {
    /// Location of stored responses, conversations, traces and the list of policies loaded over HTTP: a directory, a
    /// database `postgres://…` that several servers may share, or `none` to keep them in memory only. Defaults to
    /// `state` in the cache folder, or to `none` with `--mock`.
    #[arg(long, env = "WAYMARK_STATE", value_name = "DIR|URL|none", hide_env_values = true)]
    pub state: Option<StateLocation>,

    /// Maximum number of records of each kind in the state; the oldest are removed first.
    #[arg(long, env = "WAYMARK_STATE_COUNT", value_name = "COUNT", default_value_t = 100_000)]
    pub state_count: usize,

    /// Maximum size of the compressed records of each kind in the state, such as `4GiB`.
    #[arg(long, env = "WAYMARK_STATE_BYTES", value_name = "SIZE", default_value = "4GiB")]
    pub state_bytes: Size,

    /// Days after which records are removed from the state; 0 keeps records of any age.
    #[arg(long, env = "WAYMARK_STATE_DAYS", value_name = "DAYS", default_value_t = 30.0, value_parser = days)]
    pub state_days: f64,
}

/// Parses a number of days.
fn days(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(days) if (0.0..=36_500.0).contains(&days) => Ok(days),
        _ => Err("expected a number of days from 0 to 36500".to_owned()),
    }
}

/// Location of the state.
#[derive(Clone, PartialEq, Eq)]
pub enum StateLocation {
    /// Memory only.
    None,
    /// Directory with a SQLite database.
    Directory(PathBuf),
    /// URL of a PostgreSQL database.
    Postgres(String),
}

impl fmt::Debug for StateLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Directory(dir) => f.debug_tuple("Directory").field(dir).finish(),
            // The URL may hold a password.
            Self::Postgres(_) => f.write_str("Postgres(…)"),
        }
    }
}

impl FromStr for StateLocation {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let database = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
        Ok(match text {
            "none" => Self::None,
            text if database => Self::Postgres(text.to_owned()),
            text => Self::Directory(text.into()),
        })
    }
}

/// Configuration of the state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StateConfig {
    /// Location of the state. `None` chooses the default.
    pub location: Option<StateLocation>,
    /// Limits of the records of each kind.
    pub limits: StateLimits,
}

impl StateArgs {
    /// Resolves the flags.
    pub fn resolve(self) -> StateConfig {
        let age = (self.state_days > 0.0).then(|| Duration::from_secs_f64(self.state_days * 24.0 * 3600.0));
        StateConfig {
            location: self.state,
            limits: StateLimits { count: self.state_count, bytes: self.state_bytes.0, age },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn locations_are_told_apart_and_passwords_are_not_shown() {
        let location = |text: &str| text.parse::<StateLocation>().unwrap();
        assert_eq!(location("none"), StateLocation::None);
        assert_eq!(location("./none"), StateLocation::Directory("./none".into()));
        let database = location("postgresql://user:secret@host/db");
        assert!(matches!(database, StateLocation::Postgres(_)) && !format!("{database:?}").contains("secret"));
    }
}
