//! Checks of what the flags name: the address, the model, the policies, the folders for downloads, policies and vector
//! stores, the state, the index, the keys, and the certificates.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::{fs, io};

use waymark_agent::Policy;
use waymark_index::Manifest;
use waymark_models::catalog::Catalog;
use waymark_models::layout::ModelLayout;
use waymark_runtime::snapshots::SnapshotLocation;
use waymark_runtime::{assembly, cache};

use super::DoctorCheck;
use crate::cli::state_store;
use crate::config::{ServeConfig, StateLocation, TlsConfig};
use crate::server::Tls;
use crate::store::SqlStore;

/// Checks everything that the configuration names.
pub(super) fn checks(config: &ServeConfig) -> Vec<DoctorCheck> {
    let mut checks = vec![address(config.address), downloads(config), state(config)];
    checks.extend(config.model.weights.as_deref().map(model));
    checks.extend(config.policies.iter().map(|dir| policy(dir)));
    checks.extend(shared_name(&config.policies));
    checks.extend(config.policy_root.as_deref().map(policy_root));
    checks.push(default_index(config));
    checks.extend(config.retrieval.others.iter().map(|(_, dir)| index(dir)));
    checks.extend(config.files.folder.as_deref().map(vector_stores));
    checks.push(access(config));
    checks.extend(config.tls.clone().map(certificates));
    checks
}

/// Listens on the address for a moment.
fn address(address: SocketAddr) -> DoctorCheck {
    match TcpListener::bind(address) {
        Ok(_) => DoctorCheck::good("address", format!("{address} is free")),
        Err(error) => {
            DoctorCheck::failure("address", format!("cannot listen on {address}: {error}; set --host and --port"))
        }
    }
}

/// Writes into the folder for downloads.
fn downloads(config: &ServeConfig) -> DoctorCheck {
    let folder = match cache::folder(config.model.cache.clone()) {
        Ok(folder) => folder,
        Err(error) => return DoctorCheck::failure("cache", error.to_string()),
    };
    let about = folder.display();
    match probe(&folder) {
        Ok(()) => DoctorCheck::good("cache", format!("{about} is writable")),
        Err(error) => DoctorCheck::failure("cache", format!("cannot write to {about}: {error}; set --cache")),
    }
}

/// Writes a file into a folder and removes it again. Also removes the folders that were created for it, because they
/// would belong to the user who runs the check, who may not be the server's.
fn probe(folder: &Path) -> io::Result<()> {
    let missing = folder.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists());
    let missing: Vec<&Path> = missing.collect();
    // Named after the process, so two checks at once do not remove each other's file.
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    let written =
        fs::create_dir_all(folder).and_then(|()| fs::write(&probe, "x")).and_then(|()| fs::remove_file(&probe));
    for dir in missing {
        // Fails if another process has put something there meanwhile, which then stays.
        let _ = fs::remove_dir(dir);
    }
    written
}

/// Takes the lock of the state directory for a moment if there is one, and writes into the directory.
fn state(config: &ServeConfig) -> DoctorCheck {
    let dir = match state_store::location(config) {
        Ok(StateLocation::None) => return DoctorCheck::good("state", "none: records are kept in memory only"),
        Ok(StateLocation::Postgres(_)) => return DoctorCheck::good("state", "a database, which is not asked here"),
        Ok(StateLocation::Directory(dir)) => dir,
        Err(error) => return DoctorCheck::warning("state", format!("{error:#}; nothing outlives the process")),
    };
    let about = dir.display();
    let unwritable = |error: io::Error| format!("cannot write to {about}: {error}; set --state");
    let locked = SqlStore::check_directory(&dir).map_err(|error| error.to_string());
    match locked.and_then(|()| probe(&dir).map_err(unwritable)) {
        Ok(()) => DoctorCheck::good("state", format!("{about} is writable, and no process uses it")),
        Err(error) if config.state.location.is_some() => DoctorCheck::failure("state", error),
        // Without --state a server starts all the same.
        Err(error) => DoctorCheck::warning("state", format!("{error}; nothing outlives the process")),
    }
}

/// Says where the model comes from, and refuses a layout that must be converted first.
fn model(spec: &str) -> DoctorCheck {
    if Path::new(spec).exists() {
        return match ModelLayout::check(Path::new(spec)) {
            Ok(()) => DoctorCheck::good("model", format!("{spec} is on this machine")),
            Err(error) => DoctorCheck::failure("model", error.to_string()),
        };
    }
    if Catalog::bundled().get(spec).is_some() {
        return DoctorCheck::good(
            "model",
            format!("{spec} of the catalog; `waymark pull {spec}` downloads what is missing"),
        );
    }
    if spec.matches('/').count() == 1 && !spec.starts_with(['/', '.']) {
        return DoctorCheck::good(
            "model",
            format!("{spec} on the model hub; `waymark pull {spec}` downloads what is missing"),
        );
    }
    DoctorCheck::failure("model", format!("{spec} is neither a path, nor in the catalog, nor a hub ID; set --model"))
}

fn policy(dir: &Path) -> DoctorCheck {
    match Policy::open(dir) {
        Ok(policy) => {
            let place = policy.dir.as_deref().unwrap_or(dir).display();
            DoctorCheck::good("policy", format!("{} in {place}, protocol {}", policy.name, policy.protocol.name()))
        }
        Err(error) => DoctorCheck::failure("policy", error.to_string()),
    }
}

/// Returns a failure if two of the policies share a name. Those that cannot be read have failures of their own.
fn shared_name(dirs: &[PathBuf]) -> Option<DoctorCheck> {
    let policies: Vec<Policy> = dirs.iter().filter_map(|dir| Policy::open(dir).ok()).collect();
    let error = assembly::check_names(&policies).err()?;
    Some(DoctorCheck::failure("policy", error.to_string()))
}

/// Looks for the folder of the policies that clients load.
fn policy_root(root: &Path) -> DoctorCheck {
    let about = root.display();
    match root.canonicalize() {
        Ok(folder) if folder.is_dir() => DoctorCheck::good("policies", format!("clients load those in {about}")),
        // The server starts all the same.
        Ok(_) => DoctorCheck::warning("policies", format!("--policy-root {about}: not a folder, none can be loaded")),
        Err(error) => DoctorCheck::failure("policies", format!("--policy-root {about}: {error}")),
    }
}

/// Writes into the folder of vector stores.
fn vector_stores(folder: &Path) -> DoctorCheck {
    let about = folder.display();
    match probe(folder) {
        Ok(()) => DoctorCheck::good("stores", format!("{about} is writable")),
        Err(error) => DoctorCheck::failure("stores", format!("cannot write to {about}: {error}; set --vector-stores")),
    }
}

fn default_index(config: &ServeConfig) -> DoctorCheck {
    match &config.retrieval.index {
        Some(dir) => index(dir),
        None => DoctorCheck::warning("index", "none is given: policies that search cannot be asked (--index DIR)"),
    }
}

/// Reads the manifest of the index in `dir`.
fn index(dir: &Path) -> DoctorCheck {
    match SnapshotLocation::of_url(&dir.to_string_lossy()) {
        Ok(None) => {}
        Ok(Some(location)) => {
            return DoctorCheck::good(
                "index",
                format!("{location}: the server fetches it when it starts; not read here"),
            );
        }
        Err(error) => return DoctorCheck::failure("index", format!("--index: {error}")),
    }
    match Manifest::read(dir) {
        Ok(manifest) => {
            let Manifest { passages, snapshot, embedder, .. } = manifest;
            let about = dir.display();
            let detail = format!("{about}: {passages} passages, snapshot {snapshot}, embedder {}", embedder.id);
            DoctorCheck::good("index", detail)
        }
        Err(error) => DoctorCheck::failure("index", error.to_string()),
    }
}

/// Reads the file of keys, and warns if everyone can reach the address without a key.
fn access(config: &ServeConfig) -> DoctorCheck {
    match config.access.keys() {
        Ok(keys) if keys.required() => DoctorCheck::good("keys", "clients need one"),
        Ok(_) if config.address.ip().is_loopback() => {
            DoctorCheck::good("keys", "none: this machine's users have full access")
        }
        Ok(_) => DoctorCheck::warning(
            "keys",
            format!("none: every client that reaches {} has full access (`waymark key new`)", config.address),
        ),
        Err(error) => DoctorCheck::failure("keys", error.to_string()),
    }
}

/// Reads the certificates and their key.
fn certificates(files: TlsConfig) -> DoctorCheck {
    let about = files.certificates.display().to_string();
    match Tls::open(files) {
        Ok(_) => DoctorCheck::good("TLS", format!("{about} and its key can be used")),
        Err(error) => DoctorCheck::failure("TLS", error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::CheckOutcome;
    use super::*;

    #[test]
    fn an_address_in_use_is_a_failure() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let found = address(taken.local_addr().unwrap());
        assert_eq!(found.outcome, CheckOutcome::Failure);
        assert!(found.detail.contains("--port"), "{}", found.detail);
        assert_eq!(address("127.0.0.1:0".parse().unwrap()).outcome, CheckOutcome::Good);
    }

    #[test]
    fn a_model_is_a_path_a_name_or_a_hub_id() {
        for (spec, outcome) in [
            (env!("CARGO_MANIFEST_DIR"), CheckOutcome::Good),
            ("smollm2-135m-instruct", CheckOutcome::Good),
            ("org/name", CheckOutcome::Good),
            ("no-such-model", CheckOutcome::Failure),
            ("./no/such/file.gguf", CheckOutcome::Failure),
        ] {
            assert_eq!(model(spec).outcome, outcome, "{spec}");
        }
    }
}
