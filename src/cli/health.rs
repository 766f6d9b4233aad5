//! `waymark health`: checks whether a server is ready.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, anyhow, ensure};

use super::server_args::UrlArgs;

/// Checks whether a server is ready: exit code 0 if `/ready` returns 200 within two seconds, otherwise 1 with the
/// reason.
///
/// Without --url, checks the server on this machine that the environment describes, as `waymark serve` reads it: at
/// WAYMARK_HOST and WAYMARK_PORT (127.0.0.1 and 8080), over HTTPS if WAYMARK_TLS_CERT is set. Its certificate is then
/// not verified unless --ca is given, because it seldom names this machine's own address; no key is sent. Flags of a
/// running server are not visible to this command: pass its --url.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  waymark health
  WAYMARK_PORT=9000 waymark health
  waymark health --url https://host:8080 --ca cert.pem")]
pub(crate) struct Args {
    #[command(flatten)]
    server: UrlArgs,
}

impl Args {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let (url, client) = self.server.client(None)?;
        client.ready().await?;
        writeln!(io::stdout(), "{url} is ready")?;
        Ok(())
    }
}

/// URL of the server on this machine that the environment variables describe.
pub(super) fn local_url(variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<String> {
    let host = parsed(&variable, "WAYMARK_HOST", IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    let port: u16 = parsed(&variable, "WAYMARK_PORT", 8080)?;
    ensure!(port != 0, "WAYMARK_PORT is 0, so the port was chosen by the system: give the server's --url");
    // A server that listens on every address is reached at the loopback address.
    let host: IpAddr = match host {
        IpAddr::V4(all) if all.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(all) if all.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        one => one,
    };
    let scheme = if variable("WAYMARK_TLS_CERT").is_some() { "https" } else { "http" };
    Ok(format!("{scheme}://{}", SocketAddr::new(host, port)))
}

fn parsed<T: FromStr<Err: Display>>(
    variable: impl Fn(&str) -> Option<String>,
    name: &str,
    default: T,
) -> anyhow::Result<T> {
    let Some(value) = variable(name) else { return Ok(default) };
    value.parse::<T>().map_err(|error| anyhow!("{error}")).with_context(|| format!("{name} is {value:?}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(set: &[(&str, &str)]) -> anyhow::Result<String> {
        local_url(|name| set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn a_server_is_asked_where_the_environment_lets_it_listen() {
        let host = "WAYMARK_HOST";
        let port = "WAYMARK_PORT";
        let tls = "WAYMARK_TLS_CERT";
        for (set, url) in [
            (&[][..], "http://127.0.0.1:8080"),
            (&[(host, "0.0.0.0"), (port, "9000")][..], "http://127.0.0.1:9000"),
            (&[(host, "::"), (tls, "cert.pem")][..], "https://[::1]:8080"),
            (&[(host, "10.1.2.3")][..], "http://10.1.2.3:8080"),
        ] {
            assert_eq!(of(set).unwrap(), url);
        }
        for (name, value) in [(port, "0"), (port, "tcp://10.0.0.1:8080"), (host, "nowhere")] {
            let refused = format!("{:#}", of(&[(name, value)]).unwrap_err());
            assert!(refused.contains(name) && refused.contains(value), "{refused}");
        }
    }
}
